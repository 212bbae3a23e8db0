"""The process of a driver, which is started again until its work is done, as by a supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from mama_spark.testing.waiting import eventually

from tests.campaign.driver import SERVER
from tests.support.processes import connected_to, descendant_processes, descendants, runs

TIMEOUT = 300.0
MOST_RUNS = 20


class Job:
    """A driver that is started as often as it takes.

    :param output: what it prints
    :param target: what it does, with what is ``given``; leads a session of its own
    :ivar runs: how often it was started
    """

    def __init__(self, output: Path, target: Callable[..., None], *given: Any) -> None:
        self.output, self.runs = output, 0
        self._make = partial(SERVER.Process, target=target, args=given)
        self._process: BaseProcess | None = None
        self._family: set[psutil.Process] = set()  # not ids: a long run sees them used again, by others

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.exitcode is None

    @property
    def done(self) -> bool:
        """It ended, and all work is done."""
        return self._process is not None and self._process.exitcode == 0

    def start(self) -> None:
        self.runs += 1
        assert self.runs <= MOST_RUNS, f"started {MOST_RUNS} times, and never done: {self.last_output()}"
        self._process = self._make()
        self._process.start()

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
        self._process.join(TIMEOUT)

    def finish(self) -> None:
        """Until the work is done and nothing runs any more.

        :raises AssertionError: it fails again and again, or one driver takes too long
        """
        while not self.done:
            if not self.running:
                self.start()
            assert self._process is not None
            self._process.join(TIMEOUT)
            assert not self.running, f"not done within {TIMEOUT:g} s: {self.last_output()}"
        eventually(lambda: not any(map(runs, self._family)), "what was left without its driver ends", TIMEOUT)

    def end(self) -> None:
        """Nothing of it is left."""
        self.kill(whole=True)
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def last_output(self) -> str:
        return self.output.read_text(errors="replace")[-1_500:] if self.output.exists() else ""
