"""Our reader of the connection's bytes, in front of nats-py's parser.

Clean acknowledgements of our inbox are taken in bulk, other replies of our inbox one by one, deliveries by the feed
that reads them; every other frame goes to nats-py's own parser, whole. This touches private attributes of the client,
so :func:`supported` looks at the installed version and at each of them; where they do not fit, only public calls are
used.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import nats.errors
from nats.aio.client import Client

from ..errors import denied
from ..protocol import parser as wire
from ..protocol.acks import AckColumns, BulkReader
from .raw_read import RawReadProtocol, fits

_VERSIONS = ((2, 9), (3, 0))  # from, below
_ATTRIBUTES = ("_ps", "_pending", "_pending_data_size", "_flush_queue", "_transport")


def supported(client: Client) -> bool:
    """May the fast path be used with this client?"""
    try:
        major, minor = importlib.metadata.version("nats-py").split(".")[:2]
        version = (int(major), int(minor))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False
    low, high = _VERSIONS
    parser = getattr(client, "_ps", None)
    return (
        low <= version < high
        and all(hasattr(client, name) for name in _ATTRIBUTES)
        and isinstance(client._pending, list)
        and inspect.iscoroutinefunction(getattr(parser, "parse", None))
        and callable(getattr(parser, "reset", None))
    )


class Deliveries(Protocol):
    """Who reads the deliveries of one subscription."""

    def take(self, data: bytes, at: int) -> tuple[int, int]:
        """Take whole ones from ``at`` on: where the rest begins, and bytes that the delivery there lacks (0: none)."""
        ...

    def on_status(self, subject: str, status: int, text: str) -> None:
        """The consumer said something instead of delivering."""
        ...


_READ = 1024 * 1024


def read_in_bulk(client: Client) -> None:
    """Take from the socket what is there instead of 32 KiB at a time, and copy none of it if it is plain TCP. For each
    transport of the client."""
    transport: Any = client._transport
    if fits(transport):
        RawReadProtocol(transport)
        return
    read = type(transport).read

    async def read_all(_: int) -> bytes:
        return bytes(await read(transport, _READ))

    transport.read = read_all


class AckParser:
    """Takes the place of the client's parser.

    :param inbox: subject prefix of our replies
    :param on_acks: clean acknowledgements
    :param on_reply: any other reply of our inbox
    :param on_denied: kind and exact subject of a permission violation
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
        self.feeds: dict[bytes, Deliveries] = {}  #: by the number of their subscription
        self._tail: bytes | memoryview = b""
        self._parts: list[bytes] = []  #: reads behind the tail, which do not complete it
        self._missing = 0
        self._resets = 0

    def reset(self) -> None:
        """A new connection: what was cut will never be completed."""
        self._tail, self._parts, self._missing = b"", [], 0
        self._resets += 1
        self._stock.reset()

    async def parse(self, data: bytes = b"") -> None:
        """:raises nats.errors.ProtocolError: no protocol; the client closes the connection in order"""
        if len(data) < self._missing:  # a large delivery comes in many reads: joined once
            self._parts.append(data)
            self._missing -= len(data)
            return
        at, resets = self._missing, self._resets
        if at:  # only the delivery that was cut is joined, not all that came behind it
            await self._parse(b"".join((self._tail, *self._parts, data[:at])), 0)
        if resets != self._resets:
            return
        if self._tail:
            data, at = b"".join((self._tail, *self._parts, data[at:])), 0
        await self._parse(data, at)

    async def _parse(self, buffer: bytes, at: int) -> None:
        """Whole frames from ``at`` on; the rest becomes the tail."""
        self._tail, self._parts, self._missing = b"", [], 0
        resets = self._resets
        columns: list[AckColumns] = []
        try:
            while at < len(buffer) and resets == self._resets:
                at = self._bulk.read(buffer, at, columns)
                for feed in self.feeds.values():
                    at, missing = feed.take(buffer, at)
                    self._missing = max(self._missing, missing)
                if self._missing or at == len(buffer) or (frame := wire.read_frame(buffer, at)) is None:
                    break
                start, at = at, frame.end
                if frame.subject.startswith(self._inbox):
                    if columns:  # keep the order of arrival
                        self._on_acks(columns)
                        columns = []
                    self._on_reply(frame)
                elif frame.op == "HMSG" and frame.status and frame.sid in self.feeds:
                    self.feeds[frame.sid].on_status(frame.subject.decode(errors="replace"), frame.status, _line(frame))
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


def _line(frame: wire.Frame) -> str:
    """What a status says, with its headers."""
    return " ".join([frame.status_text, *(f"{name}={value}" for name, value in frame.headers)])
