"""What the machine does while something is measured: CPU time and memory by process, from ``/proc``."""

from __future__ import annotations

import math
import os
import platform
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_name() -> str:
    """What the machine computes with."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/<pid>/stat`` from the state on; OSError when the process is gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def process_cpu(pid: int) -> float:
    """CPU seconds of one process, its children not included; 0 when it is gone."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def tree(root: int) -> dict[int, list[str]]:
    """``root`` and all its descendants: process id -> fields of its ``stat``."""
    children: dict[int, list[int]] = {}
    stats: dict[int, list[str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            stats[pid] = _stat(pid)
        except OSError:
            continue
        children.setdefault(int(stats[pid][1]), []).append(pid)
    found, todo = {}, [root]
    while todo:
        pid = todo.pop()
        if pid in stats:
            found[pid] = stats[pid]
        todo += children.get(pid, [])
    return found


def tree_cpu(root: int) -> float:
    """CPU seconds of ``root`` and its descendants, those that ended and were waited for included."""
    return sum(sum(map(int, fields[11:15])) for fields in tree(root).values()) / TICKS


def busy_cpu() -> float:
    """CPU seconds that all cores together have worked since boot."""
    values = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    return (sum(values) - values[3] - values[4]) / TICKS


def wait_until_quiet(limit: float = 0.25, patience: float = 12.0) -> None:
    """Wait until others use less than ``limit`` cores, so that a run does not begin in somebody else's burst."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        all_before, ours_before, began = busy_cpu(), tree_cpu(os.getpid()), time.monotonic()
        time.sleep(0.3)
        others = (busy_cpu() - all_before) - (tree_cpu(os.getpid()) - ours_before)
        if others / (time.monotonic() - began) <= limit:
            return


def rounds(n: int, what: str, minutes: float = math.inf, *, warm_up: bool = True) -> Iterator[int]:
    """Numbers of the rounds, each announced; -1 warms up. No other one begins after so many minutes."""
    deadline = time.monotonic() + minutes * 60
    for round_ in range(-1 if warm_up else 0, n):
        if round_ > 0 and time.monotonic() > deadline:
            print(f"out of time: {round_} rounds of {n}", flush=True)
            return
        print(f"{what}, {'warm-up' if round_ < 0 else f'round {round_ + 1} of {n}'}", flush=True)
        yield round_


def _cpu_between(before: dict[int, list[str]], after: dict[int, list[str]]) -> float:
    """CPU seconds that a tree of processes used between two calls of :func:`tree`. What one used whose parent ended,
    too, is lost: nobody waited for it."""
    seconds = {pid: sum(map(int, fields[11:15])) / TICKS for pid, fields in before.items()}
    orphans = sum(seconds[pid] for pid, fields in before.items() if pid not in after and int(fields[1]) not in after)
    return sum(sum(map(int, fields[11:15])) for fields in after.values()) / TICKS - sum(seconds.values()) + orphans


class Meter:
    """CPU seconds of a run: ``with Meter(server_pid) as m: ...``, then ``m.client``, ``m.server``, ``m.others``.

    :param servers: processes that are no clients; ``m.server`` is all of them together
    """

    def __init__(self, *servers: int) -> None:
        self._servers = servers
        self.seconds = self.client = self.server = self.others = 0.0

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), sum(map(process_cpu, self._servers)), busy_cpu()

    def __enter__(self) -> Self:
        self._processes, self._began = tree(os.getpid()), self._now()
        return self

    def __exit__(self, *exc: object) -> None:
        seconds, server, busy = (b - a for a, b in zip(self._began, self._now(), strict=True))
        ours = _cpu_between(self._processes, tree(os.getpid()))
        self.seconds, self.server, self.client = seconds, server, ours - server
        self.others = max(0.0, (busy - ours) / seconds)  # cores that somebody else used meanwhile


class WorkerMemory:
    """Highest resident memory of one of Spark's Python workers, in bytes, sampled while the block runs."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            for pid, fields in tree(os.getpid()).items():
                try:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if b"pyspark" in command and b"daemon" in command:
                    self.peak = max(self.peak, int(fields[21]) * PAGE)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
