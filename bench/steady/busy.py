"""``python -m bench.steady.busy CORES``: a loop that keeps so much of the cores busy, in slices of two milliseconds of
processor time, as the threads of a client do. It works on nothing that the others need."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..result import ROOT

_SLICE = 0.002  #: seconds of processor time between pauses


def _work(cores: float) -> None:
    began = time.monotonic()
    while True:
        until = time.process_time() + _SLICE
        while time.process_time() < until:
            pass
        time.sleep(max(0.0, time.process_time() / cores - (time.monotonic() - began)))


@contextmanager
def busy_core(cores: float) -> Iterator[None]:
    """:param cores: kept busy within the block, at most 1; 0 = none"""
    if cores <= 0:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", __name__, f"{min(cores, 1.0):.4f}"], cwd=ROOT)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"the loop ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    _work(float(sys.argv[1]))
