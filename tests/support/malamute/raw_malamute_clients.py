"""Raw clients of a broker over TCP, and engines that are slow, broken or wild."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.engines import Delivery, register
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong, decode, encode
from mama_spark.malamute.protocol.extensions import Extension, Feature, write
from mama_spark.testing.clocks import Clock

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "vectors" / "malamute.json").read_text())


TIMEOUT_MS = 60_000


OK, INVALID, PONG = Ok(), Error(500), Pong()


class RawClient:
    """A raw client."""

    def __init__(self, site: Site, kind: int = zmq.DEALER, hwm: int = 1000) -> None:
        self.socket = site.context.socket(kind)
        self.socket.linger = 0
        self.socket.set_hwm(hwm)
        self.socket.connect(site.broker.endpoint)
        site.peers.append(self)

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.socket.send_multipart(encode(command))

    def frames(self) -> list[bytes]:
        assert self.socket.poll(TIMEOUT_MS), "nothing came"
        return self.socket.recv_multipart()

    def get(self, n: int = 1) -> list[Command]:
        return [decode(self.frames()) for _ in range(n)]

    def ask(self, *commands: Command) -> list[Command]:
        """All that comes up to the PONG behind these commands."""
        self.send(*commands, wire.Ping())
        found: list[Command] = []
        while not isinstance(found[-1] if found else None, Pong):
            found += self.get()
        return found[:-1]

    def open(self, address: bytes, features: Feature | None = None) -> RawClient:
        trailing = b"" if features is None else write(Extension(features=features))
        self.send(wire.Open(address, trailing))
        (reply,) = self.get()
        assert isinstance(reply, Ok)
        return self


class Site:
    """A broker, whose clients need not ping unless it is given a ``timeout``, and its clients. A PONG is an answer: it
    ends what :meth:`RawClient.ask` collects, so none comes unasked.

    :param clock: the broker's
    """

    def __init__(self, clock: Clock, folder: Path | None = None, **machine: Any) -> None:
        self.clock = clock
        self.events: list[tuple[str, bytes, bytes, bytes]] = []
        choices: tuple[EngineChoice, ...] = (
            EngineChoice(b"^slow", "slow-for-tests"),
            EngineChoice(b"^broken", "broken-for-tests"),
            EngineChoice(b"^wild", "wild-for-tests"),
        )
        if folder is not None:
            choices += tuple(EngineChoice(name, "durable", {"folder": str(folder)}) for name in (b"^kept", b"^_MAMA"))
        given = SessionSettings(**{"timeout": 0.0, "pong_silence": 0.0, **machine})
        settings = BrokerSettings("tcp://127.0.0.1:*", given, choices, high_water=20)
        self.broker = Broker(settings)
        self.broker.start()
        assert self.broker._loop is not None
        recorder = self.broker._loop.machine.clients.events
        self._take = recorder.take
        recorder.take = self._taken_events  # type: ignore[method-assign]
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 4096)
        self.peers: list[RawClient] = []

    def _taken_events(self) -> list[tuple[str, bytes, bytes, bytes]]:
        taken = self._take()
        self.events += taken
        return taken

    def peer(self, address: bytes | None = None, **values: Any) -> RawClient:
        peer = RawClient(self, **values)
        return peer if address is None else peer.open(address)

    def healthy(self) -> None:
        """A fresh client works in every way."""
        reader, writer = self.peer(b"fresh-reader"), self.peer(b"fresh-writer")
        assert reader.ask(wire.StreamRead(b"fresh", b"^a")) == [OK]
        assert writer.ask(wire.StreamWrite(b"fresh"), wire.StreamSend(b"abc", [b"1"])) == [OK]
        assert reader.get() == [wire.StreamDeliver(b"fresh", b"fresh-writer", b"abc", [b"1"])]

    def until_nobody_is_left(self) -> None:
        """Let time pass until all clients have expired: at a time a second, beyond which it would be deaf."""
        end = time.monotonic() + TIMEOUT_MS / 1000
        while self.broker.clients():
            assert time.monotonic() < end, self.broker.clients()
            self.clock.ahead += 1.0
            self.broker.metrics()  # it has looked around

    def rest(self, peer: RawClient) -> list[Command]:
        """All that is for a client, also what waits while its socket takes no more. PONG goes before that."""
        assert self.broker._loop is not None
        found = peer.ask()
        while self.broker._loop.clients.blocked:
            found += peer.ask()
        return found + peer.ask()

    def close(self) -> None:
        for peer in self.peers:
            peer.socket.close(0)
        self.context.term()
        self.broker.stop()


Make = Callable[..., Site]


class SlowEngine(SimpleEngine):
    def flush(self) -> None:
        time.sleep(0.02)


class BrokenEngine(SimpleEngine):
    def flush(self) -> None:
        raise OSError("disk full")


register("slow-for-tests", SlowEngine)


class WildEngine(SimpleEngine):
    """Delivers what fits in no command."""

    def traffic(self, deliver: Callable[[Delivery], object]) -> None:
        def wild(delivery: Delivery) -> None:
            if delivery.subject == b"long":
                deliver(delivery._replace(subject=b"x" * 256))
            else:
                deliver(delivery._replace(extension=Extension(headers=((b"k", b"v" * 65_535),))))

        super().traffic(wild)


register("broken-for-tests", BrokenEngine)


register("wild-for-tests", WildEngine)
