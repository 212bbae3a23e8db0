"""The rows in the packs of one write, and the content of each, by which it is recognised in whatever pack. Pure.

The content is bytes that depend neither on the other rows nor on how a column lies in memory. Two rows have the same
bytes if and only if they have the same values: before each value stands a byte that says whether it is null, and before
what has no fixed width its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..contracts.errors import CorruptPack
from ..contracts.message import (
    HEADERS_TYPE,
    Int64s,
    MessageBatch,
    fixed_width,
    join_columns,
    lengths_of,
    offsets_of,
    u32_column,
)
from ..contracts.record_log import Records
from ..contracts.topics import PART_HEADERS
from .codec import Codec
from .compression import plain
from .format import PACK_ROWS, PACK_TOPIC, BadPack, is_text
from .packer import Packed, Rows

Headers = dict[str, list[str]]


class PackRows:
    """:param codec: of the write, whose packs alone are read; each names its topic (:func:`with_topic_header`)"""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def rows_of(self, packs: Packed) -> Rows:
        """All rows of packs that were just made."""
        each = pa.array(np.repeat(np.arange(len(packs)), packs.rows))
        batch = packs.batch
        headers = _headers(batch.headers, len(batch))
        names = sorted({name for one in headers for name in PART_HEADERS.values() if name in one})
        parts = None
        if names:
            columns = [
                pa.array([one.get(name, [None])[0] for one in headers], pa.string()).take(each) for name in names
            ]
            parts = pa.RecordBatch.from_arrays(columns, names)
        return Rows(
            batch.topics.take(each),
            self._codec.decode(batch.payloads, packs.rows),
            packs.numbers,
            None if batch.streams is None else batch.streams.take(each),
            parts,
            packs.extra,
        )

    def contents_of(self, packs: Packed) -> MessageBatch:
        """A message for each row, which stands for its content."""
        batch = packs.batch
        return self._contents(batch.topics, batch.payloads, _headers(batch.headers, len(batch)), packs.rows)

    def contents_of_records(self, records: Records) -> tuple[MessageBatch, Int64s]:
        """The same for packs that were read, and how many rows each has.

        :raises CorruptPack: a record is no pack of this write
        """
        headers = _headers(records.headers, len(records))
        try:
            counts = np.array([int(one[PACK_ROWS][0]) for one in headers], np.int64)
            topics = pa.array([one[PACK_TOPIC][0] for one in headers], pa.string()).dictionary_encode()
            whole = plain(MessageBatch(topics, records.payloads, records.headers))
            return self._contents(topics, whole.payloads, headers, counts), counts
        except (KeyError, ValueError, OverflowError, BadPack, pa.ArrowException) as e:
            raise CorruptPack(f"a message with an id of this write cannot be unpacked as it was packed: {e}") from e

    def _contents(
        self, topics: pa.DictionaryArray, payloads: pa.Array, headers: Sequence[Headers], counts: Int64s
    ) -> MessageBatch:
        rows = row_contents(self._codec.decode(payloads, counts))  # which compares the counts, that each row copies
        each = pa.array(np.repeat(np.arange(len(counts)), counts))
        parts = [{name: one[name] for name in PART_HEADERS.values() if name in one} for one in headers]
        column = None
        if any(parts):
            column = pa.array([list(one.items()) or None for one in parts], HEADERS_TYPE).take(each)
        return MessageBatch(topics.take(each), rows, column)


def with_topic_header(batch: MessageBatch) -> MessageBatch:
    """These packs, each with a header that names the topic that it is published to: by that topic, and not by the one
    that a stream stores it under, its rows are recognised."""
    assert batch.headers is not None
    entries = [
        one if any(name == PACK_TOPIC for name, _ in one) else [*one, (PACK_TOPIC, [topic])]
        for one, topic in zip(batch.headers.to_pylist(), batch.topics.to_pylist(), strict=True)
    ]
    return replace(batch, headers=pa.array(entries, HEADERS_TYPE))


def _headers(column: pa.Array | None, n: int) -> list[Headers]:
    if column is None:
        return [{} for _ in range(n)]
    return [dict(one or ()) for one in column.to_pylist()]


def row_contents(columns: pa.RecordBatch) -> pa.Array:
    """The content of each row, binary."""
    return join_columns([_encoded(column) for column in columns.columns])


def _encoded(column: Any) -> pa.Array:
    """The bytes of each element."""
    valid = np.asarray(column.is_valid())
    flag = fixed_width(np.ascontiguousarray(valid.astype(np.uint8)).reshape(len(column), 1))
    if not valid.any():
        return flag
    body = _body(column)
    if not valid.all():
        body = pc.if_else(pa.array(valid), body, pa.scalar(b""))
    return join_columns([flag, body])


def _body(column: Any) -> pa.Array:
    """The bytes of each element; of null ones, any."""
    kind = column.type
    if is_text(kind):
        binary = column.cast(pa.large_binary()).cast(pa.binary()).fill_null(b"")
        return join_columns([u32_column(lengths_of(binary)), binary])
    if pa.types.is_struct(kind):
        return join_columns([_encoded(child) for child in column.flatten()])
    if pa.types.is_map(kind):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        size = last - first
        entries = [_encoded(column.keys.slice(first, size)), _encoded(column.items.slice(first, size))]
        return _lists(column, join_columns(entries))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return _lists(column, _encoded(column.values.slice(first, last - first)))
    if pa.types.is_boolean(kind):
        column, kind = column.cast(pa.uint8()), pa.uint8()
    width = kind.bit_width // 8
    data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width : (column.offset + len(column)) * width]
    return fixed_width(np.ascontiguousarray(data).reshape(len(column), width))


def _lists(column: Any, elements: pa.Array) -> pa.Array:
    offsets = np.asarray(column.offsets).astype(np.int64)
    counts = np.diff(offsets)
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets_of(counts), elements), b"")
    return join_columns([u32_column(counts), joined])
