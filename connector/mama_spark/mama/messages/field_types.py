"""The field types of MAMA messages, by their numbers on the wire. Pure."""

from __future__ import annotations

from enum import IntEnum


class FieldType(IntEnum):
    """``MAMA_FIELD_TYPE_*``."""

    MSG = 1
    OPAQUE = 7
    STRING = 8
    BOOL = 9
    CHAR = 10
    I8 = 14
    U8 = 15
    I16 = 16
    U16 = 17
    I32 = 18
    U32 = 19
    I64 = 20
    U64 = 21
    F32 = 24
    F64 = 25
    TIME = 26
    PRICE = 27
    VECTOR_BOOL = 29
    VECTOR_CHAR = 30
    VECTOR_I8 = 34
    VECTOR_U8 = 35
    VECTOR_I16 = 36
    VECTOR_U16 = 37
    VECTOR_I32 = 38
    VECTOR_U32 = 39
    VECTOR_I64 = 40
    VECTOR_U64 = 41
    VECTOR_F32 = 44
    VECTOR_F64 = 45
    VECTOR_STRING = 46
    VECTOR_MSG = 47
    VECTOR_TIME = 48
    VECTOR_PRICE = 49
    QUANTITY = 50
    COLLECTION = 99
    UNKNOWN = 100

    @property
    def vector(self) -> FieldType:
        """The type of vectors of this type."""
        return FieldType[f"VECTOR_{self.name}"]

    @property
    def element(self) -> FieldType | None:
        """The type of a vector's elements; None for other types."""
        scalar = self.name.removeprefix("VECTOR_")
        return None if scalar == self.name else FieldType[scalar]


#: Types of numbers and booleans -> their layout, as a letter of the module ``struct``.
STRUCT_CODES = {
    FieldType.BOOL: "?",
    FieldType.I8: "b",
    FieldType.U8: "B",
    FieldType.I16: "h",
    FieldType.U16: "H",
    FieldType.I32: "i",
    FieldType.U32: "I",
    FieldType.I64: "q",
    FieldType.U64: "Q",
    FieldType.F32: "f",
    FieldType.F64: "d",
    FieldType.QUANTITY: "I",  # four bytes on the wire, whatever the C type is
}
