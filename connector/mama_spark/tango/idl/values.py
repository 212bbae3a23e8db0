"""Attribute values (AttributeValue_5, _4 and _3 of the Tango IDL), times and error stacks as CDR. Pure.

The versions differ in what carries the data type: 4 the union, 5 the union and a field, 3 the TypeCode of an ``any``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..giop.cdr import CdrError, CdrReader, CdrWriter, enum_of
from ..types import AttributeValue, Content, DevError, DevState, Dim, Format, Quality, Severity
from .union import read_any, read_union, write_any, write_union

#: smallest size of an encoded error, in octets
_ERROR_SIZE = 25


def _both(code: str) -> tuple[struct.Struct, struct.Struct]:
    return struct.Struct(">" + code), struct.Struct("<" + code)


#: IDL version -> big- and little-endian formats of quality, format (4, 5), data type (5) and time
_BEFORE_NAME = {5: _both("II4i"), 4: _both("II3i"), 3: _both("I3i")}
_DIMS = _both("4i")


# --- errors and time ---------------------------------------------------------------------------------------


def read_errors(reader: CdrReader) -> tuple[DevError, ...]:
    """Decode DevErrorList, an error stack (TG-18).

    :raises CdrError: the data is truncated or invalid
    """
    count = reader.count(_ERROR_SIZE)
    if not count:
        return ()
    return tuple(DevError(reader.text(), reader.enum(Severity), reader.text(), reader.text()) for _ in range(count))


def _write_error_text(writer: CdrWriter, text: str) -> None:
    """In Latin-1, which PyTango's clients expect in errors; in UTF-8, as PyTango's servers, what that cannot carry, and
    what would be read as UTF-8."""
    try:
        text.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        writer.string(text)
    except UnicodeEncodeError:
        writer.text(text)
    else:
        writer.text(text)


def write_errors(writer: CdrWriter, errors: Sequence[DevError]) -> None:
    """The inverse of :func:`read_errors`."""
    writer.count(len(errors))
    for error in errors:
        _write_error_text(writer, error.reason)
        writer.ulong(error.severity)
        _write_error_text(writer, error.desc)
        _write_error_text(writer, error.origin)


def read_time(reader: CdrReader) -> int:
    """Decode TimeVal as nanoseconds since the epoch."""
    return reader.long() * 1_000_000_000 + reader.long() * 1000 + reader.long()


def write_time(writer: CdrWriter, time: int) -> None:
    """Encode nanoseconds since the epoch as TimeVal."""
    seconds, rest = divmod(time, 1_000_000_000)
    writer.long(seconds)
    writer.long(rest // 1000)
    writer.long(rest % 1000)


# --- the whole value ---------------------------------------------------------------------------------------


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
