"""Collects garbage and gives memory back to the operating system between test files, of which a worker of pytest runs a
hundred, and tells what a process took at most."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import sys
import tracemalloc
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

#: Forks from a process that has imported these and has one thread.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["hypothesis", "numpy", "pyarrow", "pytest"])


class Peak(NamedTuple):
    """What was allocated at most at a time, in bytes."""

    python: int
    arrow: int


def _measure(told: Connection, trace: bool, act: Callable[..., object], args: tuple[Any, ...]) -> None:
    import pyarrow as pa

    gc.freeze()  # so that an act may collect its garbage often
    try:
        act(*args)
        if trace:
            gc.collect()
            tracemalloc.start()
            act(*args)
        told.send(Peak(tracemalloc.get_traced_memory()[1], pa.default_memory_pool().max_memory()))
    except Exception as e:  # noqa: BLE001 - told to the test
        told.send(AssertionError(f"{type(e).__name__}: {e}"))


def _in_a_process(trace: bool, act: Callable[..., object], args: tuple[Any, ...]) -> Peak:
    hear, told = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_measure, args=(told, trace, act, args))
    process.start()
    told.close()
    with hear:
        found = hear.recv()
    process.join()
    process.close()
    if isinstance(found, AssertionError):
        raise found
    assert isinstance(found, Peak)
    return found


def peak_of(act: Callable[..., object], *args: Any) -> Peak:
    """What a function allocates, which runs in a process of its own: nothing else allocates there. What Python
    allocates is that of a second call: the first imports modules and fills what is remembered. It raises where anything
    is wrong; it and its arguments can be pickled."""
    return _in_a_process(True, act, args)


def arrow_peak_of(act: Callable[..., object], *args: Any) -> int:
    """What Arrow allocates in one call of a function, which runs as that of `peak_of`: without the price of a trace."""
    return _in_a_process(False, act, args).arrow


def alone(act: Callable[..., object], *args: Any) -> None:
    """Run a function once in a process of its own, whose descriptors and threads are nobody else's. It raises where
    anything is wrong; it and its arguments can be pickled."""
    _in_a_process(False, act, args)


def peak_memory() -> int:
    """Largest memory of this process so far, in bytes. (``ru_maxrss`` of a child begins with that of its parent.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps what collection has made out of later garbage collections: modules and thousands of tests live until the
    process ends, and to look through them after each file would cost as much processor time as the files of
    ``tests/unit``."""
    gc.disable()  # otherwise it would look through them again and again while they are made
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """After a file and its fixtures."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()  # what is left is what caches and servers of the session hold: nothing to look through again
        if "pyarrow" in sys.modules:
            sys.modules["pyarrow"].default_memory_pool().release_unused()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # what threads have freed stays in their arenas else
    return result
