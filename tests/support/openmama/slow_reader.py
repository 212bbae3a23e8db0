"""A subscriber that takes messages only when it is told: what it has not taken waits at its publisher."""

from __future__ import annotations

from typing import Self

import zmq
from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import decode


class SlowReader:
    """Connects to a port of this machine, and subscribes to one topic; framing ``oz``."""

    def __init__(self, port: int, topic: str) -> None:
        self._head = topic.encode() + b"\0\x01\0"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        for option, value in ((zmq.RCVHWM, 1), (zmq.RCVBUF, 4096), (zmq.LINGER, 0)):
            self._socket.setsockopt(option, value)
        self._socket.subscribe(topic.encode() + b"\0")
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def messages(self, n: int, timeout: float = 60.0) -> list[MamaMsg]:
        """The next ones: ``n``, or fewer where none comes within the time-out."""
        found: list[MamaMsg] = []
        while len(found) < n and self._socket.poll(round(timeout * 1000)):
            found.append(decode(self._socket.recv().removeprefix(self._head)))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._context.destroy()
