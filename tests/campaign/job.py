"""The process of a driver, which is started again until its work is done, as by a supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import psutil
from mama_spark.testing.waiting import eventually

from tests.campaign import driver
from tests.support.processes import connected_to, descendant_processes, descendants, runs

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 300.0
MOST_RUNS = 20


class DriverProcess(Protocol):
    """What :class:`subprocess.Popen` is."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class ForkedDriver:
    """``driver.py``, see there."""

    def __init__(self, given: dict[str, Any], output: Path) -> None:
        self._process = driver.SERVER.Process(target=driver.drive, args=(given, output))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("driver", timeout or 0.0)
        return self._process.exitcode


def program(module: str, given: dict[str, Any], output: Path) -> DriverProcess:
    """A module that takes JSON as its argument, in a session of its own."""
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with output.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", module, json.dumps(given)], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


class Job:
    """A driver that is started as often as it takes.

    :param begin: start it
    :param output: what it prints
    :ivar runs: how often it was started; ``most_runs``: more often is a failure
    """

    def __init__(self, begin: Callable[[], DriverProcess], output: Path, most_runs: int = MOST_RUNS) -> None:
        self._begin, self.output, self.runs, self.most_runs = begin, output, 0, most_runs
        self._process: DriverProcess | None = None
        self._family: set[psutil.Process] = set()  # not ids: a long run sees them used again, by others

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def done(self) -> bool:
        """It ended, and all work is done."""
        return self._process is not None and self._process.poll() == 0

    def start(self) -> None:
        self.runs += 1
        assert self.runs <= self.most_runs, f"started {self.most_runs} times, and never done: {self.last_output()}"
        self._process = self._begin()

    def workers(self, ports: list[int]) -> list[int]:
        """Processes that the driver has started and that are connected to one of these ports."""
        if not self.running:
            return []
        family = descendants(self.pid)
        return sorted({pid for port in ports for pid in connected_to(port, family)})

    def kill(self, *, whole: bool) -> None:
        """SIGKILL to the driver, and to all that it has started (``whole``); else that goes on by itself."""
        if not self.running:
            return
        self._family |= descendant_processes(self.pid)
        if whole:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(TIMEOUT)

    def finish(self, timeout: float = TIMEOUT) -> None:
        """Until the work is done and nothing runs any more.

        :param timeout: seconds that one driver may take
        :raises AssertionError: it fails again and again, or takes too long
        """
        while not self.done:
            if not self.running:
                self.start()
            assert self._process is not None
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"not done within {timeout:g} s: {self.last_output()}") from None
        eventually(lambda: not any(map(runs, self._family)), "what was left without its driver ends", TIMEOUT)

    def end(self) -> None:
        """Nothing of it is left."""
        self.kill(whole=True)
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def last_output(self) -> str:
        return self.output.read_text(errors="replace")[-1_500:] if self.output.exists() else ""
