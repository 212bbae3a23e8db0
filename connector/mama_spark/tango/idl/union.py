"""AttrValUnion (Tango IDL) as CDR, the value of an attribute or of an element of a pipe; and the CORBA ``any`` of
AttributeValue_3, the attribute value for clients older than Tango 8. Pure.

Counts are checked before memory is allocated, so decoding takes at most a small multiple of the size of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..giop.typecode import STRINGS, VOID, TypeCode, TypeKind, read_typecode, sequence_of, write_typecode
from ..types import DTYPES, Content, DevState, Encoded, ValueKind

_STATES = tuple(DevState)
#: smallest size of an encoded DevEncoded, in octets
_ENCODED_SIZE = 12


def read_union(reader: CdrReader) -> tuple[ValueKind, Content]:
    """Decode AttrValUnion; returns discriminator and content.

    :raises CdrError: the data is truncated or invalid
    """
    kind = reader.enum(ValueKind)
    return kind, read_content(reader, kind)


def read_content(reader: CdrReader, kind: ValueKind) -> Content:
    """Decode the content of an AttrValUnion: an array of shape (n,) for numbers, a tuple for other sequences.

    :raises CdrError: the data is truncated or invalid
    """
    dtype = DTYPES.get(kind)
    if dtype is not None:
        return reader.array(dtype)
    if kind is ValueKind.STRING:
        return tuple(reader.strings())
    if kind is ValueKind.STATE:
        return _read_states(reader)
    if kind is ValueKind.DEVICE_STATE:
        return reader.enum(DevState)
    if kind is ValueKind.ENCODED:
        return tuple(Encoded(reader.string(), reader.octets()) for _ in range(reader.count(_ENCODED_SIZE)))
    reader.octet()  # the union carries a boolean without meaning
    return None


def _read_states(reader: CdrReader) -> tuple[DevState, ...]:
    numbers = reader.array(np.uint32)
    if len(numbers) and numbers.max() >= len(_STATES):
        raise CdrError(f"{numbers.max()} is no DevState")
    return tuple(_STATES[n] for n in numbers.tolist())


def write_union(writer: CdrWriter, kind: ValueKind, content: Content) -> None:
    """The inverse of :func:`read_union`.

    :raises CdrError: the content is not of this kind
    """
    writer.ulong(kind)
    write_content(writer, kind, content)


def write_content(writer: CdrWriter, kind: ValueKind, content: Content) -> None:
    """The inverse of :func:`read_content`.

    :raises CdrError: the content is not of this kind
    """
    dtype = DTYPES.get(kind)
    if kind is ValueKind.NO_DATA:
        if content is not None:
            raise CdrError("a value of kind NO_DATA must have no content")
        writer.octet(1)
    elif kind is ValueKind.DEVICE_STATE:
        writer.ulong(_state(content))
    elif content is None or isinstance(content, (DevState, str)):
        raise CdrError(f"{content!r} is no sequence of {kind.name}")
    elif dtype is not None:
        writer.array(cast(npt.ArrayLike, content), dtype)
    elif kind is ValueKind.STRING:
        writer.strings(_all(content, str))
    elif kind is ValueKind.STATE:
        writer.array([_state(state) for state in content], np.uint32)
    else:
        _write_encoded(writer, _all(content, Encoded))


def _write_encoded(writer: CdrWriter, values: tuple[Encoded, ...]) -> None:
    writer.count(len(values))
    for value in values:
        writer.string(value.format)
        writer.octets(value.data)


_T = TypeVar("_T")


def _all(content: object, wanted: type[_T]) -> tuple[_T, ...]:
    values = tuple(cast(Sequence[object], content))
    if not all(isinstance(value, wanted) for value in values):
        raise CdrError(f"not all of {values[:3]!r} are {wanted.__name__}")
    return cast("tuple[_T, ...]", values)


def _state(value: object) -> DevState:
    if not isinstance(value, DevState):
        raise CdrError(f"{value!r} is no DevState")
    return value


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
