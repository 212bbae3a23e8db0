"""Parses deliveries in bulk, before nats-py's parser sees the bytes of a connection.

Deliveries are taken by the subscription that reads them; every other frame goes to nats-py's own parser, whole.

Bytes are parsed as each read brings them. Once a large delivery is incomplete, what follows is received into a
:class:`~mama_spark.nats.protocol.receive_buffer.ReceiveBuffer` and parsed there, until no large one comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import nats.errors

from ..errors import denied
from ..protocol import parser as wire
from ..protocol.receive_buffer import ReceiveBuffer

_LARGE = 16 * 1024  #: bytes of an incomplete delivery from which on the following ones are received into a buffer
_PIECE = 4096  #: bytes that are copied out of the buffer to parse what is no delivery


class Deliveries(Protocol):
    """Parses the deliveries of one subscription. Inherit it."""

    def take(self, data: bytes, at: int) -> tuple[int, int]:
        """Parse complete deliveries from ``at`` on.

        :returns: offset of the first byte that was not parsed, and bytes that the delivery there still lacks (0: none)
        """
        ...

    def on_status(self, subject: str, status: int, text: str) -> None:
        """Called when the server sends a status instead of a delivery."""
        ...

    def take_shared(self, received: ReceiveBuffer) -> int:
        """Parse complete deliveries at the beginning of ``received``, which moves on, where payloads may stay in it.

        :returns: bytes that the next delivery still lacks (0: none)
        """
        return 0


class InboundParser:
    """Replaces the client's parser.

    :param stock: the client's parser
    :param on_denied: called with kind and exact subject of a permission violation
    """

    def __init__(self, stock: Any, on_denied: Callable[[str, str], None]) -> None:
        self._stock, self._on_denied = stock, on_denied
        self.deliveries: dict[bytes, Deliveries] = {}  #: by subscription id
        self.received = ReceiveBuffer()
        self._tail: bytes | memoryview = b""
        self._missing = 0  # bytes that the delivery in the tail still lacks
        self._resets = 0

    def reset(self) -> None:
        """Discard the incomplete frame; to be called for a new connection."""
        self.received.stop()
        self._tail, self._missing = b"", 0
        self._resets += 1
        self._stock.reset()

    async def parse(self, data: bytes = b"") -> None:
        """Parse what was read, here or into :attr:`received`; an incomplete frame is kept for the next call.

        :raises nats.errors.ProtocolError: the bytes violate the protocol; the client then closes the connection
        """
        if self.received.active:
            self.received.append(data)
            if not await self._parse_received():
                return
            data = b""
        at, resets = self._missing, self._resets
        if 0 < at <= len(data):  # join only the incomplete delivery, not what follows it
            await self._parse(b"".join((self._tail, data[:at])), 0)
        else:
            at = 0
        if resets != self._resets:
            return
        if self._tail:
            data, at = b"".join((self._tail, data[at:])), 0
        await self._parse(data, at)

    async def _parse_received(self) -> bool:
        """Parse what is in the buffer, which goes on to be used (False) or is left, with a tail (True)."""
        received, resets = self.received, self._resets
        if len(received) < received.needed:
            return False
        received.shared, received.needed = False, 0
        while len(received):
            for deliveries in self.deliveries.values():
                if missing := deliveries.take_shared(received):
                    received.needed = len(received) + missing
                    return False
            taken = await self._parse(received.copy(_PIECE), 0, received) if len(received) else 0
            if resets != self._resets:
                return False
            if not taken:
                break
        if received.shared and not len(received):
            return False
        self._tail, self._missing = received.stop(), 0
        return True

    async def _parse(self, buffer: bytes, at: int, received: ReceiveBuffer | None = None) -> int:
        """Parse complete frames from ``at`` on; the rest becomes the tail.

        :param received: where ``buffer`` is a copy of the beginning of what is there, it moves on instead
        :returns: offset of the rest
        """
        missing, resets = 0, self._resets
        if received is None:
            self._tail, self._missing = b"", 0

        try:
            while at < len(buffer) and resets == self._resets:
                for deliveries in self.deliveries.values():
                    at, lacking = deliveries.take(buffer, at)
                    missing = max(missing, lacking)
                if missing or at == len(buffer) or (frame := wire.read_frame(buffer, at)) is None:
                    break
                start, at = at, frame.end
                if frame.op == "HMSG" and frame.status and frame.sid in self.deliveries:
                    subject = frame.subject.decode(errors="replace")
                    self.deliveries[frame.sid].on_status(subject, frame.status, _status_line(frame))
                elif frame.op == "-ERR" and (violation := denied(frame.text)) is not None:
                    self._on_denied(*violation)
                else:
                    await self._stock.parse(buffer[start:at])
        except wire.ProtocolError as e:
            raise nats.errors.ProtocolError(str(e)) from e
        finally:
            if resets == self._resets:
                self._keep(buffer, at, missing, received)
        return at

    def _keep(self, buffer: bytes, at: int, missing: int, received: ReceiveBuffer | None) -> None:
        rest = memoryview(buffer)[at:]
        if received is not None:
            received.begin += at
        elif missing and len(rest) + missing >= _LARGE:
            self.received.start(rest, len(rest) + missing)
        else:
            self._tail, self._missing = rest, missing


def _status_line(frame: wire.Frame) -> str:
    """Description and headers of a status."""
    return " ".join([frame.status_text, *(f"{name}={value}" for name, value in frame.headers)])
