"""The content of each row of a write with packs, by which it is recognised in whatever pack. Pure.

The content is bytes that depend neither on the other rows nor on how a column lies in memory. Two rows have the same
bytes if and only if they have the same values: before each value stands a byte that says whether it is null, and before
what has no fixed width its length.
"""

from __future__ import annotations

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
from .packer import Rows


def contents_of_rows(codec: Codec, rows: Rows) -> MessageBatch:
    """A message for each row, which stands for its content."""
    headers = None
    if rows.parts is not None:
        few = [[(name, [text]) for name, text in one.items() if text is not None] for one in rows.parts.to_pylist()]
        headers = pa.array([one or None for one in few], HEADERS_TYPE)
    return MessageBatch(rows.topics, row_contents(codec.normal(rows.columns)), headers)


def contents_of_records(codec: Codec, records: Records) -> tuple[MessageBatch, Int64s]:
    """The same of the rows of packs that were read, and how many rows each has.

    :param codec: codec of the write, whose packs alone are read; each names its topic (:func:`with_topic_header`)
    :raises CorruptPack: a record is no pack of this write
    """
    n = len(records)
    headers = [dict(one or ()) for one in ([None] * n if records.headers is None else records.headers.to_pylist())]
    try:
        counts = np.array([int(one[PACK_ROWS][0]) for one in headers], np.int64)
        topics = pa.array([one[PACK_TOPIC][0] for one in headers], pa.string()).dictionary_encode()
        whole = plain(MessageBatch(topics, records.payloads, records.headers))
        rows = row_contents(codec.decode(whole.payloads, counts))  # which compares the counts, that each row copies
    except (KeyError, ValueError, OverflowError, BadPack, pa.ArrowException) as e:
        raise CorruptPack(f"a message with an id of this write cannot be unpacked as it was packed: {e}") from e
    each = pa.array(np.repeat(np.arange(n), counts))
    parts = [[(name, one[name]) for name in PART_HEADERS.values() if name in one] or None for one in headers]
    column = pa.array(parts, HEADERS_TYPE).take(each) if any(parts) else None
    return MessageBatch(topics.take(each), rows, column), counts


def with_topic_header(batch: MessageBatch) -> MessageBatch:
    """These packs, each with a header that names the topic it is published to: by that topic, and not by the one that a
    stream stores it under, its rows are recognised."""
    assert batch.headers is not None
    entries = [
        one if any(name == PACK_TOPIC for name, _ in one) else [*one, (PACK_TOPIC, [topic])]
        for one, topic in zip(batch.headers.to_pylist(), batch.topics.to_pylist(), strict=True)
    ]
    return replace(batch, headers=pa.array(entries, HEADERS_TYPE))


def row_contents(columns: pa.RecordBatch) -> pa.Array:
    return join_columns([_encoded(column) for column in columns.columns])


def _encoded(column: Any) -> pa.Array:
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
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        children = (column.keys, column.items) if pa.types.is_map(kind) else (column.values,)
        return _lists(column, join_columns([_encoded(child.slice(first, last - first)) for child in children]))
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
