"""GIOP messages of versions 1.0 to 1.2 (CORBA 3.0, 15.4), which carry CORBA calls, for client and server. Pure.

A message is the GIOP header of 12 bytes, the header of its type, and a body: the arguments of an operation or its
result, which :mod:`~mama_spark.tango.idl.calls` reads and writes. Alignment counts from the start of the message.
:class:`MessageAssembler` splits a stream of bytes into messages and joins fragments.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from .cdr import BytesLike, CdrError, CdrReader, CdrWriter

MAGIC = b"GIOP"
HEADER = 12  #: size of the GIOP header in bytes
LIMIT = 16 << 20  #: default of the largest size of a message, in bytes
Body = Callable[[CdrWriter], None]  #: writes the body of a message


class MessageType(IntEnum):
    """MsgType_1_1 (CORBA 15.4.1): type of a message."""

    REQUEST = 0
    REPLY = 1
    CANCEL_REQUEST = 2
    LOCATE_REQUEST = 3
    LOCATE_REPLY = 4
    CLOSE_CONNECTION = 5
    MESSAGE_ERROR = 6
    FRAGMENT = 7


class ReplyStatus(IntEnum):
    """ReplyStatusType_1_2 (CORBA 15.4.3): whether the body of a reply is a result, an exception or a reference."""

    NO_EXCEPTION = 0
    USER_EXCEPTION = 1
    SYSTEM_EXCEPTION = 2
    LOCATION_FORWARD = 3
    LOCATION_FORWARD_PERM = 4
    NEEDS_ADDRESSING_MODE = 5


class LocateStatus(IntEnum):
    """LocateStatusType_1_2 (CORBA 15.4.6): result of a locate request."""

    UNKNOWN_OBJECT = 0
    OBJECT_HERE = 1
    OBJECT_FORWARD = 2
    OBJECT_FORWARD_PERM = 3
    LOC_SYSTEM_EXCEPTION = 4
    LOC_NEEDS_ADDRESSING_MODE = 5


class Context(NamedTuple):
    """Service context: data that an ORB or a telemetry library adds to a call."""

    id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class GiopMessage:
    """Base of all messages; ``minor`` is the minor version of GIOP 1."""

    minor: int = 2
    little: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GiopRequest(GiopMessage):
    """Request (CORBA 15.4.2): a call of ``operation`` of the object with the key ``key``."""

    id: int
    key: bytes
    operation: str
    wants_reply: bool = True
    contexts: tuple[Context, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GiopReply(GiopMessage):
    """Reply (CORBA 15.4.3) to the request ``id``."""

    id: int
    status: ReplyStatus = ReplyStatus.NO_EXCEPTION
    contexts: tuple[Context, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest(GiopMessage):
    """CancelRequest (CORBA 15.4.4): the client no longer waits for the reply to ``id``."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocateRequest(GiopMessage):
    """LocateRequest (CORBA 15.4.5): asks whether the server has the object with the key ``key``."""

    id: int
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LocateReply(GiopMessage):
    """LocateReply (CORBA 15.4.6): the reply to a :class:`LocateRequest`."""

    id: int
    status: LocateStatus = LocateStatus.OBJECT_HERE


@dataclass(frozen=True, slots=True)
class CloseConnection(GiopMessage):
    """CloseConnection (CORBA 15.4.7): the server closes the connection; it did not execute requests without a reply."""


@dataclass(frozen=True, slots=True)
class MessageError(GiopMessage):
    """MessageError (CORBA 15.4.8): the peer could not read a message."""


class MessageHeader(NamedTuple):
    """GIOP header, the first 12 bytes of a message; ``size`` is that of the rest in bytes."""

    minor: int
    flags: int
    type: MessageType
    size: int

    @property
    def little(self) -> bool:
        return bool(self.flags & 1)

    @property
    def more(self) -> bool:
        """Whether fragments follow."""
        return bool(self.flags & 2)

    def pack(self) -> bytes:
        code = "<4sBBBBI" if self.little else ">4sBBBBI"
        return struct.pack(code, MAGIC, 1, self.minor, self.flags, self.type, self.size)


def read_header(data: BytesLike) -> MessageHeader:
    """Decode the GIOP header.

    :raises CdrError: the data does not begin with a header of GIOP 1.0 to 1.2
    """
    if len(data) < HEADER:
        raise CdrError(f"truncated: {len(data)} bytes, a GIOP header has {HEADER}")
    magic, major, minor, flags, kind, size = struct.unpack_from("<4sBBBBI", data)
    if magic != MAGIC:
        raise CdrError(f"the message begins with the bytes {magic.hex()}, not with GIOP")
    if major != 1 or minor > 2:
        raise CdrError(f"GIOP {major}.{minor} is not supported")
    if flags > (3 if minor else 1) or kind > MessageType.FRAGMENT:
        raise CdrError(f"a GIOP header cannot have flags {flags} and message type {kind}")
    if not flags & 1:
        size = int.from_bytes(size.to_bytes(4, "little"), "big")
    return MessageHeader(minor, flags, MessageType(kind), size)


#: How a part of a header is read and written.
_Part = tuple[Callable[[CdrReader], Any], Callable[[CdrWriter, Any], None]]


def _enum(kind: type[IntEnum]) -> _Part:
    return lambda reader: reader.enum(kind), CdrWriter.ulong


def _read_contexts(reader: CdrReader) -> tuple[Context, ...]:
    return tuple(Context(reader.ulong(), reader.octets()) for _ in range(reader.count(8)))


def _write_contexts(writer: CdrWriter, contexts: tuple[Context, ...]) -> None:
    writer.count(len(contexts))
    for context in contexts:
        writer.ulong(context.id)
        writer.octets(context.data)


def _read_target(reader: CdrReader) -> bytes:
    """TargetAddress of GIOP 1.2 (CORBA 15.4.2.1). Of its three forms only KeyAddr is read, which clients try first."""
    form = reader.ushort()
    if form:
        raise CdrError(f"the target address has the form {form}; only 0 (KeyAddr) is supported")
    return reader.octets()


def _write_target(writer: CdrWriter, key: bytes) -> None:
    writer.ushort(0)
    writer.octets(key)


_ULONG: _Part = (CdrReader.ulong, CdrWriter.ulong)
_FLAGS: _Part = (lambda reader: bool(reader.octet() & 1), lambda writer, wanted: writer.octet(3 if wanted else 0))
_BOOLEAN: _Part = (CdrReader.boolean, CdrWriter.boolean)
_TARGET: _Part = (_read_target, _write_target)
_KEY: _Part = (CdrReader.octets, CdrWriter.octets)
_TEXT: _Part = (CdrReader.string, CdrWriter.string)
_CONTEXTS: _Part = (_read_contexts, _write_contexts)
_RESERVED: _Part = (lambda reader: reader.raw(3), lambda writer, _: writer.raw(bytes(3)))
_PRINCIPAL: _Part = (CdrReader.octets, lambda writer, _: writer.octets(b""))

_ID = {"id": _ULONG}
_REQUEST = {"contexts": _CONTEXTS, **_ID, "wants_reply": _BOOLEAN}
_CALLED = {"key": _KEY, "operation": _TEXT, "_principal": _PRINCIPAL}
_STATUS = {**_ID, "status": _enum(ReplyStatus)}
#: Type of a message -> its number, and its header in GIOP 1.0, 1.1 and 1.2. What begins with ``_`` has no meaning.
_HEADERS: dict[type[GiopMessage], tuple[MessageType, tuple[dict[str, _Part], ...]]] = {
    GiopRequest: (
        MessageType.REQUEST,
        (
            {**_REQUEST, **_CALLED},
            {**_REQUEST, "_reserved": _RESERVED, **_CALLED},
            {**_ID, "wants_reply": _FLAGS, "_reserved": _RESERVED, "key": _TARGET, "operation": _TEXT,
             "contexts": _CONTEXTS},
        ),
    ),
    GiopReply: (
        MessageType.REPLY,
        ({"contexts": _CONTEXTS, **_STATUS}, {"contexts": _CONTEXTS, **_STATUS}, {**_STATUS, "contexts": _CONTEXTS}),
    ),
    CancelRequest: (MessageType.CANCEL_REQUEST, (_ID,) * 3),
    LocateRequest: (
        MessageType.LOCATE_REQUEST, ({**_ID, "key": _KEY}, {**_ID, "key": _KEY}, {**_ID, "key": _TARGET})
    ),
    LocateReply: (MessageType.LOCATE_REPLY, ({**_ID, "status": _enum(LocateStatus)},) * 3),
    CloseConnection: (MessageType.CLOSE_CONNECTION, ({},) * 3),
    MessageError: (MessageType.MESSAGE_ERROR, ({},) * 3),
}  # fmt: skip
_CLASSES = {kind: cls for cls, (kind, _) in _HEADERS.items()}


def decode(data: BytesLike) -> tuple[GiopMessage, CdrReader]:
    """Decode a whole message; returns its header fields, and a reader at the start of its body.

    :raises CdrError: the data is no GIOP message, or a fragment of one
    """
    header = read_header(data)
    if header.size != len(data) - HEADER:
        raise CdrError(f"the header gives a size of {header.size} bytes, {len(data) - HEADER} follow it")
    if header.more or header.type is MessageType.FRAGMENT:
        raise CdrError("the data is a fragment of a message")
    reader, cls = CdrReader(data, header.little, HEADER), _CLASSES[header.type]
    found = {name: read(reader) for name, (read, _) in _HEADERS[cls][1][header.minor].items()}
    if header.minor == 2 and cls in (GiopRequest, GiopReply, LocateReply) and reader.left:
        reader.align(8)
        if reader.left < 0:
            raise CdrError("truncated before the body")
    fields = {name: part for name, part in found.items() if not name.startswith("_")}
    return cls(header.minor, header.little, **fields), reader


def encode(message: GiopMessage, body: Body | None = None) -> bytes:
    """Encode a message.

    :raises CdrError: a value does not fit its type, or the message is larger than 4 GiB
    """
    writer = CdrWriter(message.little, bytes(HEADER))
    kind, headers = _HEADERS[type(message)]
    for name, (_, write) in headers[message.minor].items():
        write(writer, getattr(message, name, None))
    if body is not None:
        if message.minor == 2:
            writer.align(8)
        body(writer)
    size = len(writer) - HEADER
    if size >> 32:
        raise CdrError(f"a message of {size} bytes is larger than 4 GiB")
    return MessageHeader(message.minor, int(message.little), kind, size).pack() + writer.getvalue()[HEADER:]


MAX_PARTS = 64  #: incomplete messages of one connection at a time


class MessageAssembler:
    """Assembler of the messages of one connection; after a CdrError, close it: the rest of the stream cannot be read.
    ``limit``: bytes of the body of a message, and of all incomplete messages together."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._data = bytearray()
        self._parts: dict[int, bytearray] = {}  # request id, or -1 for the one of GIOP 1.1 -> bytes so far
        self._held = 0

    def feed(self, data: BytesLike) -> None:
        self._data += data

    def next_message(self) -> bytes | None:
        """Return the next complete message, fragments joined; None if more bytes are needed.

        :raises CdrError: the bytes are not GIOP messages, or a message exceeds the limit
        """
        while len(self._data) >= HEADER:
            header = read_header(self._data)
            if header.size > self._limit:
                raise CdrError(f"the message has {header.size} bytes; the limit is {self._limit}")
            end = HEADER + header.size
            if len(self._data) < end:
                return None
            data = bytes(self._data[:end])
            del self._data[:end]
            whole = self._join(header, data)
            if whole is not None:
                return whole
        return None

    def _join(self, header: MessageHeader, data: bytes) -> bytes | None:
        if header.type is not MessageType.FRAGMENT and not header.more:
            return data
        number = -1
        if header.minor == 2:  # GIOP 1.2: the request id follows the header, in messages and in fragments
            number = CdrReader(data, header.little, HEADER).ulong()
        if header.type is not MessageType.FRAGMENT:
            if number in self._parts or len(self._parts) >= MAX_PARTS:
                raise CdrError(f"more than {MAX_PARTS} incomplete messages, or two with one request id")
            self._hold(number, bytearray(), data)
            return None
        part = self._parts.get(number)
        if part is None:
            raise CdrError("a fragment without a first part")
        self._hold(number, part, data[HEADER + (4 if header.minor == 2 else 0) :])
        if header.more:
            return None
        del self._parts[number]
        self._held -= len(part)
        first = read_header(part)
        return first._replace(flags=first.flags & 1, size=len(part) - HEADER).pack() + bytes(part[HEADER:])

    def _hold(self, number: int, part: bytearray, data: bytes) -> None:
        self._held += len(data)
        if self._held > self._limit + HEADER:
            raise CdrError(f"incomplete messages exceed the limit of {self._limit} bytes")
        part += data
        self._parts[number] = part
