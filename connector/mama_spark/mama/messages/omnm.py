"""OMNM version 1: a MAMA message as bytes.

Little-endian, unaligned. A header of three bytes (``O``, version, number of further header bytes), then fields to the
end: type u8, fid u16, name and NUL, value. :data:`_SCALARS`, :data:`_READERS` and :data:`_WRITE` hold the layout of
each type.

:func:`decode` is safe for untrusted bytes: it raises only :class:`BadMessage`, reads nothing beyond the message, and
allocates by the bytes present, never by an announced length. It handles what the C library is known to write: text has
no encoding (what is no UTF-8 is read as Latin-1); a VECTOR_STRING may be announced too long, with old bytes of the
buffer behind its strings (read up to the last NUL, without empty strings at the end); a narrow value under a wide type
makes the following fields unreadable (an error). Empty vectors are decoded, although the library cannot write them.

:func:`encode` writes what the C library reads. That library uses the length of the *first* element of a VECTOR_MSG for
all elements, and misreads times before 1970.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from .field_types import FieldType
from .msg import MAX_DEPTH, Field, MamaMsg
from .status import Status, StatusError
from .values import MamaPrice, MamaTime

HEADER = b"O\x01\x00"
VERSION = 1

_FORMATS = {
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
    FieldType.QUANTITY: "I",
}
_FID = struct.Struct("<H")
_LENGTH = struct.Struct("<I")
_TIME = struct.Struct("<B7xqIB14s5x")  # 40 bytes
_PRICE = struct.Struct("<B7xd3s5x")  # 24 bytes


class BadMessage(StatusError):
    """Bytes that are no valid message, or a message that cannot be encoded; the text has place and reason."""

    def __init__(self, info: str, status: Status = Status.INVALID_ARG) -> None:
        super().__init__(status, info)

    def __reduce__(self) -> tuple[type[BadMessage], tuple[str, Status]]:
        return type(self), (self.info, self.status)


# --- reading -------------------------------------------------------------------------------------------------

#: (data, position, end, levels left) -> (value, position after it)
Reader = Callable[[bytes, int, int, int], tuple[Any, int]]


def decode(data: bytes | bytearray | memoryview, max_bytes: int | None = None) -> MamaMsg:
    """Decode a message.

    :param max_bytes: a longer one is not read: the objects of its fields may take a hundred times as many; None = any
    :raises BadMessage: for anything but one complete OMNM message; status WRONG_FIELD_TYPE for a version other than 1
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise BadMessage(f"{len(data):,} bytes are more than the {max_bytes:,} that are read")
    data = bytes(data)
    return _decode(data, 0, len(data), MAX_DEPTH)


def _decode(data: bytes, at: int, end: int, levels: int) -> MamaMsg:
    if levels <= 0:
        raise BadMessage(f"messages within messages go deeper than {MAX_DEPTH} levels")
    if end - at < 3:
        raise BadMessage(f"{end - at} bytes are too short for a header")
    if data[at] != HEADER[0]:
        raise BadMessage(f"payload id is {data[at]:#04x} and not 'O'")
    if data[at + 1] != VERSION:
        raise BadMessage(f"version is {data[at + 1]} and not {VERSION}", Status.WRONG_FIELD_TYPE)
    at += 3 + data[at + 2]
    if at > end:
        raise BadMessage("the header is longer than the message")
    fields: list[Field] = []
    append, find, known = fields.append, data.find, _known_head
    while at < end:
        name_end = find(0, at + 3, end)
        if name_end < 0:
            raise BadMessage(f"the field at byte {at} ends inside its head")
        head = data[at:name_end]
        try:
            name, fid, field_type, unpack, size, read = known(head) if len(head) <= _CACHED_HEAD else _parse_head(head)
            if size:
                (value,) = unpack(data, name_end + 1)
                at = name_end + 1 + size
            else:
                value, at = read(data, name_end + 1, end, levels)
        except struct.error:
            raise BadMessage(f"the field at byte {at} ends inside its value") from None
        except _BadHead as error:
            raise BadMessage(f"the field at byte {at} {error}") from None
        if at > end:
            raise BadMessage(f"the value of field {name}[{fid}] goes beyond the message")
        append(_new_field(Field, (name, fid, field_type, value)))
    return MamaMsg(fields)


#: A field without a call of Python's own.
_new_field: Callable[[type[Field], tuple[str, int, FieldType, Any]], Field] = tuple.__new__


class _BadHead(ValueError):
    """The text goes on where the place of the field is known."""


#: Name, fid, type; of a scalar its ``unpack_from`` and its size, else 0 and the reader.
_FieldHead = tuple[str, int, FieldType, Callable[[bytes, int], tuple[Any, ...]], int, Reader]


def _parse_head(head: bytes) -> _FieldHead:
    """:param head: type, fid and name, without the NUL"""
    field_type = _TYPES.get(head[0])
    if field_type is None:
        raise _BadHead(f"is of unknown type {head[0]}")
    name, fid = _text(head[3:]), head[1] | head[2] << 8
    if not (name or fid):
        raise _BadHead("has neither name nor fid")
    scalar = _SCALARS.get(field_type)
    if scalar is None:
        return name, fid, field_type, _FID.unpack_from, 0, _READERS[field_type]
    return name, fid, field_type, scalar.unpack_from, scalar.size, _read_char


#: A feed repeats the heads of its fields.
_known_head = lru_cache(4096)(_parse_head)
_CACHED_HEAD = 64  #: bytes of the longest head that is remembered


def _read_char(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    return data[at : at + 1].decode("latin-1"), at + 1


def _read_string(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    stop = data.find(0, at, end)
    if stop < 0:
        raise BadMessage("a string is not terminated")
    return _text(data[at:stop]), stop + 1


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def _read_time(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    hints, seconds, nanos, precision, zone = _TIME.unpack_from(data, at)
    return MamaTime(seconds, nanos, hints, precision, _unpadded(zone)), at + _TIME.size


def _read_price(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    hints, value, currency = _PRICE.unpack_from(data, at)
    return MamaPrice(value, hints, _unpadded(currency)), at + _PRICE.size


def _unpadded(octets: bytes) -> str:
    return octets.partition(b"\0")[0].decode("latin-1") if octets[0] else ""


def _body(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Begin and end of a length-prefixed value, checked against ``end``."""
    begin = at + 4
    stop = begin + _LENGTH.unpack_from(data, at)[0]
    if stop > end:
        raise BadMessage(f"a length of {stop - begin} goes beyond the message")
    return begin, int(stop)


def _read_opaque(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    return data[begin:stop], stop


def _read_vector(data: bytes, at: int, end: int, levels: int, *, code: str, size: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    count, rest = divmod(stop - begin, size)
    if rest:
        raise BadMessage(f"a vector of {stop - begin} bytes has no whole number of elements of {size}")
    return struct.unpack_from(f"<{count}{code}", data, begin), stop


def _read_chars(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    return tuple(data[begin:stop].decode("latin-1")), stop


def _read_structs(data: bytes, at: int, end: int, levels: int, *, read: Reader, size: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    if (stop - begin) % size:
        raise BadMessage(f"a vector of {stop - begin} bytes has no whole number of elements of {size}")
    return tuple(read(data, i, stop, levels)[0] for i in range(begin, stop, size)), stop


def _read_strings(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    if begin == stop:
        return (), stop
    *strings, _ = data[begin:stop].split(b"\0")
    if begin < stop and not strings:
        raise BadMessage("no string of a vector is terminated")
    while strings and not strings[-1]:
        strings.pop()
    return tuple(map(_text, strings)), stop


def _read_msg(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    return _decode(data, begin, stop, levels - 1), stop


def _read_msgs(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    messages = []
    while begin < stop:
        message, begin = _read_msg(data, begin, stop, levels)
        messages.append(message)
    return tuple(messages), stop


_READERS: dict[FieldType, Reader] = {
    **{
        FieldType[f"VECTOR_{t.name}"]: partial(_read_vector, code=code, size=struct.calcsize(f"<{code}"))
        for t, code in _FORMATS.items()
        if t is not FieldType.QUANTITY
    },
    FieldType.CHAR: _read_char,
    FieldType.STRING: _read_string,
    FieldType.TIME: _read_time,
    FieldType.PRICE: _read_price,
    FieldType.OPAQUE: _read_opaque,
    FieldType.COLLECTION: _read_opaque,
    FieldType.MSG: _read_msg,
    FieldType.VECTOR_CHAR: _read_chars,
    FieldType.VECTOR_STRING: _read_strings,
    FieldType.VECTOR_TIME: partial(_read_structs, read=_read_time, size=_TIME.size),
    FieldType.VECTOR_PRICE: partial(_read_structs, read=_read_price, size=_PRICE.size),
    FieldType.VECTOR_MSG: _read_msgs,
}
_SCALARS = {t: struct.Struct(f"<{code}") for t, code in _FORMATS.items()}
_TYPES = {int(field_type): field_type for field_type in (*_SCALARS, *_READERS)}


# --- writing -------------------------------------------------------------------------------------------------

Writer = Callable[[Any, int], bytes]  #: (value, levels left) -> bytes


def encode(msg: MamaMsg) -> bytes:
    """Encode a message.

    :raises BadMessage: if nested messages are too deep, or longer than a length field can hold
    """
    return _encode(msg, MAX_DEPTH)


def _encode(msg: MamaMsg, levels: int) -> bytes:
    if levels <= 0:
        raise BadMessage(f"messages within messages go deeper than {MAX_DEPTH} levels")
    parts = [HEADER]
    for name, fid, field_type, value in msg.fields:
        parts.append(_head(field_type, fid, name))
        parts.append(_WRITE[field_type](value, levels))
    return b"".join(parts)


@lru_cache(4096)
def _head(field_type: FieldType, fid: int, name: str) -> bytes:
    return bytes([field_type]) + _FID.pack(fid) + name.encode() + b"\0"


def _prefixed(body: bytes) -> bytes:
    if len(body) > 0xFFFFFFFF:
        raise BadMessage(f"a value of {len(body)} bytes is longer than 32 bits can say")
    return _LENGTH.pack(len(body)) + body


def _write_scalar(value: Any, levels: int, *, layout: struct.Struct) -> bytes:
    return layout.pack(value)


def _write_vector(value: Any, levels: int, *, code: str) -> bytes:
    return _prefixed(struct.pack(f"<{len(value)}{code}", *value))


def _write_time(value: MamaTime, levels: int) -> bytes:
    return _TIME.pack(value.hints, value.seconds, value.nanos, value.precision, value.timezone.encode("latin-1"))


def _write_price(value: MamaPrice, levels: int) -> bytes:
    return _PRICE.pack(value.hints, value.value, value.currency.encode("latin-1"))


_WRITE: dict[FieldType, Writer] = {
    **{t: partial(_write_scalar, layout=struct.Struct(f"<{code}")) for t, code in _FORMATS.items()},
    **{
        FieldType[f"VECTOR_{t.name}"]: partial(_write_vector, code=code)
        for t, code in _FORMATS.items()
        if t is not FieldType.QUANTITY
    },
    FieldType.CHAR: lambda value, levels: value.encode("latin-1"),
    FieldType.STRING: lambda value, levels: value.encode() + b"\0",
    FieldType.TIME: _write_time,
    FieldType.PRICE: _write_price,
    FieldType.OPAQUE: lambda value, levels: _prefixed(value),
    FieldType.COLLECTION: lambda value, levels: _prefixed(value),
    FieldType.MSG: lambda value, levels: _prefixed(_encode(value, levels - 1)),
    FieldType.VECTOR_CHAR: lambda value, levels: _prefixed("".join(value).encode("latin-1")),
    FieldType.VECTOR_STRING: lambda value, levels: _prefixed(b"".join(s.encode() + b"\0" for s in value)),
    FieldType.VECTOR_TIME: lambda value, levels: _prefixed(b"".join(_write_time(t, levels) for t in value)),
    FieldType.VECTOR_PRICE: lambda value, levels: _prefixed(b"".join(_write_price(p, levels) for p in value)),
    FieldType.VECTOR_MSG: lambda value, levels: _prefixed(b"".join(_prefixed(_encode(m, levels - 1)) for m in value)),
}
