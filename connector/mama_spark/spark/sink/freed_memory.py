"""Keeps memory that was freed in the process, instead of giving it back to the kernel and asking for it again.

Columns of numbers of one block of packs have some hundred kilobytes each. glibc gives memory at the end of its heap
back as soon as a few of them are freed, so the kernel had to find and clear the same pages anew for each block.
"""

from __future__ import annotations

import numpy as np

#: glibc keeps twice as much as the largest array that was freed, up to 64 MiB.
_LARGEST = 16 << 20


def keep_freed_memory() -> None:
    """For the whole process; other C libraries than glibc do as they always did."""
    np.empty(_LARGEST, np.uint8)  # freed at once: its pages were never touched
