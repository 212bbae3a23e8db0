"""Drives one connection to a NATS cluster on the calling thread: one socket at a time, and the protocol behind it.

All work happens in :meth:`SocketDriver.drive`, without an event loop or another thread (but for name lookups); nothing
is read between two calls. Threads may share a driver: each reports what it reads, and none holds it while all wait. A
forked process starts without it.
"""

from __future__ import annotations

import contextlib
import os
import random
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mama_spark import __version__

from ..protocol import client_events as wire
from ..protocol.client import ClientProtocol, State
from ..protocol.client_events import Cause
from ..protocol.server_pool import Server, ServerPool, SilentServers
from ..settings import NatsSettings
from .login import login_fields
from .nonblocking_socket import READ_SIZE, NonBlockingSocket, Piece
from .tls import failure, tls_context

_READS = 8  #: full reads between two calls of ``done``
_UNSEEN = 1.0  #: seconds without a drive after which the connection may have ended unseen
SAYS_NOTHING = "takes the connection and says nothing"
_GLANCE = 0.05  #: seconds after which a thread that waits for the socket looks for bytes of other threads to write

#: Shared by all connections of this process, so that each need not find out anew.
SILENT = SilentServers(time.monotonic)

_alive: weakref.WeakSet[SocketDriver] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Written:
    """The system has taken whole writes of this size in bytes."""

    size: int


class SocketDriver:
    """Connects when it is driven, and again when the connection breaks. Bytes that were then unwritten, or unsent by
    the system, are discarded.

    :param on_event: called with all events but those for the socket
    :param clock: monotonic seconds
    :param only: the one server to connect to, once; None = servers of the settings, and those they announce
    :ivar lost: end of the last connection or attempt; None = none has ended
    :ivar failures: errors by address of the servers tried since the last connection
    :ivar turn: lock of the using thread, free while it waits: one thread for the socket, the others for that thread
    """

    def __init__(
        self,
        settings: NatsSettings,
        inbox: bytes,
        on_event: Callable[[wire.Event | Written], None],
        clock: Callable[[], float] = time.monotonic,
        only: Server | None = None,
    ) -> None:
        self._settings, self.clock = settings, clock
        self._on_event, self.turn = on_event, threading.Condition()
        self._is_waited_for = False  # a thread waits for the socket
        self._tls = tls_context(settings) if settings.wants_tls else None
        self.servers = ServerPool(settings.servers, random.Random(), SILENT, only)
        self.servers.next()
        self.protocol = ClientProtocol(
            settings.name,
            __version__,
            tls=settings.wants_tls,
            tls_first=settings.tls_handshake_first,
            inbox=inbox,
        )
        self._socket: NonBlockingSocket | None = None
        self._discards = False
        self._retry_at = self._driven_at = 0.0
        self.lost: wire.Lost | None = None
        self.failures: dict[str, str] = {}
        self._answered = 0  # bytes queued when the server spoke last
        self._marks: deque[tuple[int, int]] = deque()  # position of the end of each write, and its size
        self._written_up_to = 0  # queued bytes up to the end of the last write
        self.closed = False
        _alive.add(self)

    @property
    def up(self) -> bool:
        return self.protocol.state is State.UP

    @property
    def unwritten(self) -> int:
        sock = self._socket
        return 0 if sock is None else sock.queued - sock.written

    @property
    def peer(self) -> str:
        return "" if self._socket is None else self._socket.peer

    def close(self) -> None:
        """Close for good. Never raises."""
        with self.turn:
            self.closed = True
            self.protocol.closed("closed")
            self._drop_socket()

    def discard_unsent(self, on: bool) -> None:
        """See :meth:`.NonBlockingSocket.discard_unsent`; also for later connections."""
        with self.turn:
            self._discards = on
            if self._socket is not None:
                self._socket.discard_unsent(on)

    def abort_unsent(self, why: str) -> None:
        """Drop the connection, and the bytes of :meth:`write` with it, unless all have reached the other end."""
        with self.turn:
            if self._socket is not None and self._socket.queued - self._socket.unsent < self._written_up_to:
                self._handle(self.protocol.closed(why))

    def write(self, pieces: Sequence[Piece], size: int) -> None:
        """Write, now or when the socket takes it; dropped while the connection is down."""
        sock = self._socket
        if sock is None or not self.up:
            return
        sock.write(pieces, size)
        self._written_up_to = sock.queued
        self._marks.append((sock.queued, size))
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(OSError):  # the next read reports the end
            self._flush()

    def send(self, data: bytes) -> None:
        """Queue bytes of the protocol, which the next drive writes."""
        if data and self._socket is not None:
            self._socket.write((data,), len(data))

    def drive(self, timeout: float, done: Callable[[], bool] = lambda: False) -> None:
        """Read, write and reconnect at least once, until ``done`` or for ``timeout`` seconds. With a timeout, a silent
        server is asked for a sign of life, and then left (:meth:`.ClientProtocol.tick`)."""
        until = self.clock() + timeout
        with self.turn:
            self._advance(timeout > 0)
            while True:
                self.turn.notify_all()
                while True:
                    now = self.clock()
                    if done() or now >= until or self.closed:
                        return
                    if not self._is_waited_for:
                        break
                    self.turn.wait(min(until - now, _UNSEEN))  # who waits for the socket looks, and tells the others
                self._wait(min(max(0.0, self._wake_at() - now), until - now, _GLANCE))
                self._advance(timeout > 0)

    def _wait(self, seconds: float) -> None:
        """Wait for the socket; other threads have their turn meanwhile."""
        sock, self._is_waited_for = self._socket, True
        self.turn.release()
        try:
            if sock is None:
                time.sleep(seconds)
            else:
                sock.wait(seconds)
        finally:
            self.turn.acquire()
            self._is_waited_for = False

    def catch_up(self) -> None:
        """Read after a while without a drive: the connection may have ended long ago."""
        if self.clock() - self._driven_at > _UNSEEN:
            self.drive(0)

    def _wake_at(self) -> float:
        if self._socket is None:
            return self._retry_at
        wake = self.protocol.wake_at()
        return self._retry_at if wake is None else wake

    def _advance(self, waits: bool) -> None:
        self._driven_at = self.clock()
        if self.closed:
            return
        if self._socket is None:
            if self.clock() < self._retry_at:
                return
            self._begin()
        self._exchange()
        sock, doubted = self._socket, self.protocol.doubts
        waits = waits or (sock is not None and sock.queued > self._answered)  # also a caller that only polls
        moved = sock.moved() if doubted and sock is not None else 0
        elsewhere = len(self.servers) > 1 or self.protocol.info.clustered
        self._handle(self.protocol.tick(self.clock(), waits, moved, elsewhere))
        if self.protocol.doubts and not doubted and sock is not None:
            sock.watch()

    def _begin(self) -> None:
        server = self.servers.current
        times = self.servers.times(self._settings.connect_timeout)
        events = self.protocol.connect(self.clock(), lambda nonce: login_fields(self._settings, server, nonce), *times)
        self._answered = self._written_up_to = 0
        try:
            self._socket = NonBlockingSocket(server)
            self._socket.discard_unsent(self._discards)
        except OSError as e:
            events = self.protocol.closed(str(e), _cause(e))
        self._handle(events)

    def _exchange(self) -> None:
        sock = self._socket
        if sock is None:
            return
        try:
            self._flush()
            for _ in range(_READS):
                if not (data := sock.read()):
                    break
                self._secure()
                self._answered = sock.queued
                self._handle(self.protocol.receive(data))
                if self._socket is not sock:
                    return
                if len(data) < READ_SIZE:
                    break
            self._secure()
            self._flush()
        except OSError as e:  # of TLS, too
            self._end(sock, e)

    def _secure(self) -> None:
        if self.protocol.state is State.TLS and self._socket is not None and self._socket.secured:
            self._handle(self.protocol.secured())

    def _flush(self) -> None:
        sock = self._socket
        if sock is None:
            return
        sock.flush()
        size = 0
        while self._marks and self._marks[0][0] <= sock.written:
            size += self._marks.popleft()[1]
        if size:
            self._on_event(Written(size))

    def _end(self, sock: NonBlockingSocket, error: OSError) -> None:
        """Handle the end of the socket, after the server's last words, which may tell the cause."""
        with contextlib.suppress(OSError):
            while self._socket is sock and (data := sock.read()):
                self._handle(self.protocol.receive(data))
        if self._socket is sock:
            self._handle(self.protocol.closed(failure(error), _cause(error)))

    def _handle(self, events: Sequence[wire.Event]) -> None:
        for event in events:
            match event:
                case wire.Write(data):
                    self.send(data)
                case wire.StartTls():
                    assert self._socket is not None
                    self._tls = self._tls or tls_context(self._settings)  # the server requires it
                    self._socket.start_tls(self._tls)
                case wire.InfoChanged(info):
                    self.servers.learn(info.connect_urls)
                case wire.Connected(info):
                    self.failures.clear()
                    self.servers.connected()
                    self.servers.learn(info.connect_urls)
                    self._on_event(event)
                case wire.Lost(cause, text):
                    self.failures[self.servers.current.address] = SAYS_NOTHING if self._is_silent() else text
                    self.lost = event
                    if cause in (Cause.TIMEOUT, Cause.STALE):
                        self.servers.silent()
                    # unsent bytes must not arrive after they were resent elsewhere, or reported as lost
                    self._drop_socket(reset=self.protocol.informed)
                    self._retry_at = self.clock() + self.servers.next()[1]
                    self._on_event(event)
                case _:
                    self._on_event(event)

    def account(self) -> dict[str, str]:
        """:attr:`failures`, with the server that is tried now."""
        now = {self.servers.current.address: SAYS_NOTHING} if self._is_silent() else {}
        return self.failures | now

    def _is_silent(self) -> bool:
        """Whether the server took the connection and has not greeted."""
        return self._socket is not None and self._socket.connected and not self.protocol.informed

    def _drop_socket(self, reset: bool = False) -> None:
        sock, self._socket = self._socket, None
        self._marks.clear()
        if sock is not None:
            sock.close(reset)

    def forked(self) -> None:
        """Close this process's descriptor of the parent's connection, and send nothing. The lock is new: a thread of
        the parent may have held it."""
        self.closed, self.turn = True, threading.Condition()
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.forget()


def _cause(error: OSError) -> Cause:
    if isinstance(error, ConnectionRefusedError):
        return Cause.NOBODY
    ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or not isinstance(error, ssl.SSLError)
    return Cause.CLOSED if ended else Cause.NO_TLS


def _after_fork() -> None:
    for driver in list(_alive):
        driver.forked()


os.register_at_fork(after_in_child=_after_fork)
