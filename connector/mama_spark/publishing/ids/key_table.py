"""Known keys: a hash table with open addressing, in columns, with a number for each; a smaller Bloom filter. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mama_spark.contracts.message import Bools, Int64s

UInt64s = npt.NDArray[np.uint64]
Keys = tuple[UInt64s, ...]  #: in columns; the first is evenly distributed

_GROWTH = 4


class KeyTable:
    """A table that is made with the first key, and grows with its keys.

    :param columns: columns of a key, 8 bytes each, and 8 more for its number
    :param slots: largest number of slots, a power of two; ``first``: the first one
    :param load: the part of the slots that keys may take. Then it takes no new key, for good: one that was turned away
        must not be taken in later
    :ivar numbers: numbers by slot; 0 = the slot is free
    """

    def __init__(self, columns: int, slots: int, load: float, first: int) -> None:
        self._most_slots, self._load, self._first = slots, load, min(first, slots)
        self._count, self.full = 0, False
        self._keys: Keys = (np.empty(0, np.uint64),) * columns
        self.numbers: Int64s = np.empty(0, np.int64)

    @property
    def nbytes(self) -> int:
        return 8 * (len(self._keys) + 1) * self._most_slots

    def find(self, keys: Keys, numbers: Int64s) -> Int64s:
        """The slots of keys, until the next call; -1 for those that are new when the table is full.

        :param numbers: number of each key if it is new, above 0; of equal keys the last one counts
        """
        self._grow(self._count + len(numbers))
        return self._place(keys, numbers)

    def _grow(self, count: int) -> None:
        size = len(self.numbers) or self._first
        while count > self._load * size and size < self._most_slots:
            size = min(_GROWTH * size, self._most_slots)
        if size > len(self.numbers):
            held = np.flatnonzero(self.numbers)
            keys, numbers = tuple(column[held] for column in self._keys), self.numbers[held]
            self._keys, self.numbers = tuple(np.zeros(size, np.uint64) for _ in keys), np.zeros(size, np.int64)
            self._count = 0
            self._place(keys, numbers)

    def _place(self, keys: Keys, numbers: Int64s) -> Int64s:
        mask = len(self.numbers) - 1
        slots = (keys[0] & np.uint64(mask)).astype(np.int64)
        left: Int64s = np.arange(len(slots))
        while len(left):
            at = slots[left]
            free = self.numbers[at] == 0
            if free.any():
                self._take(at[free], left[free], keys, numbers, slots)
                if self.full:
                    left, at = left[~free], at[~free]
            others = self._others(at, tuple(column[left] for column in keys))
            left = left[others]
            slots[left] = (at[others] + 1) & mask
        return slots

    def _take(self, at: Int64s, new: Int64s, keys: Keys, numbers: Int64s, slots: Int64s) -> None:
        self.full = self.full or self._count + len(new) > self._load * len(self.numbers)
        if self.full:
            slots[new] = -1
            return
        self.numbers[at] = ~new
        mine = self.numbers[at] == ~new
        at, new = at[mine], new[mine]
        for column, values in zip(self._keys, keys, strict=True):
            column[at] = values[new]
        self.numbers[at] = numbers[new]
        self._count += len(new)

    def _others(self, at: Int64s, keys: Keys) -> Bools:
        others = np.zeros(len(at), np.bool_)
        for column, values in zip(self._keys, keys, strict=True):
            others |= column[at] != values
        return others


#: Keys that are remembered one by one before the filter is made. The kernel gives memory in large pages and fills each
#: with zeros: the bits of ten keys touch ten of them, which takes longer than to publish ten rows.
_FEW = 2_048


class BloomFilter:
    """Bloom filter of one 64-bit word a key, four bits in it, in ``nbytes`` of memory at most. Pages are touched as
    keys come. The first few keys are exact, and need no page."""

    def __init__(self, nbytes: int) -> None:
        self._size = nbytes // 8
        self._few: UInt64s | None = np.empty(0, np.uint64)  # None = there are more, and they are in the words
        self._words: UInt64s = self._few

    @property
    def nbytes(self) -> int:
        return 8 * self._size

    def add(self, keys: UInt64s) -> Bools:
        """Add distinct keys; true for those that were, perhaps, added before."""
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
