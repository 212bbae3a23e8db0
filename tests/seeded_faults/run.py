"""Plant small faults in a copy of the product, one at a time, and see whether the tests catch them.

``python -m tests.seeded_faults.run [--only NAME_PART] [--list] [--jobs N] [--root DIR]``, or ``make mutate``.

A fault is a piece of text of one file of ``connector/mama_spark`` and what stands there instead; the tables beside this
file (``*.toml``) hold them by subject, each with the tests that should catch it. Before anything is planted, all of
these tests must pass. The exit status is 1 if a fault was not caught, does not apply any more (its text occurs not
exactly once, or its tests are gone), or breaks more than behaviour (no tests can be collected).
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PRODUCT = Path("connector/mama_spark")
COPIED = ("connector", "tests", "jobs", "conf", "docs", "scripts", "bench", "pyproject.toml", "README.md")
#: Seconds for one test, and for all tests of one fault; then they hang, which no healthy run comes near.
ONE_TEST, ONE_FAULT = 120, 300
ALL_TESTS = 1800
#: What the tiers select.
TEST, TEST_ALL = "not thorough and not explore", "thorough and not explore"
_NOTHING_SELECTED = 5  #: exit status of pytest


class Verdict(Enum):
    CAUGHT = "caught"
    BY_TIMEOUT = "caught by timeout"
    BY_TEST_ALL = "caught by make test-all only"
    NOT_CAUGHT = "NOT CAUGHT"
    NOT_APPLICABLE = "NOT APPLICABLE"
    BROKEN = "BROKEN"  #: no test could run: the fault is more than a slip of behaviour

    @property
    def good(self) -> bool:
        return self in (Verdict.CAUGHT, Verdict.BY_TIMEOUT, Verdict.BY_TEST_ALL)


@dataclass(frozen=True, slots=True)
class Fault:
    """:ivar name: what is wrong, in plain words
    :ivar file: below :data:`PRODUCT`
    :ivar old: what stands there, exactly once
    :ivar new: what stands there instead
    :ivar tests: files, folders or ids that should catch it, cheap ones first
    :ivar worlds: of :mod:`tests.simulation` that find it, if any do
    """

    subject: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    worlds: tuple[str, ...] = ()

    def inapplicable(self, root: Path) -> str | None:
        """Why it cannot be planted there, or its tests cannot run; None: it can. Another tree than this one may lack
        some of the tests."""
        path = root / PRODUCT / self.file
        found = path.read_text().count(self.old) if path.exists() else 0
        if found != 1:
            return f"its text occurs {found} times in {self.file}"
        missing = set(self.tests) - set(self.tests_in(root))
        gone = bool(missing) if root == ROOT else missing == set(self.tests)
        return f"there is no {', '.join(sorted(missing))}" if gone else None

    def tests_in(self, root: Path) -> list[str]:
        """Those of its tests that are there."""
        return [test for test in self.tests if (root / test.partition("::")[0]).exists()]

    @contextmanager
    def planted(self, copy: Path) -> Iterator[None]:
        path = copy / PRODUCT / self.file
        before = path.read_text()
        path.write_text(before.replace(self.old, self.new))
        try:
            yield
        finally:
            path.write_text(before)


@dataclass(frozen=True, slots=True)
class Outcome:
    """:ivar detail: the test that failed first, or why there is none"""

    fault: Fault
    verdict: Verdict
    detail: str
    seconds: float = 0.0


def read_faults() -> list[Fault]:
    """All of them, by subject."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        for subject, faults in tomllib.loads(path.read_text()).items():
            lists = ({key: tuple(one.get(key, ())) for key in ("tests", "worlds")} for one in faults)
            found += [Fault(subject, **{**one, **some}) for one, some in zip(faults, lists, strict=True)]
    twice = [name for name, n in Counter(fault.name for fault in found).items() if n > 1]
    if twice:
        raise SystemExit(f"two faults have one name: {', '.join(twice)}")
    return found


def make_copy(root: Path, copy: Path) -> None:
    """What tests need of a tree. Compiled files are checked by the source's hash, for a planted fault may be as long
    as what it replaces, and as old."""
    copy.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "results")
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name, ignore=ignored)
        else:
            shutil.copy2(root / name, copy / name)
    shutil.copytree(HERE, copy / "tests" / "seeded_faults", ignore=ignored, dirs_exist_ok=True)
    (copy / ".venv").symlink_to(root / ".venv")
    hashed = ("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "connector")
    subprocess.run([copy / ".venv/bin/python", *hashed], cwd=copy, check=True)


def run_tests(copy: Path, tests: Sequence[str], timeout: float, marks: str, *options: str) -> tuple[int | None, str]:
    """Status of pytest (None: it did not end in time; 0: nothing is selected, too) and what it printed."""
    env = {**os.environ, "PYTHONPATH": str(copy / "connector")}
    command = [str(copy / "scripts/in-env"), "python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
               "-p", "tests.seeded_faults.plugin", "--hypothesis-profile", "seeded faults",
               "--timeout", str(ONE_TEST), "--tb", "line", "-m", marks, *options, *tests]  # fmt: skip
    process = subprocess.Popen(command, cwd=copy, env=env, text=True, errors="replace", start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=timeout)
        return process.returncode if process.returncode != _NOTHING_SELECTED else 0, printed
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what tests have started and left
        process.wait()


def judge(fault: Fault, copy: Path) -> Outcome:
    began = time.monotonic()
    with fault.planted(copy):
        verdict, detail = verdict_of(*run_tests(copy, fault.tests_in(copy), ONE_FAULT, TEST, "-x"))
        if verdict is Verdict.NOT_CAUGHT:
            later, detail = verdict_of(*run_tests(copy, fault.tests_in(copy), ONE_FAULT, TEST_ALL, "-x"))
            verdict = Verdict.BY_TEST_ALL if later.good else later
    return Outcome(fault, verdict, detail, time.monotonic() - began)


def verdict_of(status: int | None, printed: str) -> tuple[Verdict, str]:
    """What a run of pytest says of a fault."""
    first = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", printed, re.MULTILINE)
    if status is None:
        return Verdict.BY_TIMEOUT, f"no end within {ONE_FAULT} s"
    if status == 1:
        late = "Timeout (>" in printed
        return Verdict.BY_TIMEOUT if late else Verdict.CAUGHT, first[1] if first else "?"
    if status == 0:
        return Verdict.NOT_CAUGHT, "all tests pass"
    return Verdict.BROKEN, f"pytest ends with {status}: {' '.join(printed.split())[-300:]}"


def check_without_faults(copy: Path, faults: Sequence[Fault], jobs: int) -> None:
    """:raises SystemExit: a test fails although nothing was planted"""
    tests = list(dict.fromkeys(test for fault in faults for test in fault.tests_in(copy)))
    began = time.monotonic()
    print(f"without a fault: {len(tests)} files and folders of tests ...", flush=True)
    workers = ("-n", str(jobs), "--dist", "loadfile") if jobs > 1 else ()
    status, printed = run_tests(copy, tests, ALL_TESTS, "not explore", *workers)
    if status != 0:
        raise SystemExit(f"{printed[-5000:]}\nthese tests must pass where no fault is planted (status {status})")
    print(f"without a fault: all pass, {time.monotonic() - began:.0f} s", flush=True)


def judge_all(faults: Sequence[Fault], root: Path, jobs: int) -> list[Outcome]:
    """In as many copies side by side; a line for each when it is known."""
    with tempfile.TemporaryDirectory(prefix="mama-faults-") as folder:
        first = Path(folder, "1")
        make_copy(root, first)
        check_without_faults(first, faults, jobs)
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        copies.put(first)
        for number in range(2, jobs + 1):  # with what the run above has compiled
            copies.put(Path(shutil.copytree(first, Path(folder, str(number)), symlinks=True)))

        def one(fault: Fault) -> Outcome:
            copy = copies.get()
            try:
                outcome = judge(fault, copy)
            finally:
                copies.put(copy)
            print(f"{outcome.seconds:5.1f} s  {outcome.verdict.value}: {fault.name}  [{outcome.detail}]", flush=True)
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, faults))


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table by subject, and what is not as it should be."""
    subjects = list(dict.fromkeys(outcome.fault.subject for outcome in outcomes))
    width = max(map(len, (*subjects, "subject")))
    lines = [f"{'subject':{width}}  planted  caught"]
    for subject in subjects:
        some = [outcome for outcome in outcomes if outcome.fault.subject == subject]
        lines.append(f"{subject:{width}}  {len(some):7}  {sum(outcome.verdict.good for outcome in some):6}")
    usual = (Verdict.CAUGHT, Verdict.BY_TIMEOUT)
    lines += [f"{o.verdict.value}: {o.fault.name} ({o.detail})" for o in outcomes if o.verdict not in usual]
    counts = Counter(outcome.verdict.value for outcome in outcomes)
    return "\n".join([*lines, ", ".join(f"{n} {verdict}" for verdict, n in counts.items()) or "no fault"])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.seeded_faults.run", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", metavar="NAME_PART", default="", help="faults whose name or subject holds this")
    parser.add_argument("--list", action="store_true", help="show them, plant nothing")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="copies side by side (2)")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="DIR", help="the tree to test, with its own .venv")
    given = parser.parse_args()
    faults = [fault for fault in read_faults() if given.only in fault.name or given.only in fault.subject]
    root, began = given.root.resolve(), time.monotonic()
    whys = {fault.name: why for fault in faults if (why := fault.inapplicable(root)) is not None}
    if given.list:
        for fault in faults:
            print(f"{fault.subject}: {fault.name}", *([f"[{whys[fault.name]}]"] if fault.name in whys else []))
        return 1 if whys else 0
    left = [fault for fault in faults if fault.name not in whys]
    outcomes = [Outcome(f, Verdict.NOT_APPLICABLE, whys[f.name]) for f in faults if f.name in whys]
    if left:
        outcomes += judge_all(left, root, max(1, given.jobs))
    print(f"\n{summary(outcomes)}\n{time.monotonic() - began:.0f} s")
    return 0 if outcomes and all(outcome.verdict.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
