"""Codecs of packs: encode rows as payloads, many packs at a time, and decode them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..contracts.errors import SchemaError
from ..contracts.message import Int64s, is_wide, payload_sizes
from .format import VALUE, BadPack, PackFormat, canonical_type, check_types, is_text
from .gathering.value_ipc import ValueFrames
from .gathering.value_lines import values_of_lines
from .gathering.value_views import PayloadPlaces, ValueViews, binary_of, elements, joined, views_of
from .ipc import read_pack

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  #: end of an Arrow IPC stream


class Codec(Protocol):
    """Encodes the rows of one partition. Sizes are in bits, because a null takes one."""

    format: PackFormat
    description: str
    names: Sequence[str]
    fixed_bits: int  #: upper bound of the size of a pack without its rows

    def normal(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in the types of the encoding."""

    def row_bits(self, columns: pa.RecordBatch) -> Int64s:
        """Upper bound of the size of each row."""

    def encode(self, columns: pa.RecordBatch, starts: Int64s) -> pa.Array:
        """Payloads, binary: pack ``i`` has the rows from ``starts[i]`` to ``starts[i + 1]``."""

    def views(self, batches: Sequence[pa.RecordBatch]) -> ValueViews | None:
        """Views of the values of the rows of all batches, where they are all that a pack has; else None."""

    def encode_views(self, values: ValueViews, starts: Int64s) -> pa.Array:
        """The payloads of :meth:`encode`, of rows that lie anywhere; each byte is copied once."""

    def decode(self, payloads: pa.Array, rows: Int64s) -> pa.RecordBatch:
        """The rows of one or more payloads that this codec made, one after the other.

        :param rows: number of rows of each payload
        :raises BadPack: a payload is of another kind, or has another number of rows
        """


class LinesCodec:
    """Values joined by line feeds; they must not contain any. Takes the column ``value``."""

    format = PackFormat.LINES
    description = "values"
    names: Sequence[str] = (VALUE,)
    fixed_bits = -8  # no line feed after the last value

    def normal(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        value = columns.column(VALUE)
        return pa.RecordBatch.from_arrays([value.cast(pa.binary())], [VALUE])

    def row_bits(self, columns: pa.RecordBatch) -> Int64s:
        return (payload_sizes(columns.column(VALUE)) + 1) * 8

    def encode(self, columns: pa.RecordBatch, starts: Int64s) -> pa.Array:
        lists = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), columns.column(VALUE))
        return pc.binary_join(lists, b"\n")

    def views(self, batches: Sequence[pa.RecordBatch]) -> ValueViews | None:
        return views_of([batch.column(VALUE) for batch in batches])

    def encode_views(self, values: ValueViews, starts: Int64s) -> pa.Array:
        views, last = values.views.copy(), starts[1:] - 1
        views[:, 0] += 1  # the byte behind each value, in whose place the line feed is written
        views[last, 0] -= 1  # none behind the last
        ends = np.cumsum(views[:, 0], dtype=np.int64)
        payloads = joined(views, values.buffers)
        payload_bytes = np.frombuffer(payloads, np.uint8)
        final = payload_bytes[ends[last] - 1]
        payload_bytes[ends - 1] = ord("\n")
        payload_bytes[ends[last] - 1] = final
        return binary_of(payloads, np.diff(ends[last], prepend=0))

    def decode(self, payloads: pa.Array, rows: Int64s) -> pa.RecordBatch:
        values, there = values_of_lines(PayloadPlaces.of_all(payloads), rows)
        for wrong in np.flatnonzero(there != rows).tolist():
            raise BadPack(f"it has {there[wrong]:,} lines instead of {rows[wrong]:,}")
        return pa.RecordBatch.from_arrays([values], [VALUE])


class ArrowCodec:
    """An Arrow IPC stream a pack: schema, one record batch, end. The schema is written once and copied.

    :raises SchemaError: a column has a type that cannot be packed
    """

    format = PackFormat.ARROW

    def __init__(self, schema: pa.Schema) -> None:
        check_types(schema)
        # without the metadata that Spark adds
        self.schema = pa.schema([pa.field(f.name, canonical_type(f.type), f.nullable) for f in schema])
        self.description = ", ".join(f"{f.name} {f.type}" for f in self.schema)
        self.names: Sequence[str] = self.schema.names
        self._head = self.schema.serialize()
        batch = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in self.schema], schema=self.schema)
        # each buffer is padded to eight bytes, and one of offsets has an element more than there are rows
        padding = 16 * sum(_buffers(f.type) for f in self.schema)
        self.fixed_bits = 8 * (len(self._head) + len(batch.serialize()) + padding + len(_END))
        only_values = [(f.name, f.type) for f in self.schema] == [(VALUE, pa.binary())]
        self._frames = ValueFrames(self.schema, self._head.to_pybytes(), _END) if only_values else None

    def normal(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        return columns if columns.schema == self.schema else columns.cast(self.schema)

    def row_bits(self, columns: pa.RecordBatch) -> Int64s:
        total: Int64s = np.zeros(columns.num_rows, np.int64)
        for column in columns.columns:
            total += bits_of(column)
        return total

    def encode(self, columns: pa.RecordBatch, starts: Int64s) -> pa.Array:
        pieces: list[pa.Buffer | bytes] = []
        sizes = np.empty(len(starts) - 1, np.int64)
        bounds, around = starts.tolist(), len(self._head) + len(_END)
        for i, (start, end) in enumerate(pairwise(bounds)):  # packs, not rows: about 10 us each
            body = _alone(columns, start, end).serialize()
            pieces += (self._head, body, _END)
            sizes[i] = around + len(body)
        return binary_of(b"".join(pieces), sizes)

    def views(self, batches: Sequence[pa.RecordBatch]) -> ValueViews | None:
        return None if self._frames is None else views_of([batch.column(VALUE) for batch in batches])

    def encode_views(self, values: ValueViews, starts: Int64s) -> pa.Array:
        assert self._frames is not None
        packs, n, sizes = np.arange(len(starts) - 1), len(values.buffers), values.sizes
        heads, bounds = self._frames.heads(sizes, starts)
        value_bytes: Int64s = np.add.reduceat(sizes, starts[:-1])
        ends, closing = self._frames.ends(value_bytes, n + 1)
        views = np.zeros((len(sizes) + 2 * len(packs), 4), np.int32)
        first, last = starts[:-1] + 2 * packs, starts[1:] + 2 * packs + 1
        views[first, 0], views[first, 2], views[first, 3] = np.diff(bounds), n, bounds[:-1]
        views[last] = ends
        places = np.repeat(2 * packs + 1, np.diff(starts)) + np.arange(len(sizes))
        elements(views)[places] = elements(values.views)
        whole = np.diff(bounds) + value_bytes + ends[:, 0].astype(np.int64)
        return binary_of(joined(views, [*values.buffers, heads, closing]), whole)

    def decode(self, payloads: pa.Array, rows: Int64s) -> pa.RecordBatch:
        places = PayloadPlaces.of_all(payloads)
        if self._frames is not None and (values := self._frames.read(places, rows)) is not None:
            return pa.RecordBatch.from_arrays([values], schema=self.schema)
        packs = zip(places.aligned_copies(), rows.tolist(), strict=True)
        batches = [read_pack(payload, n) for payload, n in packs]
        return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def values_of_packs(payloads: pa.Array, at: Int64s, rows: Int64s) -> pa.Array | None:
    """All values of arrow packs of nothing but values, at places ``at`` of a binary or binary_view array, in one copy.
    ``rows``: that each announces. None = they are others, or must be read one by one."""
    places = PayloadPlaces.of(payloads, at)
    for frames in _VALUE_FRAMES:
        if (found := frames.read(places, rows)) is not None:
            return found
    return None


def _alone(columns: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows in buffers of their own. Of a slice, Arrow writes up to 63 bytes more than the rows have: those of the
    rows behind it, which are of another pack, maybe of another topic."""
    some = [pa.concat_arrays([column.slice(start, end - start)]) for column in columns.columns]
    return pa.RecordBatch.from_arrays(some, schema=columns.schema)


def bits_of(column: pa.Array) -> Int64s:
    """Upper bound of the size of each element in an Arrow IPC body, without padding; values under a null count."""
    kind, n = column.type, len(column)
    if pa.types.is_boolean(kind):
        return np.full(n, 2, np.int64)
    if pa.types.is_struct(kind):
        total = np.full(n, 1, np.int64)
        for i in range(kind.num_fields):
            total += bits_of(column.field(i))
        return total
    if pa.types.is_map(kind):
        return _list_bits(column, 32, 1 + bits_of(column.keys) + bits_of(column.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_bits(column, 64 if pa.types.is_large_list(kind) else 32, bits_of(column.values))
    if is_text(kind):
        return payload_sizes(column) * 8 + (65 if is_wide(kind) else 33)
    return np.full(n, kind.bit_width + 1, np.int64)


def _list_bits(column: pa.Array, offset_bits: int, children: Int64s) -> Int64s:
    offsets = np.asarray(column.offsets).astype(np.int64)
    upto = np.concatenate(([0], np.cumsum(children)))
    inside: Int64s = upto[offsets[1:]] - upto[offsets[:-1]]
    return inside + offset_bits + 1


def _buffers(kind: pa.DataType) -> int:
    if pa.types.is_map(kind):
        return 3 + _buffers(kind.key_type) + _buffers(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 2 + _buffers(kind.value_type)
    if pa.types.is_struct(kind):
        return 1 + sum(_buffers(f.type) for f in kind)
    return 3 if is_text(kind) else 2


def codec_of(pack: str, schema: pa.Schema) -> Codec:
    """The codec of option ``pack`` for rows of these columns.

    :raises SchemaError: ``lines`` with more than the column ``value``; a type that cannot be packed
    """
    if pack == "arrow":
        return ArrowCodec(schema)
    if schema.names != [VALUE]:
        raise SchemaError(f"lines carry values only, not {', '.join(schema.names)}")
    return LinesCodec()


_VALUE_FRAMES = [
    ValueFrames(schema, schema.serialize().to_pybytes(), _END)
    for schema in (pa.schema([pa.field(VALUE, pa.binary(), nullable)]) for nullable in (True, False))
]
