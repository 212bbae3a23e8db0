"""Attribute values (AttributeValue_5, _4 and _3 of the Tango IDL), times and error stacks as CDR. Pure.

The versions differ in what carries the data type: 4 the union, 5 the union and a field, 3 the TypeCode of an ``any``.
AttrValUnion is also the value of an element of a pipe. Counts are checked before memory is allocated, so decoding takes
at most a small multiple of the size of the data. Decoding raises :class:`CdrError` for data that is truncated or
invalid, encoding for a content of another kind or a value that does not fit its field.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..giop.cdr import CdrError, CdrReader, CdrWriter, enum_of
from ..giop.typecode import STRINGS, VOID, TypeCode, TypeKind, read_typecode, sequence_of, write_typecode
from ..types import (
    DTYPES,
    AttributeValue,
    Content,
    DevError,
    DevState,
    Dim,
    Encoded,
    Format,
    Quality,
    Severity,
    ValueKind,
)

_STATES = tuple(DevState)
#: smallest size of an encoded DevEncoded, in bytes
_ENCODED_SIZE = 12


def read_union(reader: CdrReader) -> tuple[ValueKind, Content]:
    """Discriminator and content of an AttrValUnion."""
    kind = reader.enum(ValueKind)
    return kind, read_content(reader, kind)


def read_content(reader: CdrReader, kind: ValueKind) -> Content:
    """Decode the content of an AttrValUnion: an array of shape (n,) for numbers, a tuple for other sequences."""
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
    writer.ulong(kind)
    write_content(writer, kind, content)


def write_content(writer: CdrWriter, kind: ValueKind, content: Content) -> None:
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
    ValueKind.BOOL: ("Boolean", TypeKind.BOOLEAN), ValueKind.SHORT: ("Short", TypeKind.SHORT),
    ValueKind.LONG: ("Long", TypeKind.LONG), ValueKind.LONG64: ("Long64", TypeKind.LONGLONG),
    ValueKind.FLOAT: ("Float", TypeKind.FLOAT), ValueKind.DOUBLE: ("Double", TypeKind.DOUBLE),
    ValueKind.UCHAR: ("Char", TypeKind.OCTET), ValueKind.USHORT: ("UShort", TypeKind.USHORT),
    ValueKind.ULONG: ("ULong", TypeKind.ULONG), ValueKind.ULONG64: ("ULong64", TypeKind.ULONGLONG),
}  # fmt: skip
#: kind of value -> type of the sequence
_SEQUENCES: dict[ValueKind, TypeCode] = {
    **{kind: sequence_of(f"DevVar{name}Array", TypeCode(of)) for kind, (name, of) in _NUMBERS.items()},
    ValueKind.STRING: STRINGS,
    ValueKind.STATE: sequence_of("DevVarStateArray", STATE),
}
_KINDS = {code.real.members[0].kind: kind for kind, code in _SEQUENCES.items()}


def read_any(reader: CdrReader) -> tuple[ValueKind, Content]:
    """Kind and content of an ``any``; a void one has the kind NO_DATA."""
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


#: smallest size of an encoded error, in bytes
_ERROR_SIZE = 25


def _both(code: str) -> tuple[struct.Struct, struct.Struct]:
    return struct.Struct(">" + code), struct.Struct("<" + code)


#: IDL version -> big- and little-endian formats of quality, format (4, 5), data type (5) and time
_BEFORE_NAME = {5: _both("II4i"), 4: _both("II3i"), 3: _both("I3i")}
_DIMS = _both("4i")


def read_errors(reader: CdrReader) -> tuple[DevError, ...]:
    """Decode DevErrorList, an error stack (TG-18)."""
    count = reader.count(_ERROR_SIZE)
    if not count:
        return ()
    return tuple(DevError(reader.text(), reader.enum(Severity), reader.text(), reader.text()) for _ in range(count))


def write_errors(writer: CdrWriter, errors: Sequence[DevError]) -> None:
    writer.count(len(errors))
    for error in errors:
        writer.error_text(error.reason)
        writer.ulong(error.severity)
        writer.error_text(error.desc)
        writer.error_text(error.origin)


def read_time(reader: CdrReader) -> int:
    """Decode TimeVal as nanoseconds since the epoch."""
    return reader.long() * 1_000_000_000 + reader.long() * 1000 + reader.long()


def write_time(writer: CdrWriter, time: int) -> None:
    """Encode nanoseconds since the epoch as TimeVal."""
    seconds, rest = divmod(time, 1_000_000_000)
    writer.long(seconds)
    writer.long(rest // 1000)
    writer.long(rest % 1000)


def read_value(reader: CdrReader, idl: int = 5) -> AttributeValue:
    """Decode AttributeValue_5, _4 or _3 (TG-17).

    :param idl: 5, 4 or 3
    :raises CdrError: the data is truncated or invalid, or the dimensions exceed the content
    """
    kind, content = read_any(reader) if idl == 3 else read_union(reader)
    # unpacked together, since every event has them
    *fields, seconds, micro, nano = _numbers(reader, _BEFORE_NAME[idl])
    quality = enum_of(Quality, fields[0])
    format_ = Format.UNKNOWN if idl == 3 else enum_of(Format, fields[1])
    name = reader.string()
    r_x, r_y, w_x, w_y = _numbers(reader, _DIMS)
    r_dim, w_dim = Dim(r_x, r_y), Dim(w_x, w_y)
    _check_dims(content, r_dim, w_dim)
    time = seconds * 1_000_000_000 + micro * 1000 + nano
    data_type = fields[2] if idl == 5 else None
    return AttributeValue(name, kind, content, time, quality, format_, data_type, r_dim, w_dim, read_errors(reader))


def _numbers(reader: CdrReader, codes: tuple[struct.Struct, struct.Struct]) -> tuple[int, ...]:
    code = codes[reader.little]
    reader.align(4)
    return code.unpack(reader.raw(code.size))


def _check_dims(content: Content, r_dim: Dim, w_dim: Dim) -> None:
    if min(*r_dim, *w_dim) < 0:
        raise CdrError(f"negative dimensions: {tuple(r_dim)} and {tuple(w_dim)}")
    # a set value with fewer elements than its dimensions give is accepted
    if content is not None and not isinstance(content, DevState) and r_dim.size > len(content):
        raise CdrError(f"the dimensions give {r_dim.size} elements, the value has {len(content)}")


def write_value(writer: CdrWriter, value: AttributeValue, idl: int = 5) -> None:
    """The inverse of :func:`read_value`.

    :raises CdrError: a value does not fit its field, or the data type is unknown, which IDL 5 needs
    """
    if idl == 3:
        write_any(writer, value.kind, value.content)
    else:
        write_union(writer, value.kind, value.content)
    writer.ulong(value.quality)
    if idl != 3:
        writer.ulong(value.format)
    if idl == 5:
        if value.data_type is None:
            raise CdrError(f"{value.name}: AttributeValue_5 needs a data type")
        writer.long(value.data_type)
    write_time(writer, value.time)
    writer.string(value.name)
    for number in (*value.r_dim, *value.w_dim):
        writer.long(number)
    write_errors(writer, value.errors)
