"""How large typed rows become when they are written as text, told before any of it is made.

A bit of a message can be a row, and a row repeats the name of every column: 200 kilobytes can be 60 gigabytes of JSON.
"""

from __future__ import annotations

import pyarrow as pa

from ..message import payload_sizes

#: Bytes of text that one message may become.
MOST_TEXT = 256 << 20
_PLAIN = 48  #: a number, a date, a time, true, false or null, with what stands around it
_ESCAPED = 6  #: bytes of text for one of a string


def check_json_size(rows: pa.RecordBatch) -> int:
    """Bytes that these rows are as JSON, at most.

    :raises OverflowError: too many
    """
    size: int = sum(map(_column, rows.columns)) + rows.num_rows * _names(rows.schema)
    if size > MOST_TEXT:
        raise OverflowError(f"it may be {size / 1e6:,.0f} MB of text")
    return size


def _column(column: pa.Array) -> int:
    kind, n = column.type, len(column)
    if pa.types.is_struct(kind):
        return n * (_PLAIN + _names(kind)) + sum(_column(column.field(i)) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return n * _PLAIN + _column(column.keys) + _column(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return n * _PLAIN + _column(column.values)
    if any(is_(kind) for is_ in _TEXTS):
        return n * _PLAIN + _ESCAPED * int(payload_sizes(column).sum())
    return n * _PLAIN


_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


def _names(fields: pa.Schema | pa.StructType) -> int:
    return sum(_ESCAPED * len(field.name) + 4 for field in fields)
