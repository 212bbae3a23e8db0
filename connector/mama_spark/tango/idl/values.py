"""Attribute values as CDR (AttributeValue_5, _4 and _3), times, and error stacks. Pure.

The three versions differ in where the type is: in the union alone (4), also in a field (5), or in the TypeCode of an
``any`` (3).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..types import (
    AttributeValue,
    Content,
    DevError,
    DevState,
    Dim,
    Format,
    Quality,
    Severity,
)
from .any_value import read_any, write_any
from .union import enum_of, read_enum, read_union, write_union

#: octets of the shortest error
_ERROR_SIZE = 25


def _both(code: str) -> tuple[struct.Struct, struct.Struct]:
    return struct.Struct(">" + code), struct.Struct("<" + code)


#: by IDL version: quality, format and data type as far as they exist, and the time; big and little endian
_BEFORE_NAME = {5: _both("II4i"), 4: _both("II3i"), 3: _both("I3i")}
_DIMS = _both("4i")


# --- errors and time ---------------------------------------------------------------------------------------


def read_errors(reader: CdrReader) -> tuple[DevError, ...]:
    """sequence<DevError>"""
    count = reader.count(_ERROR_SIZE)
    if not count:
        return ()
    return tuple(
        DevError(reader.string(), read_enum(reader, Severity), reader.string(), reader.string()) for _ in range(count)
    )


def write_errors(writer: CdrWriter, errors: Sequence[DevError]) -> None:
    """sequence<DevError>"""
    writer.count(len(errors))
    for error in errors:
        writer.string(error.reason)
        writer.ulong(error.severity)
        writer.string(error.desc)
        writer.string(error.origin)


def read_time(reader: CdrReader) -> int:
    """TimeVal as nanoseconds since the epoch."""
    return reader.long() * 1_000_000_000 + reader.long() * 1000 + reader.long()


def write_time(writer: CdrWriter, time: int) -> None:
    """TimeVal of nanoseconds since the epoch."""
    seconds, rest = divmod(time, 1_000_000_000)
    writer.long(seconds)
    writer.long(rest // 1000)
    writer.long(rest % 1000)


# --- the whole value ---------------------------------------------------------------------------------------


def read_value(reader: CdrReader, idl: int = 5) -> AttributeValue:
    """AttributeValue_5, _4 or _3.

    :param idl: 5, 4 or 3
    :raises CdrError: it is invalid, or its dimensions exceed its content
    """
    kind, content = read_any(reader) if idl == 3 else read_union(reader)
    # all at once, since every event has them
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
        raise CdrError(f"dimensions {tuple(r_dim)} and {tuple(w_dim)}")
    # a set value that is shorter than its dimensions is accepted
    if content is not None and not isinstance(content, DevState) and r_dim.size > len(content):
        raise CdrError(f"{r_dim.size} elements in the dimensions, {len(content)} in the value")


def write_value(writer: CdrWriter, value: AttributeValue, idl: int = 5) -> None:
    """The inverse of :func:`read_value`.

    :raises CdrError: a value does not fit its field, or IDL 5 needs a data type that is unknown
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
            raise CdrError(f"{value.name}: AttributeValue_5 needs the data type")
        writer.long(value.data_type)
    write_time(writer, value.time)
    writer.string(value.name)
    for number in (*value.r_dim, *value.w_dim):
        writer.long(number)
    write_errors(writer, value.errors)
