"""Unpacks records of a log into rows: all rows of a pack, one row of any other record. Pure.

A corrupt pack is one row with the reason, never an exception; nothing is allocated by an announced size before the
bytes are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..contracts.headers import MSG_ID
from ..contracts.message import HEADERS_TYPE, Bools, Int64s, as_binary
from ..contracts.record_log import Records
from .codec import values_of_packs
from .compression import decompressed_lines
from .format import (
    HEADERS,
    ID,
    MAX_PLAIN_BYTES,
    MESSAGE_TYPES,
    PACK,
    PACK_BYTES,
    PACK_HEADERS,
    PACK_ROWS,
    VALUE,
    BadPack,
    PackFormat,
    canonical_type,
    carries_messages,
)
from .gathering.value_lines import values_of_lines
from .gathering.value_views import PayloadPlaces
from .ipc import read_pack
from .pack_headers import (
    FEW_HEADERS,
    PackHeaders,
    as_type,
    header_entries,
    map_distinct,
    pack_headers,
    with_some_entries,
)
from .unpacked import TypedRun, Unpacked

#: Id of a pack; its rows have ids of their own, or none.
_OWN_HEADERS = frozenset((*PACK_HEADERS, MSG_ID))

_REASON = 1_200  #: characters: two schemas
_NOT_TYPED = "it has a value and no columns; name `value` in .schema(), or read other topics"

#: Makes other columns of the typed rows of one pack. A ValueError, or an error of Arrow, means that the rows do not
#: fit: the pack counts as corrupt.
RowTransform = Callable[[pa.RecordBatch], pa.RecordBatch]


def unpack(
    records: Records,
    transform: RowTransform | None = None,
    packs: PackHeaders | None = None,
    *,
    only_typed: bool = False,
) -> Unpacked:
    """All rows of ``records``.

    :param transform: change of typed rows; None = they stay as they are
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
    return Unpacked(np.arange(n), np.full(n, -1, np.int32), as_binary(records.payloads), records.headers, errors=errors)


_PLAIN, _LINES, _ARROW, _LINES_2, _ARROW_2, _UNKNOWN = range(6)
_CODES = {
    PackFormat.LINES.value: _LINES,
    PackFormat.ARROW.value: _ARROW,
    PackFormat.LINES_2.value: _LINES_2,
    PackFormat.ARROW_2.value: _ARROW_2,
}


def _format_code(text: str) -> int:
    return _CODES.get(text, _UNKNOWN)


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
        self._packs, self._counts = packs, packs.counts
        self._formats = map_distinct(packs.formats, _format_code, _PLAIN)
        self._transform, self._only_typed = transform, only_typed

    def run(self) -> Unpacked:
        packs, formats = self._packs, self._formats
        lines, arrows = (formats == _LINES) | (formats == _LINES_2), (formats == _ARROW) | (formats == _ARROW_2)
        compressed = (formats == _LINES_2) | (formats == _ARROW_2)
        announced = self._counts >= 0
        for at in np.flatnonzero(formats == _UNKNOWN).tolist():
            self._errors[at] = f"{PACK}: {packs.formats[at].as_py()[:100]!r} is unknown here"
        for at in np.flatnonzero((lines | arrows) & ~announced).tolist():
            self._errors[at] = f"{PACK_ROWS}: {(packs.rows[at].as_py() or '')[:100]!r} is no number of rows"
        unsized = compressed & announced & (packs.plain_bytes < 0)
        text = f"{PACK_BYTES} is missing, or no number of bytes from 1 to {MAX_PLAIN_BYTES:,}"
        self._errors |= dict.fromkeys(np.flatnonzero(unsized).tolist(), text)
        announced &= ~unsized
        if self._only_typed:
            self._errors |= dict.fromkeys(
                np.flatnonzero((formats == _PLAIN) | (lines & announced)).tolist(), _NOT_TYPED
            )
        else:
            plain = np.flatnonzero(lines & announced & ~compressed)
            if len(plain):
                self._lines(plain, PayloadPlaces.of(self._records.payloads, plain))
            self._compressed_lines(np.flatnonzero(lines & announced & compressed))
        self._arrows(np.flatnonzero(arrows & announced))
        return self._placed()

    def _compressed_lines(self, at: Int64s) -> None:
        if not len(at):
            return
        found, good = list[bytes](), list[int]()
        payloads = PayloadPlaces.of(self._records.payloads, at).slices()
        for i, payload in zip(at.tolist(), payloads, strict=True):  # packs, not rows
            encoding, size = self._packs.encodings[i].as_py() or "", int(self._packs.plain_bytes[i])
            try:
                found.append(decompressed_lines(payload, encoding, size))
                good.append(i)
            except BadPack as e:
                self._errors[i] = str(e)
        if good:
            self._lines(np.array(good), PayloadPlaces.of_each(found))

    def _lines(self, at: Int64s, payloads: PayloadPlaces) -> None:
        """The payloads are those of the records ``at``, without compression."""
        counts = self._counts[at]
        values, there = values_of_lines(payloads, counts)
        good = there == counts
        for i in np.flatnonzero(~good).tolist():
            self._errors[int(at[i])] = f"it has {there[i]:,} lines and announces {counts[i]:,}"
        at, counts = at[good], counts[good]
        self._lengths[at], self._packed[at] = counts, True
        self._values.add(at, counts, values)

    def _arrows(self, at: Int64s) -> None:
        """Packs with the same columns that follow each other are taken together, as those of one publisher do."""
        if not len(at):
            return
        if (
            not self._only_typed
            and (values := values_of_packs(self._records.payloads, at, self._counts[at])) is not None
        ):
            self._lengths[at], self._packed[at] = self._counts[at], True
            self._values.add(at, self._counts[at], values)
            return
        payloads = zip(at.tolist(), PayloadPlaces.of(self._records.payloads, at).aligned_copies(), strict=True)
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
            limit = int(self._packs.plain_bytes[at]) if self._formats[at] == _ARROW_2 else None
            return read_pack(payload, int(self._counts[at]), limit)
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
                gathered.add(at, counts, as_type(rows, MESSAGE_TYPES[name]))

    def _typed_rows(self, at: int, batch: pa.RecordBatch) -> None:
        try:
            self._typed[at] = self._made(batch)
        except BadPack as e:
            self._errors[at] = str(e)
            return
        rows = batch.num_rows
        self._lengths[at], self._packed[at] = rows, True
        self._values.add_one(at, pa.nulls(rows, pa.binary()))
        if ID in batch.schema.names and canonical_type(batch.schema.field(ID).type) == MESSAGE_TYPES[ID]:
            self._ids.add_one(at, as_type(batch.column(ID), MESSAGE_TYPES[ID]))

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
        if not self._packed.all():
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
        headers = self._records.headers
        assert headers is not None
        rows, keys, _ = header_entries(headers)
        if self._packed.all() and len(keys) <= FEW_HEADERS and _OWN_HEADERS.issuperset(keys.to_pylist()):
            return None
        own = pc.is_in(keys, value_set=pa.array([*_OWN_HEADERS], keys.type)).to_numpy(zero_copy_only=False)
        keep = np.flatnonzero(~own | ~self._packed[rows])
        return with_some_entries(headers, keep) if len(keep) else None


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
        self._at[records] = self._length + np.cumsum(counts) - counts
        self._pieces.append(rows)
        self._length += len(rows)

    def add_one(self, record: int, rows: pa.Array) -> None:
        self._at[record] = self._length
        self._pieces.append(rows)
        self._length += len(rows)

    def placed(self, firsts: Int64s, records: Int64s, within: Int64s, kind: pa.DataType) -> pa.Array:
        """An element a row; ``firsts``: the first row of each record."""
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
