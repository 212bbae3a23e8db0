"""A connection to a real NATS server of which a test says every byte. Blocking."""

from __future__ import annotations

import socket
from itertools import count
from types import TracebackType
from typing import Self
from urllib.parse import urlparse

import orjson
from mama_spark.nats.protocol.acks import Reply, classify
from mama_spark.nats.protocol.parser import Frame

from tests.support.nats.frame_parser import FrameParser

_PATIENCE = 60.0


class PlainNatsConnection:
    """Publishes with any reply subject, and reads answers as this package does.

    :param url: of the server, with user and password if it wants them
    :ivar inbox: prefix of the reply subjects whose answers :meth:`answer` gets
    """

    def __init__(self, url: str) -> None:
        server = urlparse(url)
        self._socket = socket.create_connection((server.hostname, server.port), timeout=_PATIENCE)
        self._reader = FrameParser()
        self._numbers = count(1)
        self._frames: list[Frame] = []
        self.inbox = b"_INBOX.%d." % self._socket.getsockname()[1]
        user = {"user": server.username, "pass": server.password} if server.username else {}
        asked = {"verbose": False, "headers": True, "no_responders": True, **user}
        self._socket.sendall(b"CONNECT %s\r\n" % orjson.dumps(asked))
        self.subscribe(self.inbox + b">")

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """As it is."""
        self._socket.sendall(data)

    def subscribe(self, subject: bytes) -> None:
        """:meth:`message` gets what is published there from now on, too."""
        self._socket.sendall(b"SUB %s %d\r\nPING\r\n" % (subject, next(self._numbers)))
        while self._next().op != "PONG":
            pass

    def publish(self, subject: str, reply: bytes, payload: bytes = b"", headers: dict[str, str] | None = None) -> None:
        block = b"".join(b"%s: %s\r\n" % (k.encode(), v.encode()) for k, v in (headers or {}).items())
        block = b"NATS/1.0\r\n%s\r\n" % block if headers else b""
        sizes = b"%d %d" % (len(block), len(block) + len(payload)) if headers else b"%d" % len(payload)
        op = b"HPUB" if headers else b"PUB"
        self._socket.sendall(b"%s %s %s %s\r\n%s%s\r\n" % (op, subject.encode(), reply, sizes, block, payload))

    def answer(self) -> tuple[bytes, Reply]:
        """The next one: the reply subject it came to, and what it means."""
        frame = self.message()
        return frame.subject, classify(frame)

    def message(self) -> Frame:
        """The next one.

        :raises TimeoutError: none comes
        """
        while (frame := self._next()).op not in ("MSG", "HMSG"):
            if frame.op == "PING":
                self._socket.sendall(b"PONG\r\n")
        return frame

    def _next(self) -> Frame:
        while not self._frames:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._frames += list(self._reader.receive(data))
        return self._frames.pop(0)
