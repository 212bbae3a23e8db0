"""Where the time of a test run goes: a pytest plugin that sums it, and a command that shows the sums of an earlier run.

    pytest                                  ten lines at the end, details in .run/test-times.json (or $TEST_TIMES)
    python scripts/test_times.py            the last run by folder and file, the slowest tests, the processes started
    python scripts/test_times.py A B        two runs side by side, by folder

Times are seconds of wall clock, summed over workers, apart for set-up, call and tear-down; a fixture of a wider scope
is charged to the first test that asks for it. Processes are those that the test processes start themselves. Memory is
the highest resident size of each test process in MB. Processor time is that of the whole machine (Linux).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

REPORT = Path(os.environ.get("TEST_TIMES", ".run/test-times.json"))
PHASES = ("setup", "call", "teardown")


def process_kind(executable: str, argv: list[str]) -> str:
    """What was started, in one word: the program, or the module or script that an interpreter runs."""
    name = Path(executable).name
    if name.startswith("python"):
        for at, word in enumerate(argv[1:], 1):
            if word == "-m" and at + 1 < len(argv):
                return f"python -m {argv[at + 1]}"
            if word == "-c":
                return "python -c"
            if not word.startswith("-"):
                return f"python {Path(word).name}"
    return name


def busy_seconds() -> float:
    """Processor seconds that the machine has spent working since it was started; 0 where that cannot be read."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    except OSError:
        return 0.0
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # all but idle and waiting for a disk


def resident() -> int:
    """Memory of this process now, in MB; 0 where that cannot be read."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


class Recorder:
    """Collects the reports of one run; in a worker of xdist, only what the worker alone knows."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, float]] = defaultdict(dict)
        self.processes: Counter[str] = Counter()
        self.memory: list[int] = []
        self.grown: Counter[str] = Counter()  #: file -> MB that the test process grew by while it ran
        self.outcomes: Counter[str] = Counter()
        self._began, self._busy = time.monotonic(), busy_seconds()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            argv = [os.fsdecode(word) for word in args[1]] if not isinstance(args[1], (str, bytes)) else []
            self.processes[process_kind(os.fsdecode(args[0] or (argv or ["?"])[0]), argv)] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phases = self.tests[report.nodeid]
        phases[report.when] = phases.get(report.when, 0.0) + report.duration
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = resident()
        result = yield
        self.grown[item.nodeid.split("::")[0]] += resident() - before
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if hasattr(session.config, "workeroutput"):
            own = {"processes": dict(self.processes), "memory": memory, "grown": dict(self.grown)}
            session.config.workeroutput["test_times"] = own
        elif not self.memory:  # no worker has told: the tests ran here
            self.memory.append(memory)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if told := getattr(node, "workeroutput", {}).get("test_times"):
            self.processes.update(told["processes"])
            self.grown.update(told["grown"])
            self.memory.append(told["memory"])

    def result(self) -> dict[str, Any]:
        return {
            "wall": time.monotonic() - self._began,
            "busy": busy_seconds() - self._busy,
            "cores": os.cpu_count() or 1,
            "outcomes": dict(self.outcomes),
            "tests": self.tests,
            "processes": dict(self.processes.most_common()),
            "memory": self.memory,
            "grown": dict(self.grown.most_common(20)),
        }

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.tests) < 2:
            return
        result = self.result()
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(json.dumps(result))
        terminalreporter.section("where the time went")
        for line in summary(result):
            terminalreporter.write_line(line)


def folder_of(nodeid: str) -> str:
    """`tests/spark`, `tests/unit`: the second level; a file of the first level stands for itself."""
    parts = nodeid.split("::")[0].split("/")
    return "/".join(parts[:2])


def sums(tests: dict[str, dict[str, float]], key: Any) -> dict[str, dict[str, float]]:
    """Key -> cases, seconds a phase and in all; the most expensive first."""
    found: dict[str, dict[str, float]] = {}
    for nodeid, phases in tests.items():
        row = found.setdefault(key(nodeid), {"cases": 0, "all": 0.0, **dict.fromkeys(PHASES, 0.0)})
        row["cases"] += 1
        for phase, seconds in phases.items():
            row[phase] += seconds
            row["all"] += seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]["all"]))


def line_of(name: str, row: dict[str, float]) -> str:
    phases = "".join(f"{row[phase]:9.1f}" for phase in PHASES)
    return f"{name:<52}{int(row['cases']):6}{row['all']:9.1f}{phases}"


def header(name: str) -> str:
    return f"{name:<52}{'cases':>6}{'s':>9}" + "".join(f"{phase:>9}" for phase in PHASES)


def summary(result: dict[str, Any]) -> list[str]:
    """Ten lines: the run, its folders, its processes, its most expensive files."""
    tests = result["tests"]
    share = result["busy"] / (result["wall"] * result["cores"])
    folders = sums(tests, folder_of)
    files = list(sums(tests, lambda nodeid: nodeid.split("::")[0]).items())[:3]
    started = ", ".join(f"{count} {name}" for name, count in list(result["processes"].items())[:6])
    return [
        f"{result['wall']:.0f} s, {len(tests)} cases; {result['cores']} cores, {share:.0%} busy; "
        f"memory of test processes {', '.join(map(str, sorted(result['memory'], reverse=True)))} MB",
        f"started: {started}",
        header("folder"),
        *(line_of(name, row) for name, row in list(folders.items())[:4]),
        *(line_of(name.removeprefix("tests/"), row) for name, row in files),
    ]


def details(result: dict[str, Any]) -> list[str]:
    tests = result["tests"]
    lines = [f"{result['wall']:.0f} s, processors busy for {result['busy']:.0f} s", "", header("folder")]
    lines += [line_of(name, row) for name, row in sums(tests, folder_of).items()]
    lines += ["", header("file")]
    lines += [line_of(name, row) for name, row in list(sums(tests, lambda nodeid: nodeid.split("::")[0]).items())[:60]]
    lines += ["", header("test")]
    lines += [line_of(name[-52:], row) for name, row in list(sums(tests, lambda nodeid: nodeid).items())[:60]]
    lines += ["", "MB that test processes grew by", *(f"{mb:6} {name}" for name, mb in result["grown"].items())]
    return [*lines, "", "processes", *(f"{count:6} {name}" for name, count in result["processes"].items())]


def beside(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    left, right = sums(first["tests"], folder_of), sums(second["tests"], folder_of)
    lines = [f"{'folder':<30}{'cases':>8}{'s':>9}{'cases':>10}{'s':>9}"]
    none = {"cases": 0, "all": 0.0}
    for name in left | right:
        a, b = left.get(name, none), right.get(name, none)
        lines.append(f"{name:<30}{int(a['cases']):>8}{a['all']:>9.0f}{int(b['cases']):>10}{b['all']:>9.0f}")
    lines.append(f"{'wall clock':<38}{first['wall']:>9.0f}{second['wall']:>19.0f}")
    lines.append(f"{'processors busy':<38}{first['busy']:>9.0f}{second['busy']:>19.0f}")
    for name in first["processes"] | second["processes"]:
        lines.append(f"{name[:30]:<30}{first['processes'].get(name, 0):>8}{second['processes'].get(name, 0):>19}")
    return lines


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(), "test_times_recorder")


if __name__ == "__main__":
    read = [json.loads(Path(name).read_text()) for name in sys.argv[1:] or [str(REPORT)]]
    print("\n".join(beside(*read) if len(read) == 2 else details(read[0])))
