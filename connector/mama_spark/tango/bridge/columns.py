"""Types of DataFrame columns and the Tango types that they become. Pure.

=============================== ================================================================================
column ``value``                in Tango
=============================== ================================================================================
boolean                         DevBoolean
tinyint, smallint               DevShort
int                             DevLong
bigint                          DevLong64
float, double                   DevFloat, DevDouble
decimal(20,0)                   DevULong64
string                          DevString (Latin-1); for the attribute ``State`` the name of a DevState
binary                          DevEncoded without a format
struct<format:string,data:binary> DevEncoded
array of these but binary, struct a spectrum
array of array of these         an image; its rows have the same length
=============================== ================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from mama_spark.contracts.errors import SchemaError
from mama_spark.contracts.message import Int64s

from ..types import DataType, Format

COLUMNS = {
    "device": "string",
    "attribute": "string",
    "value": "boolean, number, string, array (of array) of these, binary or struct<format:string,data:binary>",
    "quality": "string",
    "time": "timestamp, or bigint of nanoseconds since the epoch",
}
REQUIRED = ("device", "attribute", "value")

_ULONG64 = pa.decimal128(20, 0)
_NUMBERS: dict[pa.DataType, DataType] = {
    pa.bool_(): DataType.BOOLEAN, pa.int8(): DataType.SHORT, pa.int16(): DataType.SHORT, pa.int32(): DataType.LONG,
    pa.int64(): DataType.LONG64, pa.float32(): DataType.FLOAT, pa.float64(): DataType.DOUBLE,
    _ULONG64: DataType.ULONG64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueForm:
    data_type: DataType
    format: Format

    @property
    def is_number(self) -> bool:
        """Whether elements are numbers or booleans."""
        return self.data_type not in (DataType.STRING, DataType.ENCODED)


def form_of(kind: pa.DataType) -> ValueForm:
    """Return the Tango type of a column type.

    :raises SchemaError: Tango has no such type
    """
    element, depth = kind, 0
    while pt.is_list(element) or pt.is_large_list(element):
        element, depth = element.value_type, depth + 1
    found = _element(element)
    if found is None or depth > 2 or (depth and found is DataType.ENCODED):
        raise SchemaError(f"column 'value' must be {COLUMNS['value']}; Tango has no type for {kind}")
    return ValueForm(found, Format(depth))


def _element(kind: pa.DataType) -> DataType | None:
    if pt.is_string(kind) or pt.is_large_string(kind):
        return DataType.STRING
    if _is_binary(kind):
        return DataType.ENCODED
    if pt.is_struct(kind):
        fields = {field.name.lower(): field.type for field in kind}
        good = list(fields) == ["format", "data"] and pt.is_string(fields["format"]) and _is_binary(fields["data"])
        return DataType.ENCODED if good else None
    return _NUMBERS.get(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind))


def check(schema: pa.Schema) -> None:
    """Check the columns of a DataFrame; see :class:`~mama_spark.contracts.message.RowCodec`.

    :raises SchemaError: a column has a wrong type
    """
    for name in ("device", "attribute", "quality"):
        if name in schema.names and not pt.is_string(schema.field(name).type):
            raise SchemaError(f"column {name!r} must be string, it is {schema.field(name).type}")
    form_of(schema.field("value").type)
    if "time" in schema.names:
        kind = schema.field("time").type
        if not (pt.is_timestamp(kind) and kind.tz is not None) and kind != pa.int64():
            raise SchemaError(f"column 'time' must be {COLUMNS['time']}, it is {kind}")


def out_of_range(values: pa.Array) -> Int64s:
    """Rows with numbers outside the range of their Tango type, shape (k,)."""
    if values.type != _ULONG64:
        return np.empty(0, np.int64)
    negative, large = pc.less(values, pa.scalar(0, _ULONG64)), pc.greater(values, pa.scalar(2**64 - 1, _ULONG64))
    found: Int64s = np.flatnonzero(np.asarray(pc.or_(negative, large).fill_null(False)))
    return found


def numbers(values: pa.Array) -> npt.NDArray[Any]:
    """Convert numbers to the numpy type of their Tango type, shape (n,). They must be in range and not null."""
    if values.type == _ULONG64:
        return np.array([int(v) for v in values.to_pylist()], np.uint64)  # numpy has no decimal type
    if values.type == pa.int8():
        values = values.cast(pa.int16())
    found: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found
