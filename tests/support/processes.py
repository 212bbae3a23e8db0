"""Finds the processes that a program under test has started: its descendants, its JVM, its connected workers."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

import psutil


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    return False


def runs(process: psutil.Process) -> bool:
    """As :func:`is_alive`, of this very process: another one may have its id by now."""
    return process.is_running() and is_alive(process.pid)


def descendants(root: int) -> set[int]:
    """The living descendants of a process."""
    return {child.pid for child in descendant_processes(root)}


def descendant_processes(root: int) -> set[psutil.Process]:
    """The living descendants of a process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return {child for child in psutil.Process(root).children(recursive=True) if is_alive(child.pid)}
    return set()


def none_alive(pids: set[int]) -> bool:
    return not any(map(is_alive, pids))


def is_java(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).name() == "java")
    return False


def jvm_of(root: int) -> int | None:
    """The Java process that a driver program has started; None while there is none."""
    return next((pid for pid in descendants(root) if is_java(pid)), None)


def resident_memory(pid: int) -> int:
    """Bytes.

    :raises psutil.NoSuchProcess: it has ended
    """
    return int(psutil.Process(pid).memory_info().rss)


def connected_to(port: int, among: set[int]) -> list[int]:
    """Which of these processes have a connection to ``port`` of this machine."""
    found = []
    for pid in among:
        with contextlib.suppress(psutil.Error):
            connections = psutil.Process(pid).net_connections("tcp")
            if any(c.raddr and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED for c in connections):
                found.append(pid)
    return sorted(found)


def task_workers(jvm: int, port: int) -> list[int]:
    """Python workers of Spark that run tasks, not those that plan or commit, with a connection to ``port``."""
    return [pid for pid in connected_to(port, descendants(jvm)) if _runs_tasks(pid)]


def _runs_tasks(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).cmdline()[-1:] == ["pyspark.worker"])
    return False


@contextlib.contextmanager
def full_disk(root: int, largest: int, *, java: bool, others: bool) -> Iterator[None]:
    """Let a process and its descendants write no file of more than ``largest`` bytes, which works without a file system
    of one's own. Those that they start meanwhile are limited, too, until the end.

    :param java, others: which of them
    """
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(soft: int, pids: set[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))

    family = {root} | descendants(root)
    limit(largest, {pid for pid in family if (java if is_java(pid) else others)})
    try:
        yield
    finally:
        limit(hard, {root} | descendants(root))
