"""Arrays that are freed leave their pages in the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource
import numpy as np
from mama_spark.spark.sink.freed_memory import keep_freed_memory
keep_freed_memory()
held = [np.ones(1 << 16) for _ in range(4)]  # an array of 512 KiB has 128 pages
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    del held
    held = [np.ones(1 << 16) for _ in range(4)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide themselves")
def test_pages_of_freed_arrays_are_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 10_000, "of 51,200 pages"
