"""Returns freed memory to the system, where the C library offers that."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def trim() -> None:
    """Return what is free. glibc keeps what the threads of ended streams have freed, a hundred kilobytes each."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
