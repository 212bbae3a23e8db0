"""GIOP messages of versions 1.0 to 1.2 (CORBA 3.0, 15.4), which carry CORBA calls, for client and server. Pure.

A message is the GIOP header of 12 octets, the header of its type, and a body: the arguments of an operation or its
result, which :mod:`~mama_spark.tango.idl.calls` reads and writes. Alignment counts from the start of the message.
:mod:`~mama_spark.tango.giop.assembler` splits a stream of octets into messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from .cdr import CdrError, CdrReader, CdrWriter, Octets

MAGIC = b"GIOP"
HEADER = 12  #: size of the GIOP header in octets
LIMIT = 16 << 20  #: default of the largest size of a message, in octets
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
    """Base of all messages.

    :ivar minor: minor version of GIOP 1
    :ivar little: byte order
    """

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
    """GIOP header: the first 12 octets of a message.

    :ivar size: size of the rest of the message in octets
    """

    minor: int
    flags: int
    type: MessageType
    size: int

    @property
    def little(self) -> bool:
        return bool(self.flags & 1)

    @property
    def more(self) -> bool:
        """Fragments follow."""
        return bool(self.flags & 2)

    def pack(self) -> bytes:
        code = "<4sBBBBI" if self.little else ">4sBBBBI"
        return struct.pack(code, MAGIC, 1, self.minor, self.flags, self.type, self.size)


def read_header(data: Octets) -> MessageHeader:
    """Decode the GIOP header.

    :raises CdrError: the data does not begin with a header of GIOP 1.0 to 1.2
    """
    if len(data) < HEADER:
        raise CdrError(f"truncated: {len(data)} octets, a GIOP header has {HEADER}")
    magic, major, minor, flags, kind, size = struct.unpack_from("<4sBBBBI", data)
    if magic != MAGIC:
        raise CdrError(f"the message begins with the octets {magic.hex()}, not with GIOP")
    if major != 1 or minor > 2:
        raise CdrError(f"GIOP {major}.{minor} is not supported")
    if flags > (3 if minor else 1) or kind > MessageType.FRAGMENT:
        raise CdrError(f"a GIOP header cannot have flags {flags} and message type {kind}")
    if not flags & 1:
        size = int.from_bytes(size.to_bytes(4, "little"), "big")
    return MessageHeader(minor, flags, MessageType(kind), size)


# --- reading -------------------------------------------------------------------------------------------------


def decode(data: Octets) -> tuple[GiopMessage, CdrReader]:
    """Decode a whole message; returns its header fields, and a reader at the start of its body.

    :raises CdrError: the data is no GIOP message, or a fragment of one
    """
    header = read_header(data)
    if header.size != len(data) - HEADER:
        raise CdrError(f"the header gives a size of {header.size} octets, {len(data) - HEADER} follow it")
    if header.more or header.type is MessageType.FRAGMENT:
        raise CdrError("the data is a fragment of a message")
    reader = CdrReader(data, header.little, HEADER)
    return _READERS[header.type](reader, header.minor, header.little), reader


def _read_contexts(reader: CdrReader) -> tuple[Context, ...]:
    return tuple(Context(reader.ulong(), reader.octets()) for _ in range(reader.count(8)))


def _read_target(reader: CdrReader) -> bytes:
    """TargetAddress of GIOP 1.2 (CORBA 15.4.2.1). Of its three forms only KeyAddr is read, which clients try first."""
    form = reader.ushort()
    if form:
        raise CdrError(f"the target address has the form {form}; only 0 (KeyAddr) is supported")
    return reader.octets()


def _read_body_gap(reader: CdrReader, minor: int) -> None:
    if minor == 2 and reader.left:
        reader.align(8)
        if reader.left < 0:
            raise CdrError("truncated before the body")


def _read_request(reader: CdrReader, minor: int, little: bool) -> GiopRequest:
    if minor == 2:
        number, flags = reader.ulong(), reader.octet()
        reader.raw(3)
        key, operation = _read_target(reader), reader.string()
        contexts, wanted = _read_contexts(reader), bool(flags & 1)
    else:
        contexts, number, wanted = _read_contexts(reader), reader.ulong(), reader.boolean()
        if minor:
            reader.raw(3)
        key, operation = reader.octets(), reader.string()
        reader.octets()  # principal
    _read_body_gap(reader, minor)
    return GiopRequest(minor, little, id=number, key=key, operation=operation, wants_reply=wanted, contexts=contexts)


def _read_status(reader: CdrReader, statuses: type[IntEnum]) -> int:
    status = reader.ulong()
    if status >= len(statuses):
        raise CdrError(f"{status} is no {statuses.__name__}")
    return status


def _read_reply(reader: CdrReader, minor: int, little: bool) -> GiopReply:
    contexts = _read_contexts(reader) if minor < 2 else ()
    number, status = reader.ulong(), ReplyStatus(_read_status(reader, ReplyStatus))
    if minor == 2:
        contexts = _read_contexts(reader)
    _read_body_gap(reader, minor)
    return GiopReply(minor, little, id=number, status=status, contexts=contexts)


def _read_locate_request(reader: CdrReader, minor: int, little: bool) -> LocateRequest:
    number = reader.ulong()
    return LocateRequest(minor, little, id=number, key=_read_target(reader) if minor == 2 else reader.octets())


def _read_locate_reply(reader: CdrReader, minor: int, little: bool) -> LocateReply:
    found = LocateReply(minor, little, id=reader.ulong(), status=LocateStatus(_read_status(reader, LocateStatus)))
    _read_body_gap(reader, minor)
    return found


_READERS: dict[MessageType, Callable[[CdrReader, int, bool], GiopMessage]] = {
    MessageType.REQUEST: _read_request,
    MessageType.REPLY: _read_reply,
    MessageType.CANCEL_REQUEST: lambda reader, minor, little: CancelRequest(minor, little, id=reader.ulong()),
    MessageType.LOCATE_REQUEST: _read_locate_request,
    MessageType.LOCATE_REPLY: _read_locate_reply,
    MessageType.CLOSE_CONNECTION: lambda _, minor, little: CloseConnection(minor, little),
    MessageType.MESSAGE_ERROR: lambda _, minor, little: MessageError(minor, little),
}


# --- writing -------------------------------------------------------------------------------------------------


def encode(message: GiopMessage, body: Body | None = None) -> bytes:
    """Encode a message.

    :param body: writes the body; None: there is none
    :raises CdrError: a value does not fit its type, or the message is larger than 4 GiB
    """
    writer = CdrWriter(message.little, bytes(HEADER))
    kind = _TYPES[type(message)]
    _WRITERS.get(type(message), _write_nothing)(writer, message)
    if body is not None:
        if message.minor == 2:
            writer.align(8)
        body(writer)
    size = len(writer) - HEADER
    if size >> 32:
        raise CdrError(f"a message of {size} octets is larger than 4 GiB")
    return MessageHeader(message.minor, int(message.little), kind, size).pack() + writer.getvalue()[HEADER:]


def _write_nothing(writer: CdrWriter, message: GiopMessage) -> None:
    """CloseConnection and MessageError are the GIOP header alone."""


def _write_contexts(writer: CdrWriter, contexts: tuple[Context, ...]) -> None:
    writer.count(len(contexts))
    for context in contexts:
        writer.ulong(context.id)
        writer.octets(context.data)


def _write_target(writer: CdrWriter, key: bytes) -> None:
    writer.ushort(0)
    writer.octets(key)


def _write_request(writer: CdrWriter, message: GiopMessage) -> None:
    assert isinstance(message, GiopRequest)
    if message.minor == 2:
        writer.ulong(message.id)
        writer.octet(3 if message.wants_reply else 0)
        writer.raw(bytes(3))
        _write_target(writer, message.key)
        writer.string(message.operation)
        _write_contexts(writer, message.contexts)
        return
    _write_contexts(writer, message.contexts)
    writer.ulong(message.id)
    writer.boolean(message.wants_reply)
    if message.minor:
        writer.raw(bytes(3))
    writer.octets(message.key)
    writer.string(message.operation)
    writer.octets(b"")  # principal


def _write_reply(writer: CdrWriter, message: GiopMessage) -> None:
    assert isinstance(message, GiopReply)
    if message.minor < 2:
        _write_contexts(writer, message.contexts)
    writer.ulong(message.id)
    writer.ulong(message.status)
    if message.minor == 2:
        _write_contexts(writer, message.contexts)


def _write_cancel(writer: CdrWriter, message: GiopMessage) -> None:
    assert isinstance(message, CancelRequest)
    writer.ulong(message.id)


def _write_locate_request(writer: CdrWriter, message: GiopMessage) -> None:
    assert isinstance(message, LocateRequest)
    writer.ulong(message.id)
    if message.minor == 2:
        _write_target(writer, message.key)
    else:
        writer.octets(message.key)


def _write_locate_reply(writer: CdrWriter, message: GiopMessage) -> None:
    assert isinstance(message, LocateReply)
    writer.ulong(message.id)
    writer.ulong(message.status)


_TYPES: dict[type[GiopMessage], MessageType] = {
    GiopRequest: MessageType.REQUEST,
    GiopReply: MessageType.REPLY,
    CancelRequest: MessageType.CANCEL_REQUEST,
    LocateRequest: MessageType.LOCATE_REQUEST,
    LocateReply: MessageType.LOCATE_REPLY,
    CloseConnection: MessageType.CLOSE_CONNECTION,
    MessageError: MessageType.MESSAGE_ERROR,
}
_WRITERS: dict[type[GiopMessage], Callable[[CdrWriter, GiopMessage], None]] = {
    GiopRequest: _write_request,
    GiopReply: _write_reply,
    CancelRequest: _write_cancel,
    LocateRequest: _write_locate_request,
    LocateReply: _write_locate_reply,
}
