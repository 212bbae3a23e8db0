"""A filter of 64-bit keys: which of them were, perhaps, added before. Pure."""

from __future__ import annotations

import numpy as np

from mama_spark.contracts.message import Bools

from .key_table import UInt64s

#: Keys that are remembered one by one before the filter is made. The kernel gives memory in large pages and fills each
#: with zeros: the bits of ten keys touch ten of them, which takes longer than to publish ten rows.
_FEW = 2_048


class BloomFilter:
    """Bloom filter of one 64-bit word a key, four bits in it. Pages are touched as keys come; of the first few keys it
    is exact, and needs none.

    :param nbytes: of memory, at most
    """

    def __init__(self, nbytes: int) -> None:
        self._size = nbytes // 8
        self._few: UInt64s | None = np.empty(0, np.uint64)  # None = there are more, and they are in the words
        self._words: UInt64s = self._few

    @property
    def nbytes(self) -> int:
        """Bytes of memory, at most."""
        return 8 * self._size

    def add(self, keys: UInt64s) -> Bools:
        """Remember distinct keys; which of them were, perhaps, here before."""
        if self._few is not None:
            if len(self._few) + len(keys) <= min(_FEW, self._size):
                known = np.isin(keys, self._few)
                self._few = np.concatenate([self._few, keys[~known]])
                return known
            few, self._few, self._words = self._few, None, np.zeros(self._size, np.uint64)
            self._set_bits(few)
        return self._set_bits(keys)

    def _set_bits(self, keys: UInt64s) -> Bools:
        at = ((keys >> np.uint64(32)) * np.uint64(self._size)) >> np.uint64(32)
        bits = np.zeros(len(keys), np.uint64)
        for shift in (0, 6, 12, 18):
            bits |= np.uint64(1) << ((keys >> np.uint64(shift)) & np.uint64(63))
        old: Bools = (self._words[at] & bits) == bits
        todo = np.flatnonzero(~old)
        while len(todo):  # of the keys that share a word, each pass writes the last one
            self._words[at[todo]] |= bits[todo]
            todo = todo[(self._words[at[todo]] & bits[todo]) != bits[todo]]
        return old
