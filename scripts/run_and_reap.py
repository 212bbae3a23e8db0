"""Runs a command, then ends every process that it started: ``python scripts/run_and_reap.py COMMAND...``.

Spark starts a JVM, which starts Python workers, and tests start brokers in sessions of their own: Ctrl-C in a terminal
does not reach all of them, and they outlive a killed parent. On Linux this process becomes their subreaper: orphans
become its children. It passes signals on to the command, and ends all descendants when the command has ended. At last
it prints their processor time, where ``PROCESSOR_TIME`` is set.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

GRACE = 15.0  #: seconds that the command has to end by itself after Ctrl-C
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def living_descendants() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def reap() -> None:
    """Collect the exit codes of children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def reap_orphans(child: int) -> None:
    """Collect the exit codes of orphans, but not that of the command: as long as nobody does, an orphan that has ended
    counts as a process, and whoever waits for the end of its group waits for ever."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(ChildProcessError):
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (ended := os.waitid(os.P_ALL, 0, look)) is not None and ended.si_pid != child:
            os.waitpid(ended.si_pid, 0)


def end_descendants() -> None:
    """SIGTERM, and SIGKILL for those that run five seconds later."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = living_descendants()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        deadline = time.monotonic() + 5.0
        while left and time.monotonic() < deadline:
            reap()
            left = living_descendants()
            time.sleep(0.02)
        if not left:
            return


def run(command: list[str]) -> int:
    """Exit code of the command; 128 + the number of the first signal when it was interrupted."""
    become_subreaper()
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
    # in a group of its own: the terminal then interrupts only this process, and the command gets each signal once
    child = subprocess.Popen(command, process_group=0)
    passed, deadline = 0, None
    while child.poll() is None:
        if passed < len(signals):
            child.send_signal(signals[passed])
            passed += 1
            deadline = deadline or time.monotonic() + GRACE
        if len(signals) > 1 or (deadline and time.monotonic() > deadline):
            break  # a second Ctrl-C means now
        reap_orphans(child.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.05)
    end_descendants()
    reap()
    if "PROCESSOR_TIME" in os.environ:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{used.ru_utime + used.ru_stime:.1f} s of processor time: {' '.join(command)}", file=sys.stderr)
    if signals:
        return 128 + signals[0]
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
