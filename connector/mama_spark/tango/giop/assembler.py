"""Cuts a stream of octets into whole GIOP messages, and joins messages that were sent in fragments. Pure."""

from __future__ import annotations

from .cdr import CdrError, CdrReader, Octets
from .messages import HEADER, LIMIT, MessageHeader, MessageType, read_header

MAX_PARTS = 64  #: incomplete messages of one connection at a time


class MessageAssembler:
    """Assembles the messages of one connection.

    After a :class:`~mama_spark.tango.giop.cdr.CdrError` the stream cannot be read any further: end the connection.

    :param limit: octets of the longest message, and of all incomplete messages together
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
        """The next complete message; None: feed more.

        :raises CdrError: the octets are no GIOP messages, or one is longer than the limit
        """
        while len(self._data) >= HEADER:
            header = read_header(self._data)
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

    def _join(self, header: MessageHeader, data: bytes) -> bytes | None:
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
        first = read_header(part)
        return first._replace(flags=first.flags & 1, size=len(part) - HEADER).pack() + bytes(part[HEADER:])

    def _hold(self, number: int, part: bytearray, data: bytes) -> None:
        self._held += len(data)
        if self._held > self._limit + HEADER:
            raise CdrError(f"messages in fragments of more than {self._limit} octets")
        part += data
        self._parts[number] = part
