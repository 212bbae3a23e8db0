"""Encodes the CORBA ``any`` of AttributeValue_3, the attribute value for clients older than Tango 8. Pure.

The type of the ``any`` is an alias of a sequence (``DevVarDoubleArray``), DevState, or void.
"""

from __future__ import annotations

from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..giop.typecode import STRINGS, VOID, TypeCode, TypeKind, read_typecode, sequence_of, write_typecode
from ..types import Content, DevState, ValueKind
from .union import read_content, write_content

STATE = TypeCode(TypeKind.ENUM, "IDL:Tango/DevState:1.0", "DevState", tuple(state.name for state in DevState))
_NUMBERS = {
    ValueKind.BOOL: ("Boolean", TypeKind.BOOLEAN),
    ValueKind.SHORT: ("Short", TypeKind.SHORT),
    ValueKind.LONG: ("Long", TypeKind.LONG),
    ValueKind.LONG64: ("Long64", TypeKind.LONGLONG),
    ValueKind.FLOAT: ("Float", TypeKind.FLOAT),
    ValueKind.DOUBLE: ("Double", TypeKind.DOUBLE),
    ValueKind.UCHAR: ("Char", TypeKind.OCTET),
    ValueKind.USHORT: ("UShort", TypeKind.USHORT),
    ValueKind.ULONG: ("ULong", TypeKind.ULONG),
    ValueKind.ULONG64: ("ULong64", TypeKind.ULONGLONG),
}
#: kind of value -> type of the sequence
_SEQUENCES: dict[ValueKind, TypeCode] = {
    **{kind: sequence_of(f"DevVar{name}Array", TypeCode(of)) for kind, (name, of) in _NUMBERS.items()},
    ValueKind.STRING: STRINGS,
    ValueKind.STATE: sequence_of("DevVarStateArray", STATE),
}
_KINDS = {code.real.members[0].kind: kind for kind, code in _SEQUENCES.items()}


def read_any(reader: CdrReader) -> tuple[ValueKind, Content]:
    """Decode an ``any``; returns kind and content. A void one has the kind NO_DATA.

    :raises CdrError: the data is truncated, or of a type that no attribute has
    """
    code = read_typecode(reader).real
    if code.kind in (TypeKind.NULL, TypeKind.VOID):
        return ValueKind.NO_DATA, None
    if code.kind is TypeKind.ENUM:
        return ValueKind.DEVICE_STATE, read_content(reader, ValueKind.DEVICE_STATE)
    kind = _KINDS.get(code.members[0].real.kind) if code.kind is TypeKind.SEQUENCE else None
    if kind is None:
        raise CdrError(f"no attribute has a value of type {code.kind.name}")
    return kind, read_content(reader, kind)


def write_any(writer: CdrWriter, kind: ValueKind, content: Content) -> None:
    """The inverse of :func:`read_any`.

    :raises CdrError: the content is of another kind, or AttributeValue_3 does not have the kind (DevEncoded)
    """
    if kind is ValueKind.NO_DATA:
        write_typecode(writer, VOID)
        return
    if kind is ValueKind.DEVICE_STATE:
        write_typecode(writer, STATE)
    elif kind in _SEQUENCES:
        write_typecode(writer, _SEQUENCES[kind])
    else:
        raise CdrError(f"AttributeValue_3 cannot carry {kind.name}")
    write_content(writer, kind, content)
