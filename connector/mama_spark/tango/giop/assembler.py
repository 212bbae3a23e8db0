"""Assembler of GIOP messages: splits a stream of octets into messages and joins fragments (CORBA 3.0, 15.4.9). Pure."""

from __future__ import annotations

from .cdr import CdrError, CdrReader, Octets
from .messages import HEADER, LIMIT, MessageHeader, MessageType, read_header

MAX_PARTS = 64  #: incomplete messages of one connection at a time


class MessageAssembler:
    """Assembler of the messages of one connection.

    After a :class:`~mama_spark.tango.giop.cdr.CdrError` the rest of the stream cannot be read: close the connection.

    :param limit: largest size of the body of a message, and of all incomplete messages together, in octets
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._data = bytearray()
        self._parts: dict[int, bytearray] = {}  # request id, or -1 for the one of GIOP 1.1 -> octets so far
        self._held = 0

    def __repr__(self) -> str:
        return f"<MessageAssembler {len(self._data)} octets, {len(self._parts)} incomplete>"

    def feed(self, data: Octets) -> None:
        """Append received octets."""
        self._data += data

    def next_message(self) -> bytes | None:
        """Return the next complete message, fragments joined; None if more octets are needed.

        :raises CdrError: the octets are not GIOP messages, or a message exceeds the limit
        """
        while len(self._data) >= HEADER:
            header = read_header(self._data)
            if header.size > self._limit:
                raise CdrError(f"the message has {header.size} octets; the limit is {self._limit}")
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
            raise CdrError(f"incomplete messages exceed the limit of {self._limit} octets")
        part += data
        self._parts[number] = part
