"""OMNM version 1: a MAMA message as bytes.

Little-endian, unaligned. A header of three bytes (``O``, version, number of further header bytes), then fields to the
end: type u8, fid u16, name and NUL, value. :data:`_READERS` and :data:`_WRITE` hold the layout of each type.

:func:`decode` is safe for untrusted bytes: it raises only :class:`BadMessage`, reads nothing beyond the message, and
allocates by the bytes present, never by an announced length. It handles what the C library is known to write: a
shortened VECTOR_STRING keeps its old length (empty strings at the end are dropped); a narrow value under a wide type
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
    while at < end:
        name_at = at + 3
        name_end = data.find(0, name_at, end)
        if name_end < 0:
            raise BadMessage(f"the field at byte {at} ends inside its head")
        fid = data[at + 1] | data[at + 2] << 8
        try:
            field_type, read = _READ[data[at]]
        except KeyError:
            raise BadMessage(f"the field at byte {at} is of unknown type {data[at]}") from None
        if name_end == name_at and not fid:
            raise BadMessage(f"the field at byte {at} has neither name nor fid")
        try:
            name = data[name_at:name_end].decode()
            value, at = read(data, name_end + 1, end, levels)
        except UnicodeDecodeError:
            raise BadMessage(f"the field at byte {at} holds text that is not UTF-8") from None
        except struct.error:
            raise BadMessage(f"the field at byte {at} ends inside its value") from None
        if at > end:
            raise BadMessage(f"the value of field {name}[{fid}] goes beyond the message")
        fields.append(Field(name, fid, field_type, value))
    return MamaMsg(fields)


def _read_scalar(data: bytes, at: int, end: int, levels: int, *, layout: struct.Struct) -> tuple[Any, int]:
    return layout.unpack_from(data, at)[0], at + layout.size


def _read_char(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    return data[at : at + 1].decode("latin-1"), at + 1


def _read_string(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    stop = data.find(0, at, end)
    if stop < 0:
        raise BadMessage("a string is not terminated")
    return data[at:stop].decode(), stop + 1


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
    if data[stop - 1]:
        raise BadMessage("the last string of a vector is not terminated")
    text = data[begin:stop].decode().rstrip("\0")
    return (tuple(text.split("\0")) if text else ()), stop


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
    **{t: partial(_read_scalar, layout=struct.Struct(f"<{code}")) for t, code in _FORMATS.items()},
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
_READ = {int(field_type): (field_type, reader) for field_type, reader in _READERS.items()}


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
