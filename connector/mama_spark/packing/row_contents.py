"""The content of each row of a pack as bytes that do not depend on the other rows, nor on how a column lies in memory.
Pure.

Two rows have the same bytes if and only if they have the same values: before each value stands a byte that says whether
it is null, and before what has no fixed width its length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..contracts.message import fixed_width, join_columns, lengths_of, offsets_of, u32_column

_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


def row_contents(columns: pa.RecordBatch) -> pa.Array:
    """A binary value a row."""
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
    if any(is_(kind) for is_ in _TEXTS):
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
