"""What comes in on a plain TCP connection of nats-py, as it was read from the socket.

:class:`asyncio.StreamReader` copies everything three times before anybody sees it: a third of the work of reading large
messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from nats.aio.transport import TcpTransport

_MOST = 1024 * 1024  #: bytes that may wait to be parsed before the socket is left alone


class RawReadProtocol(asyncio.Protocol):
    """Takes the place of the protocol that feeds the reader of a transport, which hears of everything but data.

    For one connection: a transport of nats-py outlives it, and what it connects to next is read as ever until another
    intake comes.

    :param transport: of nats-py, connected; see :func:`fits`
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._reader: Any = transport._io_reader
        self._socket: Any = transport._io_writer.transport
        self._before: Any = self._socket.get_protocol()
        self._came: deque[bytes] = deque()
        self._size = 0
        self._ours = False  # not while somebody waits at the reader
        self._waiter: asyncio.Future[None] | None = None
        self._socket.set_protocol(self)
        transport.read, transport.at_eof = self.read, self.at_eof

    @property
    def _over(self) -> bool:
        return self._transport._io_reader is not self._reader

    async def read(self, most: int) -> bytes:
        """What came with one read of the socket, whatever ``most`` is; empty at the end.

        :raises OSError: the connection broke, and all that came before has been taken
        """
        if self._over:
            return bytes(await type(self._transport).read(self._transport, most))
        if not self._ours:
            if self._reader._buffer:
                return bytes(await self._reader.read(_MOST))
            self._ours = True
        while not self._came:
            if (error := self._reader.exception()) is not None:
                raise error
            if self._reader.at_eof():
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._came.popleft()
        self._size -= len(data)
        if self._size < _MOST:
            self._socket.resume_reading()
        return data

    def at_eof(self) -> bool:
        """Nothing more will come."""
        if self._over:
            return bool(type(self._transport).at_eof(self._transport))
        return not self._came and bool(self._reader.at_eof())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- what the socket says ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self._ours:
            self._before.data_received(data)
            return
        self._came.append(data)
        self._size += len(data)
        if self._size >= _MOST:
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
    """Is it plain TCP, of the kind that we know, and not ours yet?"""
    reader, writer = (getattr(transport, name, None) for name in ("_io_reader", "_io_writer"))
    if not isinstance(transport, TcpTransport) or reader is None or writer is None:
        return False
    buffer, socket = getattr(reader, "_buffer", None), writer.transport
    if not isinstance(buffer, bytearray) or socket.get_extra_info("sslcontext") is not None:
        return False
    return not isinstance(socket.get_protocol(), RawReadProtocol)
