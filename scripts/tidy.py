"""Run a command and leave no process behind: ``python scripts/tidy.py COMMAND...``.

Spark starts a JVM, that one Python workers, and tests start brokers in sessions of their own: the terminal's Ctrl-C
does not reach all of them, and a killed parent leaves them orphaned. This process becomes the one that orphans fall
back to (Linux), hands signals on to the command, and when that has ended, ends what is left of its descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

GRACE = 15.0  #: seconds that the command has to end by itself after Ctrl-C
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parents() -> dict[int, int]:
    """Process id -> parent's, of all living processes."""
    if not Path("/proc/self/stat").exists():
        out = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        return {int(pid): int(parent) for pid, parent in (line.split() for line in out.splitlines())}
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has just ended
        if state != "Z":
            found[int(entry.parent.name)] = int(parent)
    return found


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def reap() -> None:
    """Collect orphans that have ended and fell back to us."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_descendants() -> None:
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        left = descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience
        while left and time.monotonic() < deadline:
            reap()
            left = descendants(os.getpid())
            time.sleep(0.02)
        if not left:
            return


def run(command: list[str]) -> int:
    become_subreaper()
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
    # in a group of its own: the terminal then interrupts us alone, and the command gets each signal exactly once
    child = subprocess.Popen(command, process_group=0)
    passed, deadline = 0, None
    while child.poll() is None:
        if passed < len(signals):
            child.send_signal(signals[passed])
            passed += 1
            deadline = deadline or time.monotonic() + GRACE
        if len(signals) > 1 or (deadline and time.monotonic() > deadline):
            break  # a second Ctrl-C means now
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.05)
    end_descendants()
    if signals:
        return 128 + signals[0]
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
