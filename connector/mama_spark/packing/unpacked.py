"""The rows that records were unpacked to, as columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..contracts.message import Int64s


class TypedRun(NamedTuple):
    """Typed rows of one pack.

    :ivar first: their first row among the rows of :class:`Unpacked`
    """

    first: int
    columns: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Unpacked:
    """``n`` rows, in the order of their records and packs.

    :ivar records: record that each comes from, ascending: take other columns of the records by it
    :ivar index: place in the pack, from 0; -1 = the record is no pack, or a corrupt one
    :ivar values: binary; of a plain record and of a corrupt pack the payload; null where a row is typed
    :ivar header_pool: headers that rows have; None = no row has any. Of plain records and of corrupt packs they are the
        record's, whole. Rows of one pack may share an element, for copies of it may be larger than any message
    :ivar header_at: the element of the pool that a row has; None = the one at its own place
    :ivar ids: ids of rows inside packs (of typed rows: their column ``id``, if it is a string), null elsewhere: a plain
        record has it among its headers; None = all null
    :ivar typed: the rows that are typed columns, ascending
    :ivar errors: row -> why its pack could not be read
    """

    records: Int64s
    index: npt.NDArray[np.int32]
    values: pa.Array
    header_pool: pa.Array | None = None
    header_at: Int64s | None = None
    ids: pa.Array | None = None
    typed: list[TypedRun] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def headers(self) -> pa.Array | None:
        """Copied; None = no row has any."""
        if self.header_pool is None or self.header_at is None:
            return self.header_pool
        return self.header_pool.take(pa.array(self.header_at))

    def slice(self, start: int, stop: int) -> Unpacked:
        n = stop - start
        pool = self.header_pool
        typed = []
        for first, columns in self.typed:  # packs, not rows
            low, high = max(start, first), min(stop, first + columns.num_rows)
            if low < high:
                typed.append(TypedRun(low - start, columns.slice(low - first, high - low)))
        return replace(
            self,
            records=self.records[start:stop],
            index=self.index[start:stop],
            values=self.values.slice(start, n),
            header_pool=pool if pool is None or self.header_at is not None else pool.slice(start, n),
            header_at=None if self.header_at is None else self.header_at[start:stop],
            ids=None if self.ids is None else self.ids.slice(start, n),
            typed=typed,
            errors={row - start: reason for row, reason in self.errors.items() if start <= row < stop},
        )


def sparse_texts(texts: Mapping[int, str], n: int) -> pa.Array:
    """A column of ``n`` rows: the texts of some, null in the others."""
    if not texts:
        return pa.nulls(n, pa.string())
    place = np.full(n, -1, np.int64)
    place[list(texts)] = np.arange(len(texts))
    return pa.array(list(texts.values()), pa.string()).take(pa.array(place, mask=place < 0))
