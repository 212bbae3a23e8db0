"""Types of the columns that fields of messages become. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from mama_spark.contracts.errors import ConfigError

from .field_types import FieldType

TIMESTAMP = pa.timestamp("us", "UTC")
#: What a column is where only a dictionary says its type.
ARROW_TYPES: dict[FieldType, pa.DataType] = {
    FieldType.BOOL: pa.bool_(),
    FieldType.CHAR: pa.string(),
    FieldType.I8: pa.int8(),
    FieldType.U8: pa.int16(),
    FieldType.I16: pa.int16(),
    FieldType.U16: pa.int32(),
    FieldType.I32: pa.int32(),
    FieldType.U32: pa.int64(),
    FieldType.I64: pa.int64(),
    FieldType.U64: pa.decimal128(20, 0),
    FieldType.F32: pa.float32(),
    FieldType.F64: pa.float64(),
    FieldType.QUANTITY: pa.int64(),
    FieldType.PRICE: pa.float64(),
    FieldType.TIME: TIMESTAMP,
    FieldType.STRING: pa.string(),
    FieldType.OPAQUE: pa.binary(),
    FieldType.COLLECTION: pa.binary(),
}


def arrow_type_of(kind: FieldType) -> pa.DataType:
    """The type of a column for fields of this type: of a vector a list, of messages JSON."""
    if kind.name.startswith("VECTOR_") and kind is not FieldType.VECTOR_MSG:
        return pa.list_(ARROW_TYPES[FieldType[kind.name.removeprefix("VECTOR_")]])
    return ARROW_TYPES.get(kind, pa.string())


@dataclass(frozen=True, slots=True)
class TypedField:
    """A column for the fields of one name.

    :ivar fid: fields of this number without a name, or with another one, are meant as well; 0 = by name alone
    """

    name: str
    type: pa.DataType
    fid: int = 0

    def takes(self, name: str, fid: int) -> bool:
        return name == self.name or (self.fid != 0 and fid == self.fid)


class UnfitColumn(ConfigError):
    """No field can be in a column of this type."""


def check_type(name: str, kind: pa.DataType) -> None:
    """:raises UnfitColumn: no field of a message can be in a column of this type"""
    element = kind.value_type if pt.is_list(kind) else kind
    known = (
        pt.is_boolean(element) or pt.is_integer(element) or pt.is_floating(element) or pt.is_string(element)
        or pt.is_binary(element) or pt.is_decimal128(element) or element == TIMESTAMP
    )  # fmt: skip
    if not known:
        raise UnfitColumn(
            f"column {name!r} of type {kind}: fields of messages can be boolean, numbers, decimal, string, binary, "
            "timestamp, or arrays of these"
        )
