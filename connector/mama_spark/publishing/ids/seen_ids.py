"""Tells which message ids of one task came before, exactly, in bounded memory however many rows the task has.

An id is remembered as its XXH3-128 digest, 16 bytes. The newest million digests are in memory, as sorted runs; older
ones are in sorted runs of a million in a temporary file without a name, which ends with its process. A filter before
the runs (at most 64 MiB) says of nearly every new id that no run has it, so that the file is rarely read. All steps
work on the ids of a batch together.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.message import Bools, Int64s

from .bloom_filter import BloomFilter, UInt64s

RUN = 1 << 20  #: digests in memory, and in each run of the file
#: Bytes of the filter: it begins with the first, doubles while it has less than two bytes a digest, and ends with the
#: last, at which 100 million ids make it say *perhaps* of one new id in twelve.
FILTER_BYTES = (1 << 16, 1 << 26)


class _Run(NamedTuple):
    """Digests in two columns, ascending by the first."""

    high: UInt64s
    low: UInt64s

    def has(self, high: UInt64s, low: UInt64s) -> Bools:
        at = np.searchsorted(self.high, high)
        at[at == len(self.high)] = 0
        found: Bools = (self.high[at] == high) & (self.low[at] == low)
        return found


class SeenIds:
    """The ids of one task.

    :param folder: for the temporary file; None = where temporary files go
    :param run: see :data:`RUN`
    """

    def __init__(self, folder: str | None = None, run: int = RUN) -> None:
        self._folder, self._run = folder, run
        self._filter = BloomFilter(FILTER_BYTES[0])
        self._recent: list[_Run] = []
        self._stored: list[_Run] = []
        self._file: IO[bytes] | None = None
        self._count = 0

    @property
    def nbytes(self) -> int:
        """Bytes in memory, without those of the file."""
        return self._filter.nbytes + sum(run.high.nbytes + run.low.nbytes for run in self._recent)

    def add(self, digests: npt.NDArray[np.uint8]) -> Bools:
        """Remember ids; which of them came before, in an earlier call or further ahead in this one.

        :param digests: shape (n, 16)
        :raises Unavailable: the temporary file cannot be written
        """
        columns = np.ascontiguousarray(digests).view(np.uint64)
        order = np.argsort(columns[:, 0], kind="stable")
        high = columns[order, 0]
        if (high[1:] == high[:-1]).any():  # stable: of equal ids the first comes first
            order = np.lexsort((columns[:, 1], columns[:, 0]))
            high = columns[order, 0]
        low = columns[order, 1]
        seen = np.zeros(len(order), np.bool_)
        seen[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        new = np.flatnonzero(~seen)
        self._grow_filter(len(new))
        perhaps = new[self._filter.add(high[new])]
        if len(perhaps):
            seen[perhaps] = self._known(high[perhaps], low[perhaps])
            new = np.flatnonzero(~seen)
        self._keep(_Run(high[new], low[new]))
        result = np.empty(len(order), np.bool_)
        result[order] = seen
        return result

    def close(self) -> None:
        """Forget all. May be repeated."""
        self._recent, self._stored = [], []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _known(self, high: UInt64s, low: UInt64s) -> Bools:
        known = np.zeros(len(high), np.bool_)
        left: Int64s = np.arange(len(high))
        for run in (*reversed(self._recent), *reversed(self._stored)):
            found = run.has(high[left], low[left])
            known[left[found]] = True
            left = left[~found]
            if not len(left):
                break
        return known

    def _grow_filter(self, more: int) -> None:
        size = self._filter.nbytes
        while size < min(2 * (self._count + more), FILTER_BYTES[1]):
            size *= 2
        if size > self._filter.nbytes:
            self._filter = BloomFilter(size)
            for run in (*self._stored, *self._recent):
                self._filter.add(run.high)

    def _keep(self, run: _Run) -> None:
        """Runs are merged so that each is at least twice as long as the next: few to look through, and each digest is
        sorted a few times only."""
        if not len(run.high):
            return
        self._count += len(run.high)
        runs = self._recent
        runs.append(run)
        while len(runs) > 1 and len(runs[-2].high) < 2 * len(runs[-1].high):
            runs[-2:] = [_merged(runs[-2:])]
        if sum(len(run.high) for run in runs) >= self._run:
            self._stored.append(self._store(_merged(runs)))
            runs.clear()

    def _store(self, run: _Run) -> _Run:
        try:
            if self._file is None:
                self._file = _nameless_file(self._folder)
            start, n = self._file.seek(0, 2), len(run.high)
            for column in run:
                view = memoryview(column.tobytes())
                while len(view):
                    view = view[self._file.write(view) :]
            high, low = (np.memmap(self._file, np.uint64, "r", start + at, (n,)) for at in (0, 8 * n))
        except OSError as e:
            raise Unavailable(
                f"the ids of the rows cannot be kept in a temporary file ({e}): a task of more than {self._run:,} rows "
                f"needs 16 bytes a row in {self._folder or _temporary_folder()} to recognise doubled ids; make room "
                f"there, name another folder by the environment variable TMPDIR, or use more partitions"
            ) from e
        return _Run(high, low)


def _nameless_file(folder: str | None) -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="mama-ids-", dir=folder, buffering=0)


def _temporary_folder() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # it takes a folder that it could write to
        return os.environ.get("TMPDIR", "/tmp")


def _merged(runs: list[_Run]) -> _Run:
    if len(runs) == 1:
        return runs[0]
    high = np.concatenate([run.high for run in runs])
    order = np.argsort(high, kind="stable")  # which merges what is sorted in parts
    return _Run(high[order], np.concatenate([run.low for run in runs])[order])
