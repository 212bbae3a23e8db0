"""Gives memory back to the operating system between test files; a worker of pytest runs a hundred of them."""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        if "pyarrow" in sys.modules:
            sys.modules["pyarrow"].default_memory_pool().release_unused()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # what threads have freed stays in their arenas else
