"""A non-blocking socket to one server: name lookup, unwritten bytes, and TLS once it is started."""

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

Addresses = list[tuple[Any, ...]]  #: of :func:`socket.getaddrinfo`


class NameLookup:
    """Looks up a host's addresses on a thread, which ends when the system answers, perhaps after half a minute."""

    def __init__(self, host: str, port: int) -> None:
        self._found: Addresses | OSError | None = None
        self.told, theirs = socket.socketpair()  #: readable with the result
        thread = threading.Thread(target=self._run, args=(host, port, theirs), name="mama-nats-lookup", daemon=True)
        thread.start()

    def _run(self, host: str, port: int, told: socket.socket) -> None:
        with told:
            try:
                self._found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, ValueError) as e:  # ValueError: no valid name
                self._found = e if isinstance(e, OSError) else OSError(str(e))

    def result(self) -> Addresses | None:
        """The addresses; None until the lookup ends. OSError: the name cannot be resolved."""
        if isinstance(self._found, OSError):
            raise self._found
        return self._found


def numeric(host: str, port: int) -> Addresses | None:
    """The address of a host that needs no lookup; None for a name."""
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return None


READ_SIZE = 1024 * 1024  #: bytes of one read; fewer are all that has come
#: Bytes of a read after which the next one is not copied: a copy of few is faster than memory for many.
_MUCH = 128 * 1024
_ENCRYPTED = 256 * 1024  #: bytes that are encrypted at once, at least
_MOST_PIECES = min(1024, os.sysconf("SC_IOV_MAX"))
_FINISH = struct.pack("ii", 0, 0)  #: SO_LINGER: the system sends the bytes that it has taken
_RESET = struct.pack("ii", 1, 0)  #: SO_LINGER: unsent bytes are discarded, and the other end gets RST
Piece = bytes | memoryview


class NonBlockingSocket:
    """Begins to connect when it is made; all calls but :meth:`wait` return at once.

    :ivar connected: TCP is connected
    :ivar queued: bytes given to :meth:`write`; ``written``: bytes that the system has taken of them
    :raises OSError: no address can be connected to
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._memory, self._much = memoryview(bytearray(READ_SIZE)), False
        self._unsent: deque[Piece] = deque()
        self._encrypted: memoryview = memoryview(b"")
        self._plain = 0  # bytes that are in _encrypted
        self._tls: TlsChannel | None = None
        self.queued = self.written = 0
        self._taken = self._came = 0  # bytes, with TLS encrypted ones, that the system has taken and given
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
        random.shuffle(found)  # the first one may be a black hole for the whole attempt
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
        """Go on after a failed address. OSError: none is left; a refusal only if all refuse."""
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
        """Host and port of the other end, in numbers; empty = not connected."""
        with contextlib.suppress(OSError):
            host, port = self._socket.getpeername()[:2]
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return ""

    @property
    def secured(self) -> bool:
        return self._tls is not None and self._tls.secured

    def start_tls(self, context: ssl.SSLContext) -> None:
        self._tls = TlsChannel(context, self._server.tls_name)
        self._shake(b"")

    def _shake(self, data: bytes) -> bytes:
        assert self._tls is not None
        try:
            return self._tls.receive(data)
        finally:  # an alert, too
            self._encrypted = memoryview(bytes(self._encrypted) + self._tls.to_send())

    def write(self, pieces: Iterable[Piece], size: int) -> None:
        """Queue pieces to be written; they must not change until then."""
        self._unsent.extend(pieces)
        self.queued += size

    def flush(self) -> None:
        """Write as much as the system takes now. OSError: the connection broke, or was not made."""
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
        """Encrypt the next bytes; false if there are none."""
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
        """The received bytes, perhaps none. OSError: the connection has ended, or TLS failed."""
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
        """Wait until the socket is readable, or writable for unsent bytes, at most ``timeout`` seconds. Other threads
        may wait, write, read and close it meanwhile."""
        pending = self._encrypted or (self._unsent and (self._tls is None or self.secured))
        waits = self._lookup is None and (pending or not self.connected)
        _ready(self._socket, select.POLLIN | (select.POLLOUT if waits else 0), max(0.0, timeout))

    def watch(self) -> None:
        """Make :meth:`moved` count the bytes queued by now."""
        self._watched, self._watched_taken = self.queued, None

    def moved(self) -> int:
        """Progress of the bytes queued at :meth:`watch`. It grows while the system takes some of them, or (on Linux)
        the other system confirms some. Later bytes do not count. Received bytes do, because TLS gives no text before a
        record is whole."""
        if self._watched_taken is None and self.written >= self._watched:
            self._watched_taken = self._taken
        moved = self._taken
        if (all_taken := self._watched_taken) is not None:
            moved = all_taken + min(self._taken - _on_their_way(self._socket), all_taken)
        return self._came + moved

    @property
    def unsent(self) -> int:
        """Bytes that the other system has not confirmed, as far as ours tells."""
        return self.queued - self.written + _on_their_way(self._socket)

    def close(self, reset: bool = False) -> None:
        """Close, and drop unwritten bytes, with ``reset`` also those that the system has taken. Never raises."""
        self.discard_unsent(reset)
        self.forget()

    def discard_unsent(self, on: bool) -> None:
        """Make the system drop unsent bytes when the process is killed."""
        self._discards = on
        with contextlib.suppress(OSError):
            self._linger()

    def _linger(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET if self._discards else _FINISH)

    def forget(self) -> None:
        """Close the descriptor of this process only, after a fork."""
        self._unsent.clear()
        self._socket.close()


def _on_their_way(sock: socket.socket) -> int:
    """Bytes that our system has and the other one has not confirmed; 0 if ours does not tell."""
    with contextlib.suppress(OSError):
        return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0


def _ready(sock: socket.socket, mask: int, timeout: float) -> bool:
    """Whether the socket is ready for one event of ``mask`` within ``timeout`` seconds, or has ended."""
    poll, descriptor = select.poll(), sock.fileno()
    if descriptor < 0:
        return True
    poll.register(descriptor, mask)
    return bool(poll.poll(timeout * 1000))
