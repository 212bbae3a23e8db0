"""Keeps memory that was freed in the process, instead of giving it back to the kernel and asking for it again.

Columns of numbers of one block of packs have some hundred kilobytes each. glibc gives memory at the end of its heap
back as soon as a few of them are freed, so the kernel had to find and clear the same pages anew for each block.
"""

from __future__ import annotations

import contextlib
import ctypes

#: Freed bytes at the end of the heap that stay, and bytes from which on an array has pages of its own. glibc goes up to
#: 64 and 32 MiB by itself, depending on what was freed before.
_STAYS, _ALONE = 32 << 20, 8 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """For the whole process; other C libraries than glibc do as they always did."""
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_TRIM_THRESHOLD, _STAYS)
        set_option(_M_MMAP_THRESHOLD, _ALONE)
