"""Encodes rows as JSON objects, for DataFrames without a column ``value``. Pure.

One JSON object a row, UTF-8, keys in the order of the columns, nulls written as ``null``. Floats are the shortest text
that reads back as the same number of the same width; NaN and infinities are the strings that Spark's ``to_json`` writes
and its ``from_json`` reads. Decimals are numbers with all their digits, timestamps ISO 8601 in UTC with microseconds
and ``Z`` (without zone for ``timestamp_ntz``), dates ISO 8601, binary base64, structs and maps objects, intervals of
days to seconds the text that Spark makes of them.

A value is written so that it can be read back, or its row is refused: text that is not UTF-8, years before 1 and after
9999, times with parts of a microsecond, a map with one key twice.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from ..contracts.message import payload_sizes
from .format import VALUE, is_text

#: Bytes of JSON that are encoded together: the Python objects of rows take several times as many.
_TEXT_BYTES = 16 << 20
MAX_TEXT_BYTES = 256 << 20
_PLAIN = 64  #: a number, a date, a time, an interval, true, false or null, with punctuation
_ESCAPED = 6  #: bytes of JSON for one byte of a string, at most
_EPOCH = datetime(1970, 1, 1)
_STEPS = {"s": timedelta(seconds=1), "ms": timedelta(milliseconds=1), "us": timedelta(microseconds=1)}
_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_SERIALIZE_NUMPY
#: Errors of values that have no JSON: a UnicodeDecodeError is a ValueError, an unknown time zone a LookupError.
_UNFIT = (ValueError, TypeError, LookupError, ArithmeticError, pa.ArrowException)

Convert = Callable[[Any], Any]


class JsonRows(NamedTuple):
    """Rows as texts of JSON.

    :ivar texts: binary, one object a row; in a refused row, the columns that cannot be written are null
    :ivar refused: row -> which column cannot be JSON, and why
    """

    texts: pa.Array
    refused: dict[int, str]


def json_rows(batch: pa.RecordBatch, names: Sequence[str]) -> JsonRows:
    """These columns of each row. The loop over rows is here because orjson takes one object at a time; it is still
    several times faster than building the text with Arrow kernels, which have no escaping of strings."""
    refused: dict[int, str] = {}
    columns = [_column(batch.column(name), name, refused) for name in names]
    if not columns:
        return JsonRows(pa.array([], pa.binary()), refused)
    dumps, keys = orjson.dumps, list(names)
    return JsonRows(
        pa.array(
            [dumps(dict(zip(keys, row, strict=True)), None, _OPTIONS) for row in zip(*columns, strict=True)],
            pa.binary(),
        ),
        refused,
    )


def as_json_column(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A :data:`~.unpacker.RowTransform`: typed rows as the one column ``value``.

    :raises ValueError: a value cannot be JSON, or all of it would be too large
    """
    n, names = rows.num_rows, rows.schema.names
    try:
        step = max(1, n * _TEXT_BYTES // max(_TEXT_BYTES, _check_size(rows)))
    except OverflowError as e:
        raise ValueError(f"it cannot be JSON ({e})") from e
    texts = []
    for start in range(0, n, step):
        made, refused = json_rows(rows.slice(start, step), names)
        if refused:
            row = min(refused)
            raise ValueError(f"row {start + row}: {refused[row]}")
        texts.append(made)
    return pa.RecordBatch.from_arrays([pa.concat_arrays(texts)], [VALUE])


def _column(column: pa.Array, name: str, refused: dict[int, str]) -> list[Any]:
    """Values for orjson. Where one of the column has no JSON, the column is converted row by row."""
    try:
        return _values(column)
    except _UNFIT:
        found: list[Any] = []
        for row in range(len(column)):
            try:
                found += _values(column.slice(row, 1))
            except _UNFIT as e:
                refused.setdefault(row, f"column {name!r} cannot be JSON: {_reason(e)}")
                found.append(None)
        return found


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "its text is not UTF-8"
    if isinstance(error, OverflowError):
        return f"a date or time is not in the years 1 to 9999 ({error})"
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _values(column: pa.Array) -> list[Any]:
    if (kind := _in_utc_microseconds(column.type)) is not column.type:
        column = column.cast(kind)
    if pa.types.is_floating(column.type):
        return _floats(column)
    if pa.types.is_timestamp(column.type):
        return _times(column)
    convert = _converter(column)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if v is None else convert(v) for v in values]


def _times(column: pa.Array) -> list[Any]:
    """A seventh of what Arrow takes to make them, where they have a time zone."""
    epoch = _EPOCH if column.type.tz is None else _EPOCH.replace(tzinfo=UTC)
    step = _STEPS[column.type.unit]
    return [None if at is None else epoch + at * step for at in column.cast(pa.int64()).to_pylist()]


def _floats(column: pa.Array) -> list[Any]:
    """Floats of 32 bits as numpy's, of which orjson knows the shortest text."""
    numbers = column.to_numpy(zero_copy_only=False)
    values: list[Any] = list(numbers) if pa.types.is_float32(column.type) else numbers.tolist()
    for at in np.flatnonzero(~np.isfinite(numbers)).tolist():
        values[at] = _number_name(values[at])
    if column.null_count:
        for at in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[at] = None
    return values


def _number_name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def with_number_names(value: Any) -> Any:
    """The same dictionaries and lists, with the names of NaN and infinities, of which orjson makes null."""
    if isinstance(value, dict):
        return {key: with_number_names(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [with_number_names(one) for one in value]
    if isinstance(value, float):
        return _float64(value)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
        return with_number_names(value.tolist())
    return value


def _float64(value: float) -> Any:
    return value if math.isfinite(value) else _number_name(value)


def _float32(value: float) -> Any:
    return np.float32(value) if math.isfinite(value) else _number_name(value)


def _converter(column: pa.Array) -> Convert | None:
    """Converts values to what orjson encodes; None = no conversion is needed."""
    kind = column.type
    if pa.types.is_float32(kind):
        return _float32
    if pa.types.is_floating(kind):
        there = column.fill_null(0) if column.null_count else column
        return None if np.isfinite(there.to_numpy(zero_copy_only=False)).all() else _float64
    if pa.types.is_decimal(kind):
        return lambda v: orjson.Fragment(format(v, "f"))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda v: base64.b64encode(v).decode()
    if pa.types.is_duration(kind):
        return _interval
    if pa.types.is_map(kind):
        inner = _converter(column.items)
        return lambda v: _object(v, inner)
    if pa.types.is_struct(kind):
        inners = {f.name: _converter(column.field(i)) for i, f in enumerate(kind)}
        if not any(inners.values()):
            return None
        return lambda v: {k: _apply(inners[k], x) for k, x in v.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _converter(column.values)
        return None if inner is None else lambda v: [_apply(inner, x) for x in v]
    return None


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _object(pairs: list[tuple[Any, Any]], convert: Convert | None) -> dict[str, Any]:
    found = {key: _apply(convert, value) for key, value in pairs}
    if len(found) < len(pairs):
        raise ValueError("a map has one key twice")
    if not all(type(key) is str for key in found):
        raise TypeError("a map has keys that are not strings")
    return found


def _interval(value: timedelta) -> str:
    """The text as which Spark writes and reads an ``interval day to second``."""
    size = abs(value)
    hours, seconds = divmod(size.seconds, 3600)
    fraction = f".{size.microseconds:06}".rstrip("0") if size.microseconds else ""
    sign = "-" if value < timedelta() else ""
    clock = f"{hours:02}:{seconds // 60:02}:{seconds % 60:02}{fraction}"
    return f"INTERVAL '{sign}{size.days} {clock}' DAY TO SECOND"


def _in_utc_microseconds(kind: pa.DataType) -> pa.DataType:
    """The same type, with microseconds for nanoseconds, of which Python drops the last digits, and with UTC for another
    time zone: orjson writes its offset in minutes, and those of Paris before 1911 have seconds."""
    if pa.types.is_timestamp(kind):
        same = kind.unit != "ns" and kind.tz in (None, "UTC")
        return kind if same else pa.timestamp("us" if kind.unit == "ns" else kind.unit, kind.tz and "UTC")
    if pa.types.is_duration(kind):
        return pa.duration("us") if kind.unit == "ns" else kind
    if pa.types.is_time64(kind):
        return pa.time64("us") if kind.unit == "ns" else kind
    if pa.types.is_map(kind):
        parts = (kind.key_type, kind.item_type)
        changed = tuple(map(_in_utc_microseconds, parts))
        return kind if all(map(_same, parts, changed)) else pa.map_(*changed)
    if pa.types.is_struct(kind):
        before = [f.type for f in kind]
        after = list(map(_in_utc_microseconds, before))
        fields = [f.with_type(t) for f, t in zip(kind, after, strict=True)]
        return kind if all(map(_same, before, after)) else pa.struct(fields)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _in_utc_microseconds(kind.value_type)
        wrap = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        return kind if inner.equals(kind.value_type) else wrap(inner)
    return kind


def _same(a: pa.DataType, b: pa.DataType) -> bool:
    return bool(a.equals(b))


def _check_size(rows: pa.RecordBatch) -> int:
    """Upper bound of the size of these rows as JSON, in bytes, computed before any JSON is made.

    One bit of a message can be a row, and a row of JSON repeats the name of every column: 200 kilobytes can be 60
    gigabytes of JSON.

    :raises OverflowError: above the limit
    """
    size: int = sum(map(_most_bytes, rows.columns)) + rows.num_rows * _name_bytes(rows.schema)
    if size > MAX_TEXT_BYTES:
        raise OverflowError(f"it may be {size / 1e6:,.0f} MB of text")
    return size


def _most_bytes(column: pa.Array) -> int:
    kind, n = column.type, len(column)
    if pa.types.is_struct(kind):
        return n * (_PLAIN + _name_bytes(kind)) + sum(_most_bytes(column.field(i)) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return n * _PLAIN + _most_bytes(column.keys) + _most_bytes(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return n * _PLAIN + _most_bytes(column.values)
    if is_text(kind):
        return n * _PLAIN + _ESCAPED * int(payload_sizes(column).sum())
    return n * _PLAIN


def _name_bytes(fields: pa.Schema | pa.StructType) -> int:
    return sum(_ESCAPED * len(field.name) + 4 for field in fields)
