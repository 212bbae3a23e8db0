"""Returns freed memory to the system, where the C library offers that."""

from __future__ import annotations

import time
from contextlib import suppress

#: Seconds between two calls that have an effect: each takes milliseconds.
INTERVAL = 0.1
_trimmed_at = -INTERVAL


def trim() -> None:
    """Return what is free, once in :data:`INTERVAL`; glibc keeps some hundred kilobytes of each ended or resting
    stream."""
    global _trimmed_at
    now = time.monotonic()
    if now < _trimmed_at + INTERVAL:
        return
    _trimmed_at = now
    from ctypes import CDLL  # not needed to start

    with suppress(OSError, AttributeError):  # another C library
        CDLL(None).malloc_trim(0)
