"""OMNM version 1: a MAMA message as bytes. Pure.

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

import itertools
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from .field_runs import BadMessage, Reader, RunTable, text_of
from .field_types import STRUCT_CODES, FieldType
from .msg import MAX_DEPTH, Field, MamaMsg
from .status import Status
from .values import MamaPrice, MamaTime, unchecked_price, unchecked_time

__all__ = ["HEADER", "RUNS", "VERSION", "BadMessage", "decode", "encode"]

HEADER = b"O\x01\x00"
VERSION = 1

_FID = struct.Struct("<H")
_LENGTH = struct.Struct("<I")
_TIME = struct.Struct("<B7xqIB14s5x")  # 40 bytes
_PRICE = struct.Struct("<B7xd3s5x")  # 24 bytes


# --- reading -------------------------------------------------------------------------------------------------


def decode(data: bytes | bytearray | memoryview, max_bytes: int | None = None) -> MamaMsg:
    """Decode a message.

    :param max_bytes: a longer one is not read: the objects of its fields may take a hundred times as many; None: any
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
    find, add, known, number = data.find, fields.extend, RUNS.known, int.from_bytes
    while at < end:
        name_end = find(0, at + 3, end)
        if name_end < 0:
            raise BadMessage(f"the field at byte {at} ends inside its head")
        run = known(data[at : name_end + 1]) or RUNS.learn(data, at, end)
        if at + run.size > end:
            run = RUNS.shorten(run, run.fields_within(end - at), at)
        if number(data[at : at + run.size], "little") & run.mask != run.pattern:
            run = RUNS.shorten(run, run.equal_fields(data, at), at)
        values = run.unpack(data, at)
        at += run.size
        if run.conversions:
            values = run.converted(values)
        if (read := run.read) is not None:
            value, at = read(data, at, end, levels)
            if at > end:
                raise BadMessage(f"the value of field {run.names[-1]}[{run.fids[-1]}] goes beyond the message")
            values += (value,)
        add(map(_new_field, _FIELDS, zip(run.names, run.fids, run.types, values, strict=False)))
    return MamaMsg(fields)


#: A field without a call of Python's own.
_new_field: Callable[[type[Field], tuple[str, int, FieldType, Any]], Field] = tuple.__new__
_FIELDS = itertools.repeat(Field)


def _read_string(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    stop = data.find(0, at, end)
    if stop < 0:
        raise BadMessage("a string is not terminated")
    try:
        return data[at:stop].decode(), stop + 1
    except UnicodeDecodeError:
        return data[at:stop].decode("latin-1"), stop + 1


def _time(raw_bytes: bytes) -> MamaTime:
    hints, seconds, nanos, precision, zone = _TIME.unpack(raw_bytes)
    return unchecked_time(seconds, nanos, hints, precision, _unpadded(zone) if zone[0] else "")


def _price(raw_bytes: bytes) -> MamaPrice:
    hints, value, currency = _PRICE.unpack(raw_bytes)
    return unchecked_price(value, hints, _unpadded(currency) if currency[0] else "")


def _unpadded(raw_bytes: bytes) -> str:
    return raw_bytes.partition(b"\0")[0].decode("latin-1")


def _body(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Bounds of a length-prefixed value, checked against ``end``."""
    begin = at + 4
    if begin > end:
        raise BadMessage(f"the message ends inside a length, at byte {at}")
    stop = begin + _LENGTH.unpack_from(data, at)[0]
    if stop > end:
        raise BadMessage(f"a length of {stop - begin} goes beyond the message")
    return begin, int(stop)


def _elements(data: bytes, at: int, end: int, size: int) -> tuple[int, int]:
    begin, stop = _body(data, at, end)
    if (stop - begin) % size:
        raise BadMessage(f"a vector of {stop - begin} bytes has no whole number of elements of {size}")
    return begin, stop


def _read_opaque(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    return data[begin:stop], stop


def _read_vector(data: bytes, at: int, end: int, levels: int, *, code: str, size: int) -> tuple[Any, int]:
    begin, stop = _elements(data, at, end, size)
    return struct.unpack_from(f"<{(stop - begin) // size}{code}", data, begin), stop


def _read_chars(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    return tuple(data[begin:stop].decode("latin-1")), stop


def _read_structs(
    data: bytes, at: int, end: int, levels: int, *, convert: Callable[[bytes], Any], size: int
) -> tuple[Any, int]:
    begin, stop = _elements(data, at, end, size)
    return tuple(convert(data[i : i + size]) for i in range(begin, stop, size)), stop


def _read_strings(data: bytes, at: int, end: int, levels: int) -> tuple[Any, int]:
    begin, stop = _body(data, at, end)
    *strings, _ = data[begin:stop].split(b"\0")
    if begin < stop and not strings:
        raise BadMessage("no string of a vector is terminated")
    while strings and not strings[-1]:
        strings.pop()
    return tuple(map(text_of, strings)), stop


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
        t.vector: partial(_read_vector, code=code, size=struct.calcsize(f"<{code}"))
        for t, code in STRUCT_CODES.items()
        if t is not FieldType.QUANTITY
    },
    FieldType.STRING: _read_string,
    FieldType.OPAQUE: _read_opaque,
    FieldType.COLLECTION: _read_opaque,
    FieldType.MSG: _read_msg,
    FieldType.VECTOR_CHAR: _read_chars,
    FieldType.VECTOR_STRING: _read_strings,
    FieldType.VECTOR_TIME: partial(_read_structs, convert=_time, size=_TIME.size),
    FieldType.VECTOR_PRICE: partial(_read_structs, convert=_price, size=_PRICE.size),
    FieldType.VECTOR_MSG: _read_msgs,
}
#: Types of fixed size: code of the layout, and what makes the value of the bytes where ``struct`` does not.
_FIXED: dict[FieldType, tuple[str, Callable[[bytes], Any] | None]] = {
    **{t: (code, None) for t, code in STRUCT_CODES.items()},
    FieldType.CHAR: ("1s", lambda raw_bytes: raw_bytes.decode("latin-1")),
    FieldType.TIME: (f"{_TIME.size}s", _time),
    FieldType.PRICE: (f"{_PRICE.size}s", _price),
}
#: Layouts of the messages that this process has read; also for decoders of columns.
RUNS = RunTable(_FIXED, _READERS)


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
    **{t: partial(_write_scalar, layout=struct.Struct(f"<{code}")) for t, code in STRUCT_CODES.items()},
    **{t.vector: partial(_write_vector, code=code) for t, code in STRUCT_CODES.items() if t is not FieldType.QUANTITY},
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
