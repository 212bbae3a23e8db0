"""The ends of the product and of a server: :class:`SimSocket` stands in the place of
:class:`mama_spark.nats.connection.nonblocking_socket.NonBlockingSocket`, :func:`create_connection` in that of the one
of ``socket``; a server is called with what comes.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from typing import Protocol

from mama_spark.nats.protocol.server_pool import Server

from .kernel import Host, active, monotonic
from .network import End, Network

Piece = bytes | memoryview


class ByteServer(Protocol):
    """A server without I/O. What its calls return goes to connections, by number; None closes one."""

    def opened(self, number: int, now: float) -> Iterable[tuple[int, bytes | None]]: ...
    def received(self, number: int, data: bytes, now: float) -> Iterable[tuple[int, bytes | None]]: ...
    def closed(self, number: int, now: float) -> Iterable[tuple[int, bytes | None]]: ...


class ServerPort:
    """Moves the bytes of a server that listens on a host; it stands still with that.

    :ivar connections: ends by number
    :ivar late: numbers of those that it does not read, although it reads the others
    """

    def __init__(self, network: Network, host: Host, server: ByteServer) -> None:
        self._scheduler, self._host, self._server = network.scheduler, host, server
        self.connections: dict[int, End] = {}
        self.late: set[int] = set()
        self._unsent: dict[int, bytearray] = {}
        self._last, self._looks, self._new = 0, set[int](), set[int]()
        network.listen(host, self)

    def accept(self, end: End) -> None:
        self._last = number = self._last + 1
        self.connections[number], self._unsent[number] = end, bytearray()
        end.notify = lambda: self.look_soon(number)
        self._new.add(number)
        self.look_soon(number)

    def look_soon(self, number: int) -> None:
        """Read what has come over a connection, unless that is late."""
        if number not in self._looks and number not in self.late:
            self._looks.add(number)
            self._scheduler.call_at(self._scheduler.now, lambda: self._look(number), self._host)

    def _look(self, number: int) -> None:
        self._looks.discard(number)
        end, now = self.connections.get(number), self._scheduler.now
        if end is None:
            return
        if number in self._new:
            self._new.discard(number)
            self.write(self._server.opened(number, now))
        if end.incoming:
            self.write(self._server.received(number, end.read(), now))
        if number not in self.connections:
            return
        if end.readable:
            self._drop(number)
            self.write(self._server.closed(number, now))
        else:
            self._flush(number)

    def write(self, outputs: Iterable[tuple[int, bytes | None]]) -> None:
        """Send what the server has made."""
        for number, data in outputs:
            if number not in self.connections:
                continue
            if data is None:
                self._flush(number)
                self._drop(number)
            else:
                self._unsent[number] += data
                self._flush(number)

    def _flush(self, number: int) -> None:
        end, unsent = self.connections.get(number), self._unsent.get(number)
        if end is not None and unsent and not end.ended:
            del unsent[: end.send(bytes(unsent))]

    def _drop(self, number: int) -> None:
        end = self.connections.pop(number)
        del self._unsent[number]
        end.notify = None
        end.close()


class _Connected:
    def __init__(self, end: End) -> None:
        self.close = end.close


def create_connection(address: tuple[str, int], timeout: float, *, all_errors: bool = False) -> _Connected:
    """As :func:`socket.create_connection`: a connection that is closed without a word.

    :raises ExceptionGroup: nobody listens, or nothing comes about
    """
    scheduler = active()
    end, until = scheduler.network.connect(scheduler.here, address[0]), monotonic() + timeout
    while not (end.connected or end.error) and (left := until - monotonic()) > 0:
        end.changed.wait(left, "a connection")
    if end.connected:
        return _Connected(end)
    error = OSError(end.error, os.strerror(end.error)) if end.error else TimeoutError("timed out")
    end.close()
    raise ExceptionGroup("create_connection failed", [error])


class SimSocket:
    """See :class:`mama_spark.nats.connection.nonblocking_socket.NonBlockingSocket`; without TLS."""

    def __init__(self, server: Server) -> None:
        scheduler = active()
        self._server, self._unsent = server, bytearray()
        self.queued = self.written = self._came = 0
        self._watched, self._watched_taken = 0, -1
        self.secured = False
        self._end: End = scheduler.network.connect(scheduler.here, server.host)
        scheduler.trace("connects to " + server.host)

    @property
    def connected(self) -> bool:
        return self._end.connected

    @property
    def peer(self) -> str:
        return self._server.address if self._end.connected else ""

    @property
    def unsent(self) -> int:
        return self.queued - self.written + self._end.on_their_way

    def start_tls(self, context: ssl.SSLContext) -> None:
        raise NotImplementedError("the simulation has no TLS")

    def write(self, pieces: Iterable[Piece], size: int) -> None:
        for piece in pieces:
            self._unsent += piece
        self.queued += size

    def flush(self) -> None:
        end = self._end
        end.check()
        if self._unsent and end.connected:
            n = end.send(bytes(self._unsent))
            del self._unsent[:n]
            self.written += n

    def read(self) -> bytes:
        end = self._end
        if end.incoming:
            data = end.read()
            self._came += len(data)
            return data
        end.check()
        if end.finished:
            raise ConnectionResetError("the server closed the connection")
        return b""

    def wait(self, timeout: float) -> None:
        end = self._end
        if timeout > 0 and not (end.closed or end.readable or (self._unsent and end.room)):
            end.changed.wait(timeout, "the socket")

    def watch(self) -> None:
        self._watched, self._watched_taken = self.queued, -1

    def moved(self) -> int:
        if self._watched_taken < 0 and self.written >= self._watched:
            self._watched_taken = self.written
        moved = self.written
        if self._watched_taken >= 0:
            moved = self._watched_taken + min(self.written - self._end.on_their_way, self._watched_taken)
        return self._came + moved

    def discard_unsent(self, on: bool) -> None:
        self._end.resets = on

    def close(self, reset: bool = False) -> None:
        self._end.resets = reset
        self.forget()

    def forget(self) -> None:
        self._unsent.clear()
        self._end.close()
