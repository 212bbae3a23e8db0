"""Reads the socket of a nats-py connection in large pieces, and without copies if it is plain TCP.

:class:`asyncio.StreamReader` copies everything three times before anybody sees it: a third of the work of reading large
messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from nats.aio.client import Client

from ..protocol.receive_buffer import ReceiveBuffer
from .nats_py_compat import is_tcp, stream_of, transport_of, unread

_MOST = 1024 * 1024  #: bytes that may wait to be parsed; at more, reading of the socket is paused
_READ = 256 * 1024  #: bytes of one read that are passed on as they come


def move_in_bulk(client: Client, received: ReceiveBuffer) -> None:
    """Read all available bytes instead of 32 KiB at a time. To be called for each connection of the client.

    :param received: of the parser
    """
    transport = transport_of(client)
    if fits(transport):
        RawReadProtocol(transport, received)
        return
    read = type(transport).read

    async def read_all(_: int) -> bytes:
        return bytes(await read(transport, _MOST))

    transport.read = read_all


class RawReadProtocol(asyncio.BufferedProtocol):
    """An asyncio protocol that passes data on as received, or receives it into a buffer of the parser; all other events
    go to the previous protocol.

    For one connection: a transport of nats-py outlives it, and its next connection is read by nats-py until
    :func:`move_in_bulk` is called again.

    :param transport: of nats-py, connected; see :func:`fits`
    :param into: used while it is active
    """

    def __init__(self, transport: Any, into: ReceiveBuffer) -> None:
        self._transport, self._into = transport, into
        reader, socket = stream_of(transport)
        assert reader is not None
        assert socket is not None
        self._reader, self._socket = reader, socket
        self._before: Any = socket.get_protocol()
        self._received: deque[bytes] = deque()
        self._memory = memoryview(bytearray(_READ))
        self._in_place = False  # the read that goes on is one into the buffer
        self._placed = 0  # bytes in the buffer that its parser has not been told of
        self._size = 0  # bytes in _received
        self._active = False  # False while a task waits at the reader
        self._waiter: asyncio.Future[None] | None = None
        self._socket.set_protocol(self)
        transport.read, transport.at_eof = self.read, self.at_eof

    @property
    def _replaced(self) -> bool:
        """Whether the transport has another connection by now."""
        return stream_of(self._transport)[0] is not self._reader

    async def read(self, most: int) -> bytes:
        """The bytes of one read of the socket, whatever ``most`` is; empty at the end, and if they are in the buffer.

        :raises OSError: the connection broke; all earlier bytes have been taken
        """
        if self._replaced:
            return bytes(await type(self._transport).read(self._transport, most))
        if not self._active:
            if unread(self._reader):
                return bytes(await self._reader.read(_MOST))
            self._active = True
        while not self._received and not self._placed:
            if (error := self._reader.exception()) is not None:
                raise error
            if self._reader.at_eof():
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._received.popleft() if self._received else b""
        self._size -= len(data)
        self._placed = 0  # those behind ``data`` are taken with it
        if self._size < _MOST:
            self._socket.resume_reading()
        return data

    def at_eof(self) -> bool:
        """The end of the connection was reached."""
        if self._replaced:
            return bool(type(self._transport).at_eof(self._transport))
        return not self._received and not self._placed and bool(self._reader.at_eof())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- events of the socket ------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        self._in_place = self._active and self._into.active and not self._received and not self._replaced
        return self._into.free_space() if self._in_place else self._memory

    def buffer_updated(self, nbytes: int) -> None:
        if self._in_place:
            self._into.end += nbytes
            self._placed += nbytes
        elif self._active:
            self._received.append(bytes(self._memory[:nbytes]))
            self._size += nbytes
        else:
            self._before.data_received(bytes(self._memory[:nbytes]))
        if self._size + self._placed >= _MOST:
            self._socket.pause_reading()
        self._wake()

    def eof_received(self) -> bool | None:
        keep: bool | None = self._before.eof_received()
        self._wake()
        return keep

    def connection_lost(self, exc: Exception | None) -> None:
        self._before.connection_lost(exc)
        self._wake()

    def pause_writing(self) -> None:
        self._before.pause_writing()

    def resume_writing(self) -> None:
        self._before.resume_writing()


def fits(transport: Any) -> bool:
    """Whether :class:`RawReadProtocol` can read this transport: plain TCP, of a known kind, not replaced yet."""
    reader, socket = stream_of(transport) if is_tcp(transport) else (None, None)
    if reader is None or socket is None or unread(reader) is None or socket.get_extra_info("sslcontext") is not None:
        return False
    return not isinstance(socket.get_protocol(), RawReadProtocol)
