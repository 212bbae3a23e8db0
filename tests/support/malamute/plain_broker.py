"""A Malamute broker of which a test knows every byte: it answers as the original does, and knows no extension.

It goes by the reference's table of what each command leads to, and has no code in common with what it tests. It leaves
out readers, mailboxes and services.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq

_OK = bytes.fromhex("aaa80e00c800")
_FAILED = bytes.fromhex("aaa80f012c00")
_INVALID = bytes.fromhex("aaa80f01f400")
_PONG = bytes.fromhex("aaa803")
OPEN, PING, CLOSE, WRITE, SEND = 1, 2, 4, 5, 7


class PlainBroker:
    """
    :ivar heard: every command of all clients, as it came: its frames
    :ivar sent: what was accepted, in order: stream, subject, content
    """

    def __init__(self) -> None:
        self.heard: list[list[bytes]] = []
        self.sent: list[tuple[str, str, list[bytes]]] = []
        self._streams: dict[bytes, bytes | None] = {}  # by client, the one that it writes to
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.set_hwm(0)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"mlp://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(30)
        self._context.term()

    def commands(self, number: int) -> list[list[bytes]]:
        """Those of one kind that came."""
        return [frames for frames in list(self.heard) if frames[0][2] == number]

    def forget(self) -> None:
        """As after a restart: no client is known."""
        self._streams.clear()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._socket.poll(20):
                    client, *frames = self._socket.recv_multipart()
                    self._take(client, frames)
        finally:
            self._socket.close(0)

    def _say(self, client: bytes, *frames: bytes) -> None:
        self._socket.send_multipart([client, *frames])

    def _take(self, client: bytes, frames: list[bytes]) -> None:
        self.heard.append(frames)
        number = frames[0][2]
        if number == OPEN:
            self._streams[client] = None
            self._say(client, _OK)
        elif client not in self._streams:
            self._say(client, _INVALID)
        elif number == PING:
            self._say(client, _PONG)
        elif number == WRITE:
            self._streams[client] = _strings(frames[0])[0]
            self._say(client, _OK)
        elif number == SEND:
            self._send(client, frames)
        elif number == CLOSE:
            self._say(client, _OK)
            self._streams.pop(client)

    def _send(self, client: bytes, frames: list[bytes]) -> None:
        stream = self._streams[client]
        if stream is None:
            self._say(client, _FAILED)
            del self._streams[client]
            return
        subject = _strings(frames[0])[0]
        self.sent.append((stream.decode(), subject.decode(), frames[1:]))


def _strings(command: bytes) -> Sequence[bytes]:
    """The strings that begin behind the id, as far as there are some; what trails is not looked at."""
    found, at = [], 3
    while at < len(command) and at + 1 + command[at] <= len(command):
        found.append(command[at + 1 : at + 1 + command[at]])
        at += 1 + command[at]
    return found
