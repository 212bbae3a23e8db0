"""Raw clients of Malamute brokers: they say what the test says, and ping only then.

A client that announces no features is sent PONG unasked after a second, unless the broker has ``pong_silence=0`` as
those of :class:`MlpSite`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import zmq
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.session.broker_events import BrokerEvent
from mama_spark.malamute.broker.session.broker_events import encode as encode_event
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.protocol.commands import Command, Ok, Open, Ping, Pong, decode, encode
from mama_spark.malamute.protocol.extensions import Extension, Feature, write
from mama_spark.testing.waiting import TIMEOUT


class Peer:
    """:param high_water: messages that ZeroMQ may hold for it, in each direction; 0 = any number"""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], url: str, *, high_water: int = 1000, kind: int = zmq.DEALER
    ) -> None:
        self.socket = context.socket(kind)
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

    def take(self, n: int) -> list[Command]:
        return [self.get() for _ in range(n)]

    def ask(self, command: Command) -> Command:
        """What comes next."""
        self.send(command)
        return self.get()

    def until_pong(self, *commands: Command) -> list[Command]:
        """All that comes up to the PONG behind these commands."""
        self.send(*commands, Ping())
        found: list[Command] = []
        while not isinstance(command := self.get(), Pong):
            found.append(command)
        return found


P = TypeVar("P", bound=Peer)


class MlpSite:
    """Brokers of one test, and raw clients, which need not ping; all of them end with it."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 4096)
        self._peers: list[Peer] = []
        self._brokers: list[Broker] = []

    def broker(
        self,
        engines: dict[bytes, str | tuple[str, dict[str, Any]]],
        high_water: int = 1000,
        encode: Callable[[BrokerEvent], bytes] = encode_event,
        **machine: Any,
    ) -> Broker:
        """:param engines: name and settings, by pattern"""
        named = {pattern: (one, {}) if isinstance(one, str) else one for pattern, one in engines.items()}
        choices = tuple(EngineChoice(pattern, *one) for pattern, one in named.items())
        given = SessionSettings(**{"timeout": 0, "pong_silence": 0, **machine})
        broker = Broker(BrokerSettings("tcp://127.0.0.1:*", given, choices, high_water=high_water), encode)
        broker.start()
        self._brokers.append(broker)
        return broker

    def connect(self, make: type[P], broker: Broker | str, hwm: int = 1000, kind: int = zmq.DEALER) -> P:
        """:param broker: or its URL"""
        url = broker if isinstance(broker, str) else broker.endpoint
        peer = make(self.context, url, high_water=hwm, kind=kind)
        self._peers.append(peer)
        return peer

    def peer(
        self, make: type[P], broker: Broker | str, address: bytes, features: Feature | None = None, hwm: int = 1000
    ) -> P:
        return self.connect(make, broker, hwm).open(address, features)

    def close(self) -> None:
        for peer in self._peers:
            peer.socket.close(0)
        self.context.term()
        for broker in self._brokers:
            broker.stop()
