"""A raw client of a Malamute broker: it says what the test says, and pings only then.

A client that announces no features is sent PONG unasked after a second, unless the broker has ``pong_silence=0``.
"""

from __future__ import annotations

from typing import Self

import zmq
from mama_spark.malamute.protocol.commands import Command, Ok, Open, decode, encode
from mama_spark.malamute.protocol.extensions import Extension, Feature, write
from mama_spark.testing.waiting import TIMEOUT


class Peer:
    """:param high_water: messages that ZeroMQ may hold for it, in each direction; 0 = any number"""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], url: str, *, high_water: int = 1000) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.set_hwm(high_water)
        self.socket.connect(url.replace("mlp://", "tcp://"))

    def open(self, address: bytes = b"", features: Feature | None = None) -> Self:
        """:param features: that it announces; None = it announces nothing, as the C client"""
        trailing = b"" if features is None else write(Extension(features=features))
        assert isinstance(self.ask(Open(address, trailing)), Ok)
        return self

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.socket.send_multipart(encode(command))

    def get(self) -> Command:
        assert self.socket.poll(int(TIMEOUT * 1000)), "nothing came"
        return decode(self.socket.recv_multipart())

    def ask(self, command: Command) -> Command:
        """What comes next."""
        self.send(command)
        return self.get()
