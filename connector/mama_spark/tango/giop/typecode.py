"""CORBA TypeCodes (CORBA 3.0, 15.3.5), and the ``any`` of command arguments: a TypeCode and a value of that type. Pure.

Types are strings, numbers, enumerations, sequences of these, and structures. Python values are numbers, ``str``, numpy
arrays (sequences of numbers), ``bytes`` (sequences of octet), lists of ``str``, and tuples (structures). Readers raise
:class:`CdrError` for data that is truncated or of a type that Tango does not use, writers for a value of another type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from .cdr import CdrError, CdrReader, CdrWriter

_DEPTH = 8  # most levels of nested types; those of Tango have up to 5


class TypeKind(IntEnum):
    """TCKind: the kinds of TypeCodes that Tango uses."""

    NULL = 0
    VOID = 1
    SHORT = 2
    LONG = 3
    USHORT = 4
    ULONG = 5
    FLOAT = 6
    DOUBLE = 7
    BOOLEAN = 8
    CHAR = 9
    OCTET = 10
    STRUCT = 15
    ENUM = 17
    STRING = 18
    SEQUENCE = 19
    ALIAS = 21
    LONGLONG = 23
    ULONGLONG = 24


@dataclass(frozen=True, slots=True)
class TypeCode:
    """Description of a type.

    :ivar id: repository id such as ``IDL:Tango/DevVarStringArray:1.0``; empty for basic types
    :ivar names: names of the members of a structure, or labels of an enumeration
    :ivar members: types of the members of a structure; the one element type of a sequence or original type of an alias
    :ivar bound: largest length of a string or sequence; 0: unbounded
    """

    kind: TypeKind
    id: str = ""
    name: str = ""
    names: tuple[str, ...] = ()
    members: tuple[TypeCode, ...] = ()
    bound: int = 0

    @property
    def real(self) -> TypeCode:
        """The type behind aliases."""
        return self.members[0].real if self.kind is TypeKind.ALIAS else self


#: kind -> (numpy type of a sequence, how one is read, how one is written)
_NUMBERS: dict[TypeKind, tuple[str, Callable[[CdrReader], Any], Callable[[CdrWriter, Any], None]]] = {
    TypeKind.SHORT: ("i2", CdrReader.short, CdrWriter.short),
    TypeKind.LONG: ("i4", CdrReader.long, CdrWriter.long),
    TypeKind.USHORT: ("u2", CdrReader.ushort, CdrWriter.ushort),
    TypeKind.ULONG: ("u4", CdrReader.ulong, CdrWriter.ulong),
    TypeKind.FLOAT: ("f4", CdrReader.float, CdrWriter.float),
    TypeKind.DOUBLE: ("f8", CdrReader.double, CdrWriter.double),
    TypeKind.BOOLEAN: ("?", CdrReader.boolean, CdrWriter.boolean),
    TypeKind.CHAR: ("u1", CdrReader.octet, CdrWriter.octet),
    TypeKind.OCTET: ("u1", CdrReader.octet, CdrWriter.octet),
    TypeKind.ENUM: ("u4", CdrReader.ulong, CdrWriter.ulong),
    TypeKind.LONGLONG: ("i8", CdrReader.longlong, CdrWriter.longlong),
    TypeKind.ULONGLONG: ("u8", CdrReader.ulonglong, CdrWriter.ulonglong),
}


def _tango(kind: TypeKind, name: str, names: tuple[str, ...], *members: TypeCode) -> TypeCode:
    return TypeCode(kind, f"IDL:Tango/{name}:1.0", name, names, members)


def sequence_of(name: str, element: TypeCode) -> TypeCode:
    """Type of a sequence of Tango, such as ``DevVarLongArray``."""
    return _tango(TypeKind.ALIAS, name, (), TypeCode(TypeKind.SEQUENCE, members=(element,)))


VOID = TypeCode(TypeKind.NULL)  #: type of no argument; cppTango sends tk_null
STRING = TypeCode(TypeKind.STRING)
STRINGS = sequence_of("DevVarStringArray", STRING)
LONGS = sequence_of("DevVarLongArray", TypeCode(TypeKind.LONG))
LONGS_AND_STRINGS = _tango(TypeKind.STRUCT, "DevVarLongStringArray", ("lvalue", "svalue"), LONGS, STRINGS)


def read_typecode(reader: CdrReader, depth: int = _DEPTH) -> TypeCode:
    """Decode a TypeCode of at most ``depth`` nested levels."""
    number = reader.ulong()
    if number not in _KINDS:
        raise CdrError(f"Tango does not use TypeCodes of kind {number}")
    kind = _KINDS[number]
    if kind is TypeKind.STRING:
        return TypeCode(kind, bound=reader.ulong())
    if kind not in (TypeKind.STRUCT, TypeKind.ENUM, TypeKind.SEQUENCE, TypeKind.ALIAS):
        return TypeCode(kind)
    if not depth:
        raise CdrError(f"a type with more than {_DEPTH} levels")
    inner = reader.encapsulation()
    if kind is TypeKind.SEQUENCE:
        member = read_typecode(inner, depth - 1)
        if member.real.kind is not TypeKind.STRING and member.real.kind not in _NUMBERS:
            raise CdrError(f"a sequence of {member.real.kind.name} is not supported")
        return TypeCode(kind, members=(member,), bound=inner.ulong())
    id_, name = inner.string(), inner.string()
    if kind is TypeKind.ALIAS:
        return TypeCode(kind, id_, name, members=(read_typecode(inner, depth - 1),))
    if kind is TypeKind.ENUM:
        return TypeCode(kind, id_, name, tuple(inner.strings()))
    names, members = [], []
    for _ in range(inner.count(9)):
        names.append(inner.string())
        members.append(read_typecode(inner, depth - 1))
        if members[-1].real.kind in (TypeKind.NULL, TypeKind.VOID):
            raise CdrError("a structure with a member of type void")
    return TypeCode(kind, id_, name, tuple(names), tuple(members))


_KINDS = {int(kind): kind for kind in TypeKind}


def write_typecode(writer: CdrWriter, code: TypeCode) -> None:
    writer.ulong(code.kind)
    if code.kind is TypeKind.STRING:
        writer.ulong(code.bound)
    if code.kind not in (TypeKind.STRUCT, TypeKind.ENUM, TypeKind.SEQUENCE, TypeKind.ALIAS):
        return
    inner = CdrWriter.inner(writer.little)
    if code.kind is TypeKind.SEQUENCE:
        write_typecode(inner, code.members[0])
        inner.ulong(code.bound)
    else:
        inner.string(code.id)
        inner.string(code.name)
        if code.kind is TypeKind.ALIAS:
            write_typecode(inner, code.members[0])
        elif code.kind is TypeKind.ENUM:
            inner.strings(code.names)
        else:
            inner.count(len(code.members))
            for name, member in zip(code.names, code.members, strict=True):
                inner.string(name)
                write_typecode(inner, member)
    writer.encapsulation(inner)


def read_any(reader: CdrReader) -> tuple[TypeCode, Any]:
    """Type and value of an ``any``; the value of VOID is None."""
    code = read_typecode(reader)
    return code, read_value(reader, code)


def write_any(writer: CdrWriter, code: TypeCode, value: Any) -> None:
    write_typecode(writer, code)
    write_value(writer, code, value)


def read_value(reader: CdrReader, code: TypeCode) -> Any:
    code = code.real
    if code.kind in _NUMBERS:
        return _NUMBERS[code.kind][1](reader)
    if code.kind is TypeKind.STRING:
        return reader.string()
    if code.kind is TypeKind.STRUCT:
        return tuple(read_value(reader, member) for member in code.members)
    return _read_sequence(reader, code.members[0].real) if code.kind is TypeKind.SEQUENCE else None


def _read_sequence(reader: CdrReader, element: TypeCode) -> Any:
    if element.kind in (TypeKind.OCTET, TypeKind.CHAR):
        return reader.octets()
    if element.kind in _NUMBERS:
        return reader.array(_NUMBERS[element.kind][0])
    return reader.strings()


def write_value(writer: CdrWriter, code: TypeCode, value: Any) -> None:
    code = code.real
    try:
        if code.kind in _NUMBERS:
            _NUMBERS[code.kind][2](writer, value)
        elif code.kind is TypeKind.STRING:
            writer.string(value)
        elif code.kind is TypeKind.STRUCT:
            for member, part in zip(code.members, value, strict=True):
                write_value(writer, member, part)
        elif code.kind is TypeKind.SEQUENCE:
            _write_sequence(writer, code.members[0].real, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise CdrError(f"{value!r:.100} cannot be encoded as {code.name or code.kind.name}: {error}") from None


def _write_sequence(writer: CdrWriter, element: TypeCode, value: Any) -> None:
    if element.kind in (TypeKind.OCTET, TypeKind.CHAR):
        writer.octets(bytes(value))
    elif element.kind in _NUMBERS:
        writer.array(value, _NUMBERS[element.kind][0])
    else:
        writer.strings(value)
