"""Rows of a batch that were found in a stream, as a multiset: each serves one row of the repetition. Pure.

24 bytes a row: 96 bits of the hash of its content, its sequence (as offset), and the partition and number that its id
names. Rows are kept in sorted runs of a million or more, so that memory grows by what is found and by nothing else.
Rows of one content are in the order of their sequences, run by run, so all who read a range choose the same one next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mama_spark.errors import ConfigError
from mama_spark.message import Bools, Int64s

RUN = 1 << 20  #: rows that are sorted together
_TAKEN, _MINE, _NUMBER = np.uint32(1 << 31), np.uint32(1 << 30), np.uint32((1 << 30) - 1)

UInt64s = npt.NDArray[np.uint64]
UInt32s = npt.NDArray[np.uint32]


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
    """:param digests: XXH3-128 of the content of each row, shape (n, 16)"""
    words = np.ascontiguousarray(digests)
    return Keys(words.view("<u8")[:, 0].copy(), words.view("<u4")[:, 2].copy())


@dataclass(frozen=True, slots=True)
class Found:
    """What serves each of some rows.

    :ivar sequence: in the stream, -1 where nothing serves the row
    :ivar partition, number: that the id of the stored message names
    """

    sequence: Int64s
    partition: Int64s
    number: Int64s

    @property
    def rows(self) -> Bools:
        """Which rows are served."""
        served: Bools = self.sequence >= 0
        return served


@dataclass(frozen=True, slots=True)
class Distinct:
    """Rows by their content.

    :ivar keys: each once; ``counts``: how many rows have it
    :ivar order: the rows, those of the first key first; ``starts``: where those of each key begin
    """

    keys: Keys
    counts: Int64s
    order: Int64s
    starts: Int64s

    @classmethod
    def of(cls, keys: Keys) -> Distinct:
        order = np.lexsort((keys.low, keys.high))
        high, low = keys.high[order], keys.low[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        starts = np.flatnonzero(new)
        counts = np.diff(np.append(starts, len(order)))
        return cls(Keys(high[starts], low[starts]), counts, order, starts)


class _Run:
    """Rows ascending by ``high``; those of one content in the order of their sequences."""

    def __init__(self, keys: Keys, offset: UInt32s, partition: UInt32s, number: UInt32s) -> None:
        order = np.argsort(keys.high, kind="stable")
        self.high, self.low = keys.high[order], keys.low[order]
        self.offset, self.partition, self.number = offset[order], partition[order], number[order]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self.high, self.low, self.offset, self.partition, self.number))

    def places(self, keys: Keys, which: Int64s, flags: np.uint32, want: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
        """Rows of these contents whose flags, of ``_TAKEN`` and ``_MINE``, are ``flags``: (contents, places).

        :param which: contents that are looked for; ``want``: how many rows of each content at most
        """
        low = np.searchsorted(self.high, keys.high[which])
        n = np.searchsorted(self.high, keys.high[which], "right") - low
        one = np.flatnonzero(n == 1)
        at = low[one]
        fits = (self.low[at] == keys.low[which[one]]) & (self.number[at] & ~_NUMBER == flags)
        yield which[one[fits]], at[fits]
        for i in np.flatnonzero(n > 1).tolist():  # contents that were stored more than once
            content, part = int(which[i]), slice(int(low[i]), int(low[i] + n[i]))
            free = (self.low[part] == keys.low[content]) & (self.number[part] & ~_NUMBER == flags)
            rows = part.start + np.flatnonzero(free)[: int(want[content])]
            yield np.full(len(rows), content), rows


class FoundRows:
    """:param after: sequence behind which rows were looked for"""

    def __init__(self, after: int, run: int = RUN) -> None:
        self._after, self._size = after, run
        self._runs: list[_Run] = []
        self._new: list[tuple[Keys, UInt32s, UInt32s, UInt32s]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self._runs)

    # --- while reading back ------------------------------------------------------------------------------------

    def add(self, keys: Keys, sequences: Int64s, partitions: Int64s, numbers: Int64s) -> None:
        """Rows, ascending by sequence.

        :raises ConfigError: more than four billion messages behind ``after``
        """
        if not len(keys):
            return
        offsets = sequences - self._after
        if int(offsets[-1]) >= 1 << 32:
            raise ConfigError(
                "more than 4,294,967,295 messages were stored since the batch began: that is too long ago"
            )
        columns = (offsets, partitions, np.minimum(numbers, int(_NUMBER)))
        offset, partition, number = (column.astype(np.uint32) for column in columns)
        self._new.append((keys, offset, partition, number))
        self._count += len(keys)
        if sum(len(part[0]) for part in self._new) >= self._size:
            self.finish()

    def finish(self) -> None:
        """After the last :meth:`add`."""
        parts, self._new = self._new, []
        if parts:
            keys = Keys(np.concatenate([p[0].high for p in parts]), np.concatenate([p[0].low for p in parts]))
            self._runs.append(_Run(keys, *(np.concatenate([p[i] for p in parts]) for i in (1, 2, 3))))

    # --- while rows come -----------------------------------------------------------------------------------------

    def plan(self, rows: Distinct) -> Plan:
        """What could serve these rows: first what was claimed for them before, then what is free."""
        plan = Plan(self, rows)
        for flags in (_MINE, np.uint32(0)):
            for run in range(len(self._runs)):
                which = np.flatnonzero(plan.want > 0)
                if not len(which):
                    return plan
                for contents, places in self._runs[run].places(rows.keys, which, flags, plan.want):
                    plan.add(run, contents, places, mine=flags == _MINE)
        return plan

    def take(self, plan: Plan) -> Found:
        """Use up what the plan has; nothing may have changed since it was made."""
        n = len(plan.rows.order)
        found = Found(np.full(n, -1, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))
        for run, rows, places in plan.served():
            of = self._runs[run]
            found.sequence[rows] = of.offset[places].astype(np.int64) + self._after
            found.partition[rows] = of.partition[places]
            found.number[rows] = of.number[places] & _NUMBER
            of.number[places] = (of.number[places] & ~_MINE) | _TAKEN
        return found

    def claim(self, contents: Distinct, *, mine: bool) -> None:
        """Note a claim from the log: the first free rows of each content are claimed, by this partition (``mine``) or
        by another one."""
        flag = _MINE if mine else _TAKEN
        want = contents.counts.copy()
        for run in self._runs:
            which = np.flatnonzero(want > 0)
            for found, places in run.places(contents.keys, which, np.uint32(0), want):
                run.number[places] |= flag
                np.subtract.at(want, found, 1)

    def numbers(self, keys: Keys, partition: int) -> dict[int, Int64s]:
        """The numbers that ids of this partition have for contents, by the place of the content in ``keys``; without
        those for which there are none."""
        parts: dict[int, list[Int64s]] = {}
        for run in self._runs:
            low = np.searchsorted(run.high, keys.high)
            high = np.searchsorted(run.high, keys.high, "right")
            for i in np.flatnonzero(high > low).tolist():
                some = slice(int(low[i]), int(high[i]))
                own = (run.low[some] == keys.low[i]) & (run.partition[some] == partition)
                if own.any():
                    parts.setdefault(i, []).append((run.number[some][own] & _NUMBER).astype(np.int64))
        return {i: np.unique(np.concatenate(some)) for i, some in parts.items()}


class Plan:
    """Which found rows could serve which rows.

    :ivar want: rows of each content that nothing serves yet
    :ivar new: rows of each content that must be claimed
    """

    def __init__(self, found: FoundRows, rows: Distinct) -> None:
        self.rows = rows
        self.want = rows.counts.copy()
        self.new = np.zeros(len(rows.counts), np.int64)
        self._served: list[tuple[int, Int64s, Int64s]] = []

    def add(self, run: int, contents: Int64s, places: Int64s, *, mine: bool) -> None:
        """:param contents: ascending, as many as there are ``places``; a content once a call, or alone"""
        if not len(contents):
            return
        before = self.rows.counts[contents] - self.want[contents]
        ranks = np.arange(len(contents)) if len(contents) > 1 and contents[0] == contents[-1] else 0
        rows = self.rows.order[self.rows.starts[contents] + before + ranks]
        self._served.append((run, rows, places))
        np.subtract.at(self.want, contents, 1)
        if not mine:
            np.add.at(self.new, contents, 1)

    def served(self) -> list[tuple[int, Int64s, Int64s]]:
        """(run, rows, places)"""
        return self._served

    def claims(self) -> Distinct:
        """Contents to claim, with how many rows of each."""
        which = np.flatnonzero(self.new)
        empty = np.empty(0, np.int64)
        return Distinct(self.rows.keys.take(which), self.new[which], empty, empty)


def free_numbers(wanted: Int64s, taken: Int64s) -> Int64s:
    """The ``wanted``-th numbers from 0 on that are not in ``taken``, which ascends. Rows of a repetition that are
    numbered by this get the ids that an attempt before it gave to equal rows that it did not store."""
    below = taken - np.arange(len(taken))  # numbers below each that are free
    return wanted + np.searchsorted(below, wanted, "right")
