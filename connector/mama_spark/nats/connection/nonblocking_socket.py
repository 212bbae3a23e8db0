"""A non-blocking socket to one server: the lookup of its name, what waits to be written, and TLS if it was started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import socket
import ssl
import struct
import sys
import termios
import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from ..protocol.server_pool import Server
from .tls import TlsChannel

Addresses = list[tuple[Any, ...]]  #: as of :func:`socket.getaddrinfo`


class NameLookup:
    """Looks up the addresses of a host without waiting, on a thread that ends when the system has answered, which may
    take half a minute."""

    def __init__(self, host: str, port: int) -> None:
        self._found: Addresses | OSError | None = None
        self.told, theirs = socket.socketpair()  #: readable when there is a result
        thread = threading.Thread(target=self._run, args=(host, port, theirs), name="mama-nats-lookup", daemon=True)
        thread.start()

    def _run(self, host: str, port: int, told: socket.socket) -> None:
        with told:
            try:
                self._found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, ValueError) as e:  # ValueError: it is no name
                self._found = e if isinstance(e, OSError) else OSError(str(e))

    def result(self) -> Addresses | None:
        """None: there is none yet.

        :raises OSError: the name cannot be resolved
        """
        if isinstance(self._found, OSError):
            raise self._found
        return self._found


def numeric(host: str, port: int) -> Addresses | None:
    """The address of a host that needs no lookup; None: it is a name."""
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return None


READ_SIZE = 1024 * 1024  #: bytes of one read; less than that is all that has come
#: Bytes of a read after which the next one is not copied: to copy few is faster than to allocate memory for many.
_MUCH = 128 * 1024
_ENCRYPTED = 256 * 1024  #: bytes that are encrypted at once, at least
_MOST_PIECES = min(1024, os.sysconf("SC_IOV_MAX"))
_FINISH = struct.pack("ii", 0, 0)  #: SO_LINGER: the system sends what it has taken
_RESET = struct.pack("ii", 1, 0)  #: SO_LINGER: what was not sent is discarded, and the other end gets RST
Piece = bytes | memoryview


class NonBlockingSocket:
    """Begins to connect when it is made; all calls return at once but :meth:`wait`.

    :ivar connected: TCP is there
    :ivar queued: bytes that were to be written, and ``written``: that the system has taken
    :raises OSError: it cannot be connected to its address
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._memory, self._much = memoryview(bytearray(READ_SIZE)), False
        self._unsent: deque[Piece] = deque()
        self._encrypted: memoryview = memoryview(b"")
        self._plain = 0  # bytes that are in _encrypted
        self._tls: TlsChannel | None = None
        self.queued = self.written = 0
        self._taken = self._came = 0  # bytes, of TLS if there is, that the system has taken, and has given
        self._watched = 0  # of queued
        self._watched_taken: int | None = None  # _taken when these were written
        self.connected = self._discards = False
        self._lookup: NameLookup | None = None
        if (found := numeric(server.host, server.port)) is None:
            self._lookup = NameLookup(server.host, server.port)
            self._socket = self._lookup.told
        else:
            self._use(found)

    def _use(self, found: Addresses) -> None:
        random.shuffle(found)  # the first one may be a black hole, for all the time of an attempt
        self._addresses = deque(found)
        self._error: OSError | None = None
        self._dial()

    def _dial(self) -> None:
        while True:
            family, kind, protocol, _, address = self._addresses.popleft()
            try:
                self._socket = socket.socket(family, kind, protocol)
                try:
                    self._socket.setblocking(False)
                    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._linger()
                    with contextlib.suppress(BlockingIOError):
                        self._socket.connect(address)
                except BaseException:
                    self._socket.close()
                    raise
            except OSError as e:
                self._failed(e)
                continue
            return

    def _failed(self, error: OSError) -> None:
        """:raises OSError: there is no other address; a refusal only where all refuse"""
        if self._error is None or not isinstance(error, ConnectionRefusedError):
            self._error = error
        if not self._addresses:
            raise self._error

    def _finish_dialling(self) -> None:
        if self._lookup is not None:
            if (found := self._lookup.result()) is not None:
                self._lookup = None
                self._socket.close()
                self._use(found)
            return
        if not _ready(self._socket, select.POLLIN | select.POLLOUT, 0):
            return
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error == 0:
            self.connected = True
            return
        self._socket.close()
        self._failed(OSError(error, os.strerror(error)))
        self._dial()

    @property
    def peer(self) -> str:
        """Host and port of the other end, in numbers; empty: there is none."""
        with contextlib.suppress(OSError):
            host, port = self._socket.getpeername()[:2]
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return ""

    @property
    def secured(self) -> bool:
        return self._tls is not None and self._tls.secured

    def start_tls(self, context: ssl.SSLContext) -> None:
        """All that is written and read from here on goes through TLS."""
        self._tls = TlsChannel(context, self._server.tls_name)
        self._shake(b"")

    def _shake(self, data: bytes) -> bytes:
        assert self._tls is not None
        try:
            return self._tls.receive(data)
        finally:  # an alert, too
            self._encrypted = memoryview(bytes(self._encrypted) + self._tls.to_send())

    def write(self, pieces: Iterable[Piece], size: int) -> None:
        """Write soon; the pieces must not change until then."""
        self._unsent.extend(pieces)
        self.queued += size

    def flush(self) -> None:
        """Write what the system takes now.

        :raises OSError: the connection broke, or none came about
        """
        if not self.connected:
            self._finish_dialling()
        if not self.connected:
            return
        try:
            if self._tls is None:
                while self._unsent:
                    n = self._socket.sendmsg(list(islice(self._unsent, _MOST_PIECES)))
                    self.written += n
                    self._taken += n
                    self._drop(n)
                return
            while self._encrypted or self._encrypt():
                n = self._socket.send(self._encrypted)
                self._taken += n
                self._encrypted = self._encrypted[n:]
                if not self._encrypted:
                    self.written, self._plain = self.written + self._plain, 0
        except BlockingIOError:
            pass

    def _drop(self, n: int) -> None:
        while n:
            first = self._unsent[0]
            if len(first) > n:
                self._unsent[0] = memoryview(first)[n:]
                return
            self._unsent.popleft()
            n -= len(first)

    def _encrypt(self) -> bool:
        """Whether there is anything to write."""
        if self._tls is None or not (self.secured and self._unsent):
            return False
        pieces: list[Piece] = []
        while self._unsent and self._plain < _ENCRYPTED:
            pieces.append(self._unsent.popleft())
            self._plain += len(pieces[-1])
        self._tls.send(b"".join(pieces))
        self._encrypted = memoryview(self._tls.to_send())
        return True

    def read(self) -> bytes:
        """The received bytes; empty if there are none.

        :raises OSError: the connection has ended, or TLS failed
        """
        if not self.connected:
            return b""
        try:
            if self._much:
                data = self._socket.recv(READ_SIZE)
            else:
                data = bytes(self._memory[: self._socket.recv_into(self._memory)])
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._came += len(data)
        self._much = len(data) >= _MUCH
        return data if self._tls is None else self._shake(data)

    def wait(self, timeout: float) -> None:
        """Until something can be read, what waits can be written, or ``timeout`` seconds have passed. Threads may wait
        at once, and while another one does what it does to the socket, also close it."""
        pending = self._encrypted or (self._unsent and (self._tls is None or self.secured))
        waits = self._lookup is None and (pending or not self.connected)
        _ready(self._socket, select.POLLIN | (select.POLLOUT if waits else 0), max(0.0, timeout))

    def watch(self) -> None:
        """Let :meth:`moved` tell of what is queued by now."""
        self._watched, self._watched_taken = self.queued, None

    def moved(self) -> int:
        """How far what was queued at :meth:`watch` has come: it grows as long as the system takes some of it, or passes
        it on to the system of the other end, as far as ours tells that (Linux), and not with what was queued later;
        also with what comes, of which TLS makes no text before a record is whole."""
        if self._watched_taken is None and self.written >= self._watched:
            self._watched_taken = self._taken
        moved = self._taken
        if (all_taken := self._watched_taken) is not None:
            moved = all_taken + min(self._taken - _on_their_way(self._socket), all_taken)
        return self._came + moved

    @property
    def unsent(self) -> int:
        """Bytes that the system of the other end has not confirmed, as far as ours tells that."""
        return self.queued - self.written + _on_their_way(self._socket)

    def close(self, reset: bool = False) -> None:
        """Drop bytes that are not written; never raises.

        :param reset: prevent the arrival of bytes that the system has taken, too
        """
        self.discard_unsent(reset)
        self.forget()

    def discard_unsent(self, on: bool) -> None:
        """Make the system drop bytes that it has not sent when the process is killed."""
        self._discards = on
        with contextlib.suppress(OSError):
            self._linger()

    def _linger(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET if self._discards else _FINISH)

    def forget(self) -> None:
        """Close the descriptor of this process alone, after a fork."""
        self._unsent.clear()
        self._socket.close()


def _on_their_way(sock: socket.socket) -> int:
    """Bytes that our system has, and the other one has not confirmed; 0 if ours does not tell."""
    with contextlib.suppress(OSError):
        return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0


def _ready(sock: socket.socket, mask: int, timeout: float) -> bool:
    """Whether the socket can do one of these within ``timeout`` seconds, or has ended."""
    poll, descriptor = select.poll(), sock.fileno()
    if descriptor < 0:
        return True
    poll.register(descriptor, mask)
    return bool(poll.poll(timeout * 1000))
