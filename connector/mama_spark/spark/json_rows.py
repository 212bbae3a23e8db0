"""Encodes rows as JSON objects, for DataFrames without a column ``value``.

One JSON object a row, UTF-8, keys in the order of the columns, nulls written as ``null``. Decimals are numbers with all
their digits, timestamps ISO 8601 in UTC with microseconds and ``Z`` (without zone for ``timestamp_ntz``), dates ISO
8601, binary base64, NaN and infinities ``null``, structs and maps objects.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pyarrow as pa

_OPTIONS = orjson.OPT_UTC_Z

Convert = Callable[[Any], Any]


def json_rows(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """A binary array, one object a row.

    The loop over rows is here because orjson takes one object at a time; it is still several times faster than
    building the text with Arrow kernels, which have no escaping of strings.
    """
    columns = [_values(batch.column(name)) for name in names]
    dumps, keys = orjson.dumps, list(names)
    if not columns:
        return pa.array([], pa.binary())
    return pa.array(
        [dumps(dict(zip(keys, row, strict=True)), None, _OPTIONS) for row in zip(*columns, strict=True)], pa.binary()
    )


def _values(column: pa.Array) -> list[Any]:
    convert = _converter(column.type)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if v is None else convert(v) for v in values]


def _converter(kind: pa.DataType) -> Convert | None:
    """Converts Python values of ``kind`` to what orjson encodes; None = no conversion is needed."""
    if pa.types.is_decimal(kind):
        return lambda v: orjson.Fragment(format(v, "f"))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda v: base64.b64encode(v).decode()
    if pa.types.is_map(kind):
        inner = _converter(kind.item_type)
        return lambda v: {k: _apply(inner, x) for k, x in v}
    if pa.types.is_struct(kind):
        inners = {f.name: _converter(f.type) for f in kind}
        if not any(inners.values()):
            return None
        return lambda v: {k: _apply(inners[k], x) for k, x in v.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _converter(kind.value_type)
        return None if inner is None else lambda v: [_apply(inner, x) for x in v]
    return None


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)
