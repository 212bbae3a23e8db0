"""Upper bound of the size of typed rows as JSON, computed before any JSON is made.

One bit of a message can be a row, and a row of JSON repeats the name of every column: 200 kilobytes can be 60 gigabytes
of JSON.
"""

from __future__ import annotations

import pyarrow as pa

from ..contracts.message import payload_sizes

#: Limit of the JSON of one message, in bytes.
MAX_TEXT_BYTES = 256 << 20
_PLAIN = 64  #: a number, a date, a time, an interval, true, false or null, with punctuation
_ESCAPED = 6  #: bytes of JSON for one byte of a string, at most


def check_json_size(rows: pa.RecordBatch) -> int:
    """Upper bound of the size of these rows as JSON, in bytes.

    :raises OverflowError: above the limit
    """
    size: int = sum(map(_column, rows.columns)) + rows.num_rows * _names(rows.schema)
    if size > MAX_TEXT_BYTES:
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
