"""The CORBA ``any`` of AttributeValue_3, the form of clients before Tango 8. Pure.

Its type is an alias of a sequence (``DevVarDoubleArray``), a DevState, or nothing.
"""

from __future__ import annotations

from ..giop.cdr import CdrError, Reader, Writer
from ..giop.typecode import VOID, Kind, TypeCode, read_typecode, write_typecode
from ..types import Content, DevState, ValueKind
from .union import read_content, write_content

_STATE = TypeCode(Kind.ENUM, "IDL:Tango/DevState:1.0", "DevState", tuple(state.name for state in DevState))
#: kind of value -> type of an element, name of the sequence
_SEQUENCES: dict[ValueKind, tuple[TypeCode, str]] = {
    ValueKind.BOOL: (TypeCode(Kind.BOOLEAN), "DevVarBooleanArray"),
    ValueKind.SHORT: (TypeCode(Kind.SHORT), "DevVarShortArray"),
    ValueKind.LONG: (TypeCode(Kind.LONG), "DevVarLongArray"),
    ValueKind.LONG64: (TypeCode(Kind.LONGLONG), "DevVarLong64Array"),
    ValueKind.FLOAT: (TypeCode(Kind.FLOAT), "DevVarFloatArray"),
    ValueKind.DOUBLE: (TypeCode(Kind.DOUBLE), "DevVarDoubleArray"),
    ValueKind.UCHAR: (TypeCode(Kind.OCTET), "DevVarCharArray"),
    ValueKind.USHORT: (TypeCode(Kind.USHORT), "DevVarUShortArray"),
    ValueKind.ULONG: (TypeCode(Kind.ULONG), "DevVarULongArray"),
    ValueKind.ULONG64: (TypeCode(Kind.ULONGLONG), "DevVarULong64Array"),
    ValueKind.STRING: (TypeCode(Kind.STRING), "DevVarStringArray"),
    ValueKind.STATE: (_STATE, "DevVarStateArray"),
}
_KINDS = {element.kind: kind for kind, (element, _) in _SEQUENCES.items()}


def read_any(reader: Reader) -> tuple[ValueKind, Content]:
    """The kind and the content of an ``any``; a null one is NO_DATA.

    :raises CdrError: cut short, or a type that no attribute has
    """
    code = read_typecode(reader).real
    if code.kind in (Kind.NULL, Kind.VOID):
        return ValueKind.NO_DATA, None
    if code.kind is Kind.ENUM:
        return ValueKind.DEVICE_STATE, read_content(reader, ValueKind.DEVICE_STATE)
    kind = _KINDS.get(code.members[0].real.kind) if code.kind is Kind.SEQUENCE else None
    if kind is None:
        raise CdrError(f"an attribute of {code.kind.name}")
    return kind, read_content(reader, kind)


def write_any(writer: Writer, kind: ValueKind, content: Content) -> None:
    """The mirror image of :func:`read_any`.

    :raises CdrError: the content is none of this kind, or there was no such kind (DevEncoded came later)
    """
    if kind is ValueKind.NO_DATA:
        write_typecode(writer, VOID)
        return
    if kind is ValueKind.DEVICE_STATE:
        write_typecode(writer, _STATE)
    elif kind in _SEQUENCES:
        element, name = _SEQUENCES[kind]
        sequence = TypeCode(Kind.SEQUENCE, members=(element,))
        write_typecode(writer, TypeCode(Kind.ALIAS, f"IDL:Tango/{name}:1.0", name, members=(sequence,)))
    else:
        raise CdrError(f"an any of {kind.name}")
    write_content(writer, kind, content)
