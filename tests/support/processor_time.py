"""Prints where the processor time of a test run went, and keeps it in ``.run/processor-time.json``; a plugin of pytest.

Counted are user and system time of the test processes and of everything that they start: brokers, JVMs, Spark's
workers. What a fixture of a session starts is charged to the file that asks for it first, and what a server does
meanwhile to the file that runs then.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

REPORT = Path(".run/processor-time.json")
DEAREST = 10
#: What is in no file of tests: to import and collect them in each process.
AROUND = "(collection)"


def tree_seconds(root: int) -> float:
    """Processor seconds of a process, its living descendants, and those of them that were waited for; 0 where there is
    no ``/proc``."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))  # its own, user and system, and that of waited-for children
    total, left = 0, [root]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children.get(pid, [])
    return total / float(os.sysconf("SC_CLK_TCK"))


class ProcessorTime:
    """Charges this process's tree to test files; in the controller of xdist, sums what the workers tell."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cases: Counter[str] = Counter()
        self._counted = 0.0

    def _charge(self, file: str) -> None:
        now = tree_seconds(os.getpid())
        self.seconds[file] += max(0.0, now - self._counted)  # less: a child has ended that nobody waited for
        self._counted = now

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        file = item.nodeid.split("::")[0]
        if not self.cases:
            self._charge(AROUND)
        self.cases[file] += 1
        result = yield
        if nextitem is None or nextitem.nodeid.split("::")[0] != file:
            self._charge(file)
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["processor_time"] = [dict(self.seconds), dict(self.cases)]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        seconds, cases = getattr(node, "workeroutput", {}).get("processor_time", ({}, {}))
        for file, spent in seconds.items():
            self.seconds[file] += spent
        self.cases.update(cases)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.cases) < 2:
            return
        REPORT.parent.mkdir(exist_ok=True)
        wall = time.monotonic() - self.began
        if not self._counted:  # the tests ran in workers
            self.seconds[AROUND] += time.process_time()
        REPORT.write_text(json.dumps({"wall": wall, "seconds": self.seconds, "cases": self.cases}))
        terminalreporter.section("processor time")
        for line in summary(wall, self.seconds, self.cases):
            terminalreporter.write_line(line)


def folder_of(file: str) -> str:
    """``tests/spark/sink/test_x.py`` -> ``tests/spark``; a file of the first level stands for itself."""
    return "/".join(file.split("/")[:2])


def dearest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])


def summary(wall: float, seconds: Mapping[str, float], cases: Counter[str]) -> list[str]:
    """The whole, its folders, and the dearest files."""
    folders: defaultdict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for file, of_file in seconds.items():
        folders[folder_of(file)] += of_file
        count[folder_of(file)] += cases[file]
    whole = sum(seconds.values())
    lines = [f"{whole:7.1f} s of processor time for {cases.total()} cases in {wall:.0f} s"]
    lines += [f"{spent:7.1f} s {count[name]:6} cases  {name}" for name, spent in dearest_first(folders)]
    dearest = [file for file, _ in dearest_first(seconds) if file != AROUND][:DEAREST]
    return [*lines, "dearest files:", *(f"{seconds[f]:7.1f} s {cases[f]:6} cases  {f}" for f in dearest)]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ProcessorTime(), "processor_time")
