"""GIOP 1.0 to 1.2, the messages that Tango's calls travel in, for both sides. Pure.

A message is a header of 12 octets, a head of its kind, and a body: the arguments of an operation or its result, which
:mod:`~mama_spark.tango.idl.calls` reads and writes. Alignment counts from the start of the message.
    :class:`MessageAssembler` makes
messages of a stream of octets, and one of its fragments.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from .cdr import CdrError, CdrReader, CdrWriter, Octets

MAGIC = b"GIOP"
HEADER = 12
LIMIT = 16 << 20  #: octets of a message that are plenty for any call of a subscription
MAX_PARTS = 64  #: messages of one connection that may be incomplete at a time
Body = Callable[[CdrWriter], None]


class MessageType(IntEnum):
    REQUEST = 0
    REPLY = 1
    CANCEL_REQUEST = 2
    LOCATE_REQUEST = 3
    LOCATE_REPLY = 4
    CLOSE_CONNECTION = 5
    MESSAGE_ERROR = 6
    FRAGMENT = 7


class ReplyStatus(IntEnum):
    """What the body of a reply is: the result, an exception, or where to ask instead."""

    NO_EXCEPTION = 0
    USER_EXCEPTION = 1
    SYSTEM_EXCEPTION = 2
    LOCATION_FORWARD = 3
    LOCATION_FORWARD_PERM = 4
    NEEDS_ADDRESSING_MODE = 5


class LocateStatus(IntEnum):
    UNKNOWN_OBJECT = 0
    OBJECT_HERE = 1
    OBJECT_FORWARD = 2
    OBJECT_FORWARD_PERM = 3
    LOC_SYSTEM_EXCEPTION = 4
    LOC_NEEDS_ADDRESSING_MODE = 5


class Context(NamedTuple):
    """A service context: what an ORB, or telemetry, adds to a call."""

    id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class GiopMessage:
    """What all have: the minor version, and the order of their octets."""

    minor: int = 2
    little: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GiopRequest(GiopMessage):
    """A call of ``operation`` of the object ``key``."""

    id: int
    key: bytes
    operation: str
    wants_reply: bool = True
    contexts: tuple[Context, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GiopReply(GiopMessage):
    """What became of the request ``id``."""

    id: int
    status: ReplyStatus = ReplyStatus.NO_EXCEPTION
    contexts: tuple[Context, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest(GiopMessage):
    """Nobody waits for the reply any more."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocateRequest(GiopMessage):
    """Is the object ``key`` here?"""

    id: int
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LocateReply(GiopMessage):
    """The answer."""

    id: int
    status: LocateStatus = LocateStatus.OBJECT_HERE


@dataclass(frozen=True, slots=True)
class CloseConnection(GiopMessage):
    """The server ends the connection; requests without a reply were not worked on."""


@dataclass(frozen=True, slots=True)
class MessageError(GiopMessage):
    """The other side could not read what it got."""


class _Header(NamedTuple):
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


def _header(data: Octets, at: int = 0) -> _Header:
    """:raises CdrError: no header of a version that is known"""
    if len(data) - at < HEADER:
        raise CdrError(f"a message of {len(data) - at} octets")
    magic, major, minor, flags, kind, size = struct.unpack_from("<4sBBBBI", data, at)
    if magic != MAGIC:
        raise CdrError(f"no GIOP message begins with {magic.hex()}")
    if major != 1 or minor > 2:
        raise CdrError(f"GIOP {major}.{minor} is not known")
    if flags > (3 if minor else 1) or kind > MessageType.FRAGMENT:
        raise CdrError(f"flags {flags}, type {kind}")
    if not flags & 1:
        size = int.from_bytes(size.to_bytes(4, "little"), "big")
    return _Header(minor, flags, MessageType(kind), size)


# --- reading -------------------------------------------------------------------------------------------------


def decode(data: Octets) -> tuple[GiopMessage, CdrReader]:
    """One whole message, and a reader that stands at its body.

    :raises CdrError: it is none, or a fragment, which only a :class:`MessageAssembler` can use
    """
    header = _header(data)
    if header.size != len(data) - HEADER:
        raise CdrError(f"{header.size} octets announced, {len(data) - HEADER} there")
    if header.more or header.type is MessageType.FRAGMENT:
        raise CdrError("a fragment of a message")
    reader = CdrReader(data, header.little, HEADER)
    return _READERS[header.type](reader, header.minor, header.little), reader


def _read_contexts(reader: CdrReader) -> tuple[Context, ...]:
    return tuple(Context(reader.ulong(), reader.octets()) for _ in range(reader.count(8)))


def _read_target(reader: CdrReader) -> bytes:
    """TargetAddress of 1.2: of its three forms only the object key, which is what clients begin with."""
    form = reader.ushort()
    if form:
        raise CdrError(f"an object addressed in form {form}")
    return reader.octets()


def _read_body_gap(reader: CdrReader, minor: int) -> None:
    if minor == 2 and reader.left:
        reader.align(8)
        if reader.left < 0:
            raise CdrError("cut short before the body")


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
        raise CdrError(f"{statuses.__name__} {status}")
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
    """The octets of a message.

    :param body: writes what follows the head; None: nothing does
    :raises CdrError: a value does not fit, or the message would be longer than 4 GiB
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
        raise CdrError(f"a message of {size} octets")
    return _Header(message.minor, int(message.little), kind, size).pack() + writer.getvalue()[HEADER:]


def _write_nothing(writer: CdrWriter, message: GiopMessage) -> None:
    """Close and error are a header alone."""


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


# --- a stream of them ----------------------------------------------------------------------------------------


class MessageAssembler:
    """Makes whole messages of octets as they come in; messages sent in fragments are put together.

    After a :class:`~mama_spark.tango.giop.cdr.CdrError` nothing can be known of what follows: end the connection.

    :param limit: octets of a message, and of all that are incomplete together
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._data = bytearray()
        self._parts: dict[int, bytearray] = {}  # request id, or -1 for the one that 1.1 knows -> what came of it
        self._held = 0

    def __repr__(self) -> str:
        return f"<MessageAssembler {len(self._data)} octets, {len(self._parts)} incomplete>"

    def feed(self, data: Octets) -> None:
        """Take octets as they came."""
        self._data += data

    def next_message(self) -> bytes | None:
        """The next message that is complete; None: feed more.

        :raises CdrError: this is no stream of messages, or one is longer than the limit
        """
        while len(self._data) >= HEADER:
            header = _header(self._data)
            if header.size > self._limit:
                raise CdrError(f"a message of {header.size} octets; the limit is {self._limit}")
            end = HEADER + header.size
            if len(self._data) < end:
                return None
            data = bytes(self._data[:end])
            del self._data[:end]
            whole = self._join(header, data)
            if whole is not None:
                return whole
        return None

    def _join(self, header: _Header, data: bytes) -> bytes | None:
        if header.type is not MessageType.FRAGMENT and not header.more:
            return data
        number = -1
        if header.minor == 2:  # the id is the first thing behind the header, in messages and fragments
            number = CdrReader(data, header.little, HEADER).ulong()
        if header.type is not MessageType.FRAGMENT:
            if number in self._parts or len(self._parts) >= MAX_PARTS:
                raise CdrError("too many incomplete messages")
            self._hold(number, bytearray(), data)
            return None
        part = self._parts.get(number)
        if part is None:
            raise CdrError("a fragment of no message")
        self._hold(number, part, data[HEADER + (4 if header.minor == 2 else 0) :])
        if header.more:
            return None
        del self._parts[number]
        self._held -= len(part)
        first = _header(part)
        return first._replace(flags=first.flags & 1, size=len(part) - HEADER).pack() + bytes(part[HEADER:])

    def _hold(self, number: int, part: bytearray, data: bytes) -> None:
        self._held += len(data)
        if self._held > self._limit + HEADER:
            raise CdrError(f"messages in fragments of more than {self._limit} octets")
        part += data
        self._parts[number] = part
