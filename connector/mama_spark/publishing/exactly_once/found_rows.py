"""Rows of a batch that were found in a stream, as a multiset: each matches one row of the repetition. Pure.

A row takes 18 to 24 bytes: 96 bits of its content's hash, its sequence (as offset), and the partition and number of its
id, in as few bytes as its run needs. New rows go into columns of half a million rows, allocated once; full columns
become sorted runs, so memory grows with the stored rows alone. Rows of equal content are ordered by sequence, so all
readers of a range choose the same one next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import Bools, Int64s

RUN = 1 << 19  #: rows of a sorted run
#: State of a row, in the upper bits of its number.
_FREE, _MINE, _TAKEN = 0, 1, 2
_FLAG_BITS = 2
_MOST_NUMBER = (1 << 30) - 1

UInt64s = npt.NDArray[np.uint64]
UInt32s = npt.NDArray[np.uint32]
Unsigned = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Keys:
    """96 bits of the hash of each row's content."""

    high: UInt64s
    low: UInt32s

    def __len__(self) -> int:
        return len(self.high)

    def take(self, rows: Int64s | Bools) -> Keys:
        return Keys(self.high[rows], self.low[rows])


def keys_of(digests: npt.NDArray[np.uint8]) -> Keys:
    """The keys of XXH3-128 digests of contents, shape (n, 16)."""
    words = np.ascontiguousarray(digests)
    return Keys(words.view("<u8")[:, 0].copy(), words.view("<u4")[:, 2].copy())


@dataclass(frozen=True, slots=True)
class Found:
    """Result of matching, one element a row: sequence of its stored row (-1: none), partition and number of its id."""

    sequence: Int64s
    partition: Int64s
    number: Int64s

    @property
    def rows(self) -> Bools:
        matched: Bools = self.sequence >= 0
        return matched

    @classmethod
    def nothing(cls, n: int) -> Found:
        return cls(np.full(n, -1, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))

    def put(self, rows: Int64s, some: Found) -> None:
        self.sequence[rows], self.partition[rows], self.number[rows] = some.sequence, some.partition, some.number


@dataclass(frozen=True, slots=True)
class Distinct:
    """Rows grouped by content.

    :ivar keys: distinct keys; ``counts``: number of rows of each
    :ivar order: row indices, grouped by key; ``starts``: first place of each key in ``order``
    """

    keys: Keys
    counts: Int64s
    order: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    starts: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def head(self, n: int) -> Distinct:
        """The first ``n`` keys and their counts, without row indices."""
        return Distinct(self.keys.take(np.arange(min(n, len(self.keys)))), self.counts[:n])

    @classmethod
    def of(cls, keys: Keys) -> Distinct:
        order = np.lexsort((keys.low, keys.high))
        high, low = keys.high[order], keys.low[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        starts = np.flatnonzero(new)
        counts = np.diff(np.append(starts, len(order)))
        return cls(Keys(high[starts], low[starts]), counts, order, starts)


def _narrow(values: UInt32s, spare: int = 0) -> Unsigned:
    """The values in the narrowest type that leaves ``spare`` bits free."""
    most = int(values.max())
    for kind in (np.uint8, np.uint16):
        if most < 1 << (np.iinfo(kind).bits - spare):
            return values.astype(kind)
    return values


class _Columns:
    def __init__(self, size: int) -> None:
        self.count, self._size = 0, size
        self.high = np.empty(size, np.uint64)
        self.low, self.offset, self.partition, self.number = (np.empty(size, np.uint32) for _ in range(4))

    @property
    def is_full(self) -> bool:
        return self.count == self._size

    def add(self, keys: Keys, offset: Int64s, partition: Int64s, number: Int64s) -> int:
        """Add as many rows as fit; returns their number."""
        taken = min(len(keys), self._size - self.count)
        here, some = slice(self.count, self.count + taken), slice(taken)
        self.high[here], self.low[here] = keys.high[some], keys.low[some]
        self.offset[here], self.partition[here] = offset[some], partition[some]
        self.number[here] = np.minimum(number[some], _MOST_NUMBER)
        self.count += taken
        return taken


class _Run:
    """Rows sorted by ``high``, then by sequence."""

    def __init__(self, rows: _Columns) -> None:
        n = rows.count
        order = np.argsort(rows.high[:n], kind="stable")
        self.high, self.low, self.offset = rows.high[order], rows.low[order], rows.offset[order]
        self.partition = _narrow(rows.partition[:n])[order]
        self._number = _narrow(rows.number[:n], _FLAG_BITS)[order]
        bits = 8 * self._number.itemsize - _FLAG_BITS
        self._bits, self._mask = self._number.dtype.type(bits), self._number.dtype.type((1 << bits) - 1)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self.high, self.low, self.offset, self.partition, self._number))

    def numbers(self, places: Int64s | Bools | slice) -> Int64s:
        return (self._number[places] & self._mask).astype(np.int64)

    def have(self, places: Int64s | slice, flag: int) -> Bools:
        found: Bools = self._number[places] >> self._bits == flag
        return found

    def mark(self, places: Int64s, flag: int) -> None:
        self._number[places] = (self._number[places] & self._mask) | self._number.dtype.type(flag << int(self._bits))

    def places(self, keys: Keys, which: Int64s, flag: int, want: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
        """Find rows with this flag: (indices into ``keys``, places in this run).

        :param which: indices of the keys to find; ``want``: maximum number of rows of each key of ``keys``
        """
        low = np.searchsorted(self.high, keys.high[which])
        n = np.searchsorted(self.high, keys.high[which], "right") - low
        one = np.flatnonzero(n == 1)
        at = low[one]
        fits = (self.low[at] == keys.low[which[one]]) & self.have(at, flag)
        yield which[one[fits]], at[fits]
        for i in np.flatnonzero(n > 1).tolist():  # contents stored more than once
            content, part = int(which[i]), slice(int(low[i]), int(low[i] + n[i]))
            free = (self.low[part] == keys.low[content]) & self.have(part, flag)
            rows = part.start + np.flatnonzero(free)[: int(want[content])]
            yield np.full(len(rows), content), rows


class FoundRows:
    """Stored rows with sequences above ``after``."""

    def __init__(self, after: int, run: int = RUN) -> None:
        self._after, self._size = after, run
        self._runs: list[_Run] = []
        self._new: _Columns | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self._runs)

    def add(self, keys: Keys, sequences: Int64s, partitions: Int64s, numbers: Int64s) -> None:
        """Add rows, ascending by sequence. ConfigError: one lies more than four billion sequences above ``after``."""
        if not len(keys):
            return
        offsets = sequences - self._after
        if int(offsets[-1]) >= 1 << 32:
            raise ConfigError(
                "more than 4,294,967,295 messages were stored since the batch began: that is too long ago"
            )
        added = 0
        while added < len(keys):
            if self._new is None:
                self._new = _Columns(self._size)
            rest = slice(added, None)
            some = Keys(keys.high[rest], keys.low[rest])
            added += self._new.add(some, offsets[rest], partitions[rest], numbers[rest])
            if self._new.is_full:
                self._sort(self._new)
        self._count += len(keys)

    def _sort(self, rows: _Columns) -> None:
        if rows.count:
            self._runs.append(_Run(rows))
            rows.count = 0

    def finish(self) -> None:
        """Sort the last rows; called after the last :meth:`add`."""
        if self._new is not None:
            self._sort(self._new)
            self._new = None

    def plan(self, rows: Distinct) -> Plan:
        """Choose stored rows for these rows: first those that this partition has claimed, then free ones."""
        plan = Plan(self, rows)
        for flag in (_MINE, _FREE):
            for run in range(len(self._runs)):
                which = np.flatnonzero(plan.want > 0)
                if not len(which):
                    return plan
                for contents, places in self._runs[run].places(rows.keys, which, flag, plan.want):
                    plan.add(run, contents, places, mine=flag == _MINE)
        return plan

    def take(self, plan: Plan) -> Found:
        """Match rows with the stored rows of a plan; the table must be unchanged since :meth:`plan`."""
        n = len(plan.rows.order)
        found = Found.nothing(n)
        for run, rows, places in plan.matched:
            of = self._runs[run]
            found.sequence[rows] = of.offset[places].astype(np.int64) + self._after
            found.partition[rows] = of.partition[places]
            found.number[rows] = of.numbers(places)
            of.mark(places, _TAKEN)
        return found

    def claim(self, contents: Distinct, *, mine: bool) -> None:
        """Mark the first free rows of each content as claimed by this partition (``mine``) or by another one."""
        flag = _MINE if mine else _TAKEN
        want = contents.counts.copy()
        for run in self._runs:
            which = np.flatnonzero(want > 0)
            for found, places in run.places(contents.keys, which, _FREE, want):
                run.mark(places, flag)
                np.subtract.at(want, found, 1)

    def numbers(self, keys: Keys, partition: int) -> dict[int, Int64s]:
        """Numbers in the stored ids of this partition, by index of the key; keys without any are left out."""
        parts: dict[int, list[Int64s]] = {}
        for run in self._runs:
            low = np.searchsorted(run.high, keys.high)
            high = np.searchsorted(run.high, keys.high, "right")
            for i in np.flatnonzero(high > low).tolist():
                some = slice(int(low[i]), int(high[i]))
                own = (run.low[some] == keys.low[i]) & (run.partition[some] == partition)
                if own.any():
                    parts.setdefault(i, []).append(run.numbers(some)[own])
        return {i: np.unique(np.concatenate(some)) for i, some in parts.items()}


class Plan:
    """Stored rows that could settle rows.

    :ivar want, new: rows of each content that nothing matches yet; that must be claimed
    :ivar matched: (run, rows, places)
    """

    def __init__(self, found: FoundRows, rows: Distinct) -> None:
        self.rows = rows
        self.want = rows.counts.copy()
        self.new = np.zeros(len(rows.counts), np.int64)
        self.matched: list[tuple[int, Int64s, Int64s]] = []

    def add(self, run: int, contents: Int64s, places: Int64s, *, mine: bool) -> None:
        """Plan ``places`` for ascending ``contents``, one for each: each content once in a call, or one alone."""
        if not len(contents):
            return
        before = self.rows.counts[contents] - self.want[contents]
        ranks = np.arange(len(contents)) if len(contents) > 1 and contents[0] == contents[-1] else 0
        rows = self.rows.order[self.rows.starts[contents] + before + ranks]
        self.matched.append((run, rows, places))
        np.subtract.at(self.want, contents, 1)
        if not mine:
            np.add.at(self.new, contents, 1)

    def claims(self) -> Distinct:
        """Contents to claim, with the number of rows of each."""
        which = np.flatnonzero(self.new)
        return Distinct(self.rows.keys.take(which), self.new[which])


def free_numbers(wanted: Int64s, taken: Int64s) -> Int64s:
    """The ``wanted``-th numbers from 0 that are missing in ``taken`` (ascending). So a repeated row gets the id that an
    earlier attempt gave to an equal row and did not store."""
    below = taken - np.arange(len(taken))  # free numbers below each
    return wanted + np.searchsorted(below, wanted, "right")
