"""Writes what a nats-py connection sends straight from the buffers in which it lies, by ``sendmsg``.

:class:`asyncio.StreamWriter` joins all pieces before the first octet leaves (before Python 3.12), and copies what the
socket does not take at once two times more.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from .nats_py_compat import is_tcp, stream_of

_MOST_PIECES = min(1024, os.sysconf("SC_IOV_MAX")) if hasattr(os, "sysconf") else 16
Piece = bytes | bytearray | memoryview


class GatheredWriter:
    """Replaces the writing calls of a transport of nats-py, for its present connection; on the loop's thread.

    The socket is duplicated, because asyncio watches its own descriptor. What is queued in asyncio's transport goes
    first.

    :param transport: of nats-py, connected; see :func:`fits`
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._reader, connection = stream_of(transport)
        assert connection is not None
        self._connection: asyncio.Transport = connection
        self._socket: socket.socket = connection.get_extra_info("socket").dup()
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Piece] = deque()
        self._watched = False
        self._sent = asyncio.Event()
        self._sent.set()
        self._error: OSError | None = None
        transport.write, transport.writelines = self.write, self.writelines
        transport.drain, transport.close = self.drain, self.close

    @property
    def _replaced(self) -> bool:
        """Whether the transport has another connection by now."""
        return stream_of(self._transport)[0] is not self._reader

    def write(self, data: Piece) -> None:
        """Write soon, in order; ``data`` must not change until :meth:`drain` has returned."""
        self.writelines((data,))

    def writelines(self, pieces: Iterable[Piece]) -> None:
        """As :meth:`write`, one piece after the other."""
        if self._replaced:
            type(self._transport).writelines(self._transport, pieces)
            return
        if self._error is not None or self._connection.is_closing():
            return  # as asyncio: who reads, or drains, hears of the end
        if not self._unsent and self._connection.get_write_buffer_size():
            self._connection.writelines(list(pieces))
            return
        waiting = bool(self._unsent)
        self._unsent.extend(piece for piece in pieces if len(piece))
        if not waiting:
            self._send()

    async def drain(self) -> None:
        """Wait until the socket has taken everything.

        :raises OSError: the connection broke
        """
        if not self._replaced:
            await self._sent.wait()
            if self._error is not None:
                raise self._error
        await type(self._transport).drain(self._transport)

    def close(self) -> None:
        """Close the connection, and drop what the socket has not taken: who wants that to arrive drains before. A
        server that reads nothing any more would keep the connection open for ever."""
        if not self._replaced:
            self._forget()
        type(self._transport).close(self._transport)

    def lost(self) -> None:
        """The connection has ended; what it did not take is dropped."""
        self._forget()
        self._socket.close()

    def _send(self) -> None:
        try:
            n = self._socket.sendmsg(list(islice(self._unsent, _MOST_PIECES)))
        except (BlockingIOError, InterruptedError):
            n = 0
        except OSError as e:
            self._error = e
            self._forget()
            self._connection.abort()
            return
        self._drop(n)
        if not self._unsent:
            self._forget()
        elif not self._watched:
            self._watched = True
            self._sent.clear()
            self._loop.add_writer(self._socket, self._send)

    def _drop(self, n: int) -> None:
        while n:
            first = self._unsent[0]
            if len(first) > n:
                self._unsent[0] = memoryview(first)[n:]
                return
            self._unsent.popleft()
            n -= len(first)

    def _forget(self) -> None:
        self._unsent.clear()
        self._sent.set()
        if self._watched:
            self._watched = False
            self._loop.remove_writer(self._socket)


def fits(transport: Any) -> bool:
    """Whether :class:`GatheredWriter` can write to this transport: plain TCP, with a socket that gathers."""
    connection = stream_of(transport)[1] if is_tcp(transport) else None
    if connection is None or connection.get_extra_info("sslcontext") is not None:
        return False
    found = connection.get_extra_info("socket")
    return found is not None and hasattr(found, "dup") and hasattr(socket.socket, "sendmsg")
