"""A way to a server that can be cut, slow, or silent, while the server stays up."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlparse


class Proxy:
    """Forwards TCP connections from a free port to the server.

    :param server: its URL
    :param keep: remember in :attr:`heard` all that passes
    :param host: address to listen on, of IPv4 or IPv6
    """

    def __init__(self, server: str, keep: bool = False, host: str = "127.0.0.1") -> None:
        self._keep = keep
        self.heard = bytearray()
        self._to = urlparse(server)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._host = f"[{host}]" if ":" in host else host
        self._listener = socket.create_server((host, 0), family=family)
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._speaking = threading.Event()
        self._speaking.set()
        self._delay, self._rate = 0.0, math.inf
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        """As the server's, with the same user and password."""
        user = self._to.netloc.rpartition("@")
        return f"{self._to.scheme}://{user[0]}{user[1]}{self._host}:{self.port}"

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.speak()
        self.cut()
        for thread in self._threads:
            thread.join(30)

    def cut(self) -> None:
        """Close every connection; new ones are welcome."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for one in (s for pair in pairs for s in pair):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End every connection as a machine does that has forgotten it: RST to both ends."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for one in (s for pair in pairs for s in pair):
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RD)  # wakes the thread that reads it
            one.close()

    def silence(self) -> None:
        """Forward nothing from now on, and close nothing: also a half-open connection, as its client sees it."""
        self._speaking.clear()

    def speak(self) -> None:
        """Forward again, also what waited."""
        self._speaking.set()

    def slow(self, delay: float) -> None:
        """Forward each piece, of at most 64 KiB, ``delay`` seconds after the one before; 0 = at full speed again."""
        self._delay = delay

    def narrow(self, rate: float) -> None:
        """Forward at most so many bytes a second of each connection, in each direction."""
        self._rate = rate

    def _run(self, work: object, *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                far = socket.create_connection((self._to.hostname, self._to.port))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._pairs.append((near, far))
            self._run(self._forward, near, far)
            self._run(self._forward, far, near)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._speaking.wait()
                if self._keep:
                    self.heard += data
                time.sleep(self._delay + len(data) / self._rate)
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        # each socket is read by one thread, which closes it
        source.close()
