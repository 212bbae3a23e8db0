"""Parses acknowledgements and deliveries in bulk, before nats-py's parser sees the bytes of a connection.

Clean acknowledgements of our inbox are taken in bulk, other replies of our inbox one by one, deliveries by the
subscription that reads them; every other frame goes to nats-py's own parser, whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import nats.errors

from ..errors import denied
from ..protocol import parser as wire
from ..protocol.acks import AckColumns, BulkReader


class Deliveries(Protocol):
    """Parses the deliveries of one subscription."""

    def take(self, data: bytes, at: int) -> tuple[int, int]:
        """Parse complete deliveries from ``at`` on.

        :returns: offset of the first byte that was not parsed, and bytes that the delivery there still lacks (0: none)
        """
        ...

    def on_status(self, subject: str, status: int, text: str) -> None:
        """Called when the server sends a status instead of a delivery."""
        ...


class InboundParser:
    """Replaces the client's parser.

    :param stock: the client's parser
    :param inbox: subject prefix of our replies
    :param on_acks: called with successful acknowledgements
    :param on_reply: called with any other reply to our inbox
    :param on_denied: called with kind and exact subject of a permission violation
    """

    def __init__(
        self,
        stock: Any,
        inbox: bytes,
        on_acks: Callable[[list[AckColumns]], None],
        on_reply: Callable[[wire.Frame], None],
        on_denied: Callable[[str, str], None],
    ) -> None:
        self._stock, self._inbox = stock, inbox
        self._bulk = BulkReader(inbox)
        self._on_acks, self._on_reply, self._on_denied = on_acks, on_reply, on_denied
        self.deliveries: dict[bytes, Deliveries] = {}  #: by subscription id
        self._tail: bytes | memoryview = b""
        self._parts: list[bytes] = []  #: reads after the tail that do not complete its frame
        self._missing = 0
        self._resets = 0

    def reset(self) -> None:
        """Discard the incomplete frame; to be called for a new connection."""
        self._tail, self._parts, self._missing = b"", [], 0
        self._resets += 1
        self._stock.reset()

    async def parse(self, data: bytes = b"") -> None:
        """Parse what was read; an incomplete frame is kept for the next call.

        :raises nats.errors.ProtocolError: the bytes violate the protocol; the client then closes the connection
        """
        if len(data) < self._missing:  # join the reads of a large delivery once
            self._parts.append(data)
            self._missing -= len(data)
            return
        at, resets = self._missing, self._resets
        if at:  # join only the incomplete delivery, not what follows it
            await self._parse(b"".join((self._tail, *self._parts, data[:at])), 0)
        if resets != self._resets:
            return
        if self._tail:
            data, at = b"".join((self._tail, *self._parts, data[at:])), 0
        await self._parse(data, at)

    async def _parse(self, buffer: bytes, at: int) -> None:
        """Parse complete frames from ``at`` on; the rest becomes the tail."""
        self._tail, self._parts, self._missing = b"", [], 0
        resets = self._resets
        columns: list[AckColumns] = []
        try:
            while at < len(buffer) and resets == self._resets:
                at = self._bulk.read(buffer, at, columns)
                for deliveries in self.deliveries.values():
                    at, missing = deliveries.take(buffer, at)
                    self._missing = max(self._missing, missing)
                if self._missing or at == len(buffer) or (frame := wire.read_frame(buffer, at)) is None:
                    break
                start, at = at, frame.end
                if frame.subject.startswith(self._inbox):
                    if columns:  # keep the order of arrival
                        self._on_acks(columns)
                        columns = []
                    self._on_reply(frame)
                elif frame.op == "HMSG" and frame.status and frame.sid in self.deliveries:
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
                self._tail = memoryview(buffer)[at:]
            if columns:
                self._on_acks(columns)


def _status_line(frame: wire.Frame) -> str:
    """Description and headers of a status."""
    return " ".join([frame.status_text, *(f"{name}={value}" for name, value in frame.headers)])
