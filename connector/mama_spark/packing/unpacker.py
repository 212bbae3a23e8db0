"""Unpacks records of a log into rows: all rows of a pack, one row of any other record.

A corrupt pack is one row with the reason, never an exception; nothing is allocated by an announced size before the
bytes are checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..message import HEADERS_TYPE, Bools, Int64s, payload_bounds, payload_sizes
from ..record_log import Records
from .format import (
    HEADERS,
    ID,
    MAX_ROWS,
    MESSAGE_TYPES,
    PACK,
    PACK_ROWS,
    VALUE,
    BadPack,
    PackFormat,
    carries_messages,
)
from .ipc import read_pack

#: Id of a pack; its rows have ids of their own, or none.
_ID_HEADER = "Nats-Msg-Id"
_PACK_HEADERS = [PACK, PACK_ROWS, _ID_HEADER]

_LARGE = 1 << 20  #: bytes of a payload whose lines are counted before they are split
_REASON = 1_200  #: characters: two schemas
_NOT_TYPED = "it has a value and no columns; name `value` in .schema(), or read other topics"
_ALIGNMENT = 8  #: bytes, of buffers of an Arrow IPC stream

#: Makes other columns of the typed rows of one pack. A ValueError, or an error of Arrow, means that the rows do not
#: fit: the pack counts as corrupt.
RowTransform = Callable[[pa.RecordBatch], pa.RecordBatch]


class TypedRun(NamedTuple):
    """Typed rows of one pack.

    :ivar first: their first row among the rows of :class:`Unpacked`
    :ivar columns: of ``columns.num_rows`` rows
    """

    first: int
    columns: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Unpacked:
    """``n`` rows, in the order of their records and packs.

    :ivar records: which record each comes from, ascending: take other columns of the records by it
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
        """Of each row, copied; None = no row has any."""
        if self.header_pool is None or self.header_at is None:
            return self.header_pool
        return self.header_pool.take(pa.array(self.header_at))

    def slice(self, start: int, stop: int) -> Unpacked:
        """The rows from ``start`` to ``stop``; shares memory."""
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


class PackHeaders(NamedTuple):
    """The headers of packs, one element a record.

    :ivar formats: string, null = no pack
    :ivar rows: string, null = not given; unchecked
    :ivar counts: the same as numbers; -1 = no number from 1 to the limit
    """

    formats: pa.Array
    rows: pa.Array
    counts: Int64s

    def slice(self, start: int, stop: int) -> PackHeaders:
        n = stop - start
        return PackHeaders(self.formats.slice(start, n), self.rows.slice(start, n), self.counts[start:stop])

    def announced(self, payloads: pa.Array) -> Int64s:
        """Announced rows of each record, which may be wrong, limited to what its bytes could hold."""
        counts = np.where(self.formats.is_null().to_numpy(zero_copy_only=False), 1, self.counts)
        return np.clip(counts, 1, 8 * payload_sizes(payloads) + 1)


def pack_headers(records: Records) -> PackHeaders | None:
    """None = none of them is a pack."""
    if records.headers is None:
        return None
    formats, rows = first_values(records.headers, PACK, PACK_ROWS)
    return None if formats.null_count == len(records) else PackHeaders(formats, rows, _numbers(rows))


def unpack(
    records: Records,
    transform: RowTransform | None = None,
    packs: PackHeaders | None = None,
    *,
    only_typed: bool = False,
) -> Unpacked:
    """All rows of ``records``.

    :param transform: of typed rows; None = they stay as they are
    :param packs: :func:`pack_headers` of the records, if computed already
    :param only_typed: a record that has no typed rows is one row with an error, as a corrupt pack is
    """
    packs = packs or pack_headers(records)
    if packs is None:
        return unpacked_as_is(records, only_typed=only_typed)
    return _Unpacking(records, packs, transform, only_typed).run()


def unpacked_as_is(records: Records, *, only_typed: bool = False) -> Unpacked:
    """One row a record, packed or not."""
    n = len(records)
    errors = dict.fromkeys(range(n), _NOT_TYPED) if only_typed else {}
    return Unpacked(np.arange(n), np.full(n, -1, np.int32), records.payloads, records.headers, errors=errors)


def announced_rows(records: Records) -> Int64s:
    """Announced rows of each record, which may be wrong, limited to what its bytes could hold."""
    packs = pack_headers(records)
    return np.ones(len(records), np.int64) if packs is None else packs.announced(records.payloads)


def _numbers(texts: pa.Array) -> Int64s:
    """Announced rows; -1 = no number from 1 to the limit."""
    return _map_distinct(texts, _number, -1)


def _map_distinct(texts: pa.Array, meaning: Callable[[str], int], missing: int) -> Int64s:
    """``meaning`` of each text, called once for each distinct one: packs of one batch mostly have the same headers."""
    known = texts.dictionary_encode()
    meanings = np.array([*map(meaning, known.dictionary.to_pylist()), missing])
    found: Int64s = meanings[known.indices.fill_null(len(meanings) - 1).to_numpy()]
    return found


def _number(text: str) -> int:
    number = int(text) if re.fullmatch("[1-9][0-9]{0,6}", text) else -1
    return number if number <= MAX_ROWS else -1


_PLAIN, _LINES, _ARROW, _UNKNOWN = range(4)


def _other_lines(there: int, announced: int) -> str:
    return f"it has {there:,} lines and announces {announced:,}"


def _format_code(text: str) -> int:
    return {PackFormat.LINES.value: _LINES, PackFormat.ARROW.value: _ARROW}.get(text, _UNKNOWN)


class _Unpacking:
    """Gathers columns of rows piece by piece, and then puts them into the order of the records."""

    def __init__(self, records: Records, packs: PackHeaders, transform: RowTransform | None, only_typed: bool) -> None:
        n = len(records)
        self._records = records
        self._errors: dict[int, str] = {}
        self._lengths = np.ones(n, np.int64)
        self._packed = np.zeros(n, np.bool_)
        self._values = _ColumnPieces(records.payloads, n)
        self._headers = _ColumnPieces(None, n)
        self._ids = _ColumnPieces(None, n)
        self._typed: dict[int, pa.RecordBatch] = {}
        self._kind, self._announced, self._counts = packs
        self._transform, self._only_typed = transform, only_typed

    def run(self) -> Unpacked:
        formats, counted = _map_distinct(self._kind, _format_code, _PLAIN), self._counts >= 0
        lines, arrows = formats == _LINES, formats == _ARROW
        for at in np.flatnonzero(formats == _UNKNOWN).tolist():
            self._errors[at] = f"{PACK}: {self._kind[at].as_py()[:100]!r} is unknown here"
        for at in np.flatnonzero((lines | arrows) & ~counted).tolist():
            self._errors[at] = f"{PACK_ROWS}: {(self._announced[at].as_py() or '')[:100]!r} is no number of rows"
        if self._only_typed:
            self._errors |= dict.fromkeys(np.flatnonzero((formats == _PLAIN) | (lines & counted)).tolist(), _NOT_TYPED)
        else:
            self._lines(np.flatnonzero(lines & counted))
        self._arrows(np.flatnonzero(arrows & counted))
        return self._placed()

    def _lines(self, at: Int64s) -> None:
        at = self._with_as_many_lines(at)
        if not len(at):
            return
        counts = self._counts
        payloads = self._records.payloads.take(pa.array(at)) if len(at) < len(self._records) else self._records.payloads
        lines = pc.split_pattern(payloads, "\n")  # needs a few bytes for each that is there, whatever is announced
        there = pc.list_value_length(lines).to_numpy(zero_copy_only=False).astype(np.int64)
        good = there == counts[at]
        for i in np.flatnonzero(~good).tolist():
            self._errors[int(at[i])] = _other_lines(int(there[i]), int(counts[at[i]]))
        if not good.all():
            at, lines = at[good], lines.filter(pa.array(good))
        self._lengths[at], self._packed[at] = counts[at], True
        self._values.add(at, counts[at], lines.flatten())

    def _with_as_many_lines(self, at: Int64s) -> Int64s:
        """Without large payloads of another number of lines than announced: an empty line takes more memory than its
        line feed."""
        payloads = self._records.payloads
        large = at[payload_sizes(payloads)[at] > _LARGE]
        if not len(large):
            return at
        there = pc.count_substring(payloads.take(pa.array(large)), "\n").to_numpy(zero_copy_only=False) + 1
        wrong = there != self._counts[large]
        for i, lines in zip(large[wrong].tolist(), there[wrong].tolist(), strict=True):
            self._errors[i] = _other_lines(lines, int(self._counts[i]))
        return np.setdiff1d(at, large[wrong])

    def _arrows(self, at: Int64s) -> None:
        """Packs with the same columns that follow each other are taken together, as those of one publisher do."""
        payloads = zip(at.tolist(), _aligned_copies(self._records.payloads, at), strict=True)
        read = [(i, batch) for i, payload in payloads if (batch := self._read(i, payload)) is not None]
        for schema, run in groupby(read, lambda pack: pack[1].schema):
            if carries_messages(schema):
                if self._only_typed:
                    self._errors |= dict.fromkeys((i for i, _ in run), _NOT_TYPED)
                else:
                    self._messages(schema, list(run))
            else:
                for i, batch in run:
                    self._typed_rows(i, batch)

    def _read(self, at: int, payload: pa.Buffer) -> pa.RecordBatch | None:
        try:
            return read_pack(payload, int(self._counts[at]))
        except BadPack as e:
            self._errors[at] = str(e)
            return None

    def _messages(self, schema: pa.Schema, packs: list[tuple[int, pa.RecordBatch]]) -> None:
        at = np.array([i for i, _ in packs])
        counts = self._counts[at]
        self._lengths[at], self._packed[at] = counts, True
        for name, gathered in ((VALUE, self._values), (HEADERS, self._headers), (ID, self._ids)):
            if (column := schema.get_field_index(name)) >= 0:
                rows = pa.concat_arrays([batch.column(column) for _, batch in packs])
                gathered.add(at, counts, _as(rows, MESSAGE_TYPES[name]))

    def _typed_rows(self, at: int, batch: pa.RecordBatch) -> None:
        try:
            self._typed[at] = self._made(batch)
        except BadPack as e:
            self._errors[at] = str(e)
            return
        rows = batch.num_rows
        self._lengths[at], self._packed[at] = rows, True
        self._values.add_one(at, pa.nulls(rows, pa.binary()))
        if ID in batch.schema.names and pa.types.is_string(batch.schema.field(ID).type):
            self._ids.add_one(at, batch.column(ID))

    def _made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._transform is None:
            return batch
        try:
            return self._transform(batch)
        except (ValueError, pa.ArrowException) as e:
            raise BadPack((str(e) or type(e).__name__).splitlines()[0][:_REASON]) from e

    def _placed(self) -> Unpacked:
        n, lengths = len(self._records), self._lengths
        firsts = np.cumsum(lengths) - lengths
        records = np.repeat(np.arange(n), lengths)
        within = np.arange(len(records)) - np.repeat(firsts, lengths)
        index = within.astype(np.int32)
        index[np.repeat(~self._packed, lengths)] = -1
        self._headers.whole = self._own_headers()
        pool, at = self._headers.shared(records, within, HEADERS_TYPE) if self._headers else (None, None)
        return Unpacked(
            records,
            index,
            self._values.placed(firsts, records, within, pa.binary()),
            pool,
            at,
            self._ids.placed(firsts, records, within, pa.string()) if self._ids else None,
            [TypedRun(int(firsts[at]), batch) for at, batch in sorted(self._typed.items())],
            {int(firsts[at]): reason for at, reason in sorted(self._errors.items())},
        )

    def _own_headers(self) -> pa.Array | None:
        """Headers of the records for their rows, without those of the packs themselves."""
        headers = self._records.headers
        assert headers is not None
        rows, keys, items = _entries(headers)
        own = pc.is_in(keys, value_set=pa.array(_PACK_HEADERS, keys.type)).to_numpy(zero_copy_only=False)
        keep = np.flatnonzero(~own | ~self._packed[rows])
        if not len(keep):
            return None
        counts = np.bincount(rows[keep], minlength=len(headers))
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        starts = pa.array(offsets, mask=np.append(counts == 0, False))
        index = pa.array(keep)
        return pa.MapArray.from_arrays(starts, keys.take(index), items.take(index)).cast(HEADERS_TYPE)


class _ColumnPieces:
    """One column of the rows, gathered in pieces.

    :ivar whole: an element a record, for the rows of records that have no piece; None = null
    """

    def __init__(self, whole: pa.Array | None, n: int) -> None:
        self.whole = whole
        self._at = np.full(n, -1, np.int64)  # where the rows of a record begin in the pieces
        self._pieces: list[pa.Array] = []
        self._length = 0

    def __bool__(self) -> bool:
        return self.whole is not None or bool(self._pieces)

    def add(self, records: Int64s, counts: Int64s, rows: pa.Array) -> None:
        """The rows of these records, one after the other."""
        self._at[records] = self._length + np.cumsum(counts) - counts
        self._pieces.append(rows)
        self._length += len(rows)

    def add_one(self, record: int, rows: pa.Array) -> None:
        """The rows of one record."""
        self._at[record] = self._length
        self._pieces.append(rows)
        self._length += len(rows)

    def placed(self, firsts: Int64s, records: Int64s, within: Int64s, kind: pa.DataType) -> pa.Array:
        """An element a row.

        :param firsts: the first row of each record
        """
        if (self._at == firsts).all():  # every record has a piece, in order
            return self._pieces[0] if len(self._pieces) == 1 else pa.concat_arrays(self._pieces)
        begin = self._at[records]
        index = begin + within
        plain: Bools = begin < 0
        if self.whole is None:
            column = pa.concat_arrays([pa.nulls(0, kind), *self._pieces])
            return column.take(pa.array(index, mask=plain))
        whole = self.whole if self.whole.type == kind else self.whole.cast(kind)
        column = pa.concat_arrays([whole, *self._pieces])
        return column.take(pa.array(np.where(plain, records, index + len(whole))))

    def shared(self, records: Int64s, within: Int64s, kind: pa.DataType) -> tuple[pa.Array, Int64s]:
        """The elements, and which of them each row has."""
        begin = self._at[records]
        whole = pa.nulls(len(self._at), kind) if self.whole is None else self.whole.cast(kind)
        pool = pa.concat_arrays([whole, *self._pieces])
        return pool, np.where(begin < 0, records, begin + within + len(whole))


def _aligned_copies(payloads: pa.Array, at: Int64s) -> list[pa.Buffer]:
    """Copies of these payloads, aligned as Arrow requires, in one allocation: to allocate a few kilobytes takes longer
    than to copy them."""
    bounds = payload_bounds(payloads)
    begins, sizes = bounds[at], bounds[at + 1] - bounds[at]
    padded_sizes = sizes + -sizes % _ALIGNMENT
    places = np.cumsum(padded_sizes) - padded_sizes
    whole = pa.allocate_buffer(int(padded_sizes.sum()))
    source, target = memoryview(payloads.buffers()[2] or b"").cast("B"), memoryview(whole).cast("B")
    found = []
    for begin, size, place in zip(begins.tolist(), sizes.tolist(), places.tolist(), strict=True):
        target[place : place + size] = source[begin : begin + size]
        found.append(whole.slice(place, size))
    return found


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def first_values(headers: pa.MapArray, *names: str) -> list[pa.Array]:
    """The first value of the header of each name of each message, null where it has none: string arrays."""
    rows, keys, items = _entries(headers)
    offsets = items.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    found = []
    for name in names:
        named = np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False))
        named = named[offsets[named + 1] > offsets[named]]  # a name without a value is no header
        at = np.full(len(headers), -1, np.int64)
        at[rows[named][::-1]] = offsets[named][::-1]  # the first one counts
        found.append(_as(items.values.take(pa.array(at, mask=at < 0)), pa.string()))
    return found


def _entries(headers: pa.MapArray) -> tuple[Int64s, pa.Array, pa.ListArray]:
    """Row, name and list of values of every header."""
    offsets = headers.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    rows = np.repeat(np.arange(len(headers)), np.diff(offsets))
    return rows, headers.keys.slice(first, last - first), headers.items.slice(first, last - first)
