"""A filter of 64-bit keys: which of them were, perhaps, added before. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]


class BloomFilter:
    """Bloom filter of one 64-bit word a key, four bits in it. Pages are touched as keys come."""

    def __init__(self, nbytes: int) -> None:
        self.words: UInt64s = np.zeros(nbytes // 8, np.uint64)

    def add(self, keys: UInt64s) -> npt.NDArray[np.bool_]:
        """Remember distinct keys; which of them were, perhaps, here before."""
        at = ((keys >> np.uint64(32)) * np.uint64(len(self.words))) >> np.uint64(32)
        bits = np.zeros(len(keys), np.uint64)
        for shift in (0, 6, 12, 18):
            bits |= np.uint64(1) << ((keys >> np.uint64(shift)) & np.uint64(63))
        old: npt.NDArray[np.bool_] = (self.words[at] & bits) == bits
        todo = np.flatnonzero(~old)
        while len(todo):  # of the keys that share a word, each pass writes the last one
            self.words[at[todo]] |= bits[todo]
            todo = todo[(self.words[at[todo]] & bits[todo]) != bits[todo]]
        return old
