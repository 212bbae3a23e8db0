"""Raw clients of a broker over TCP, whose clock the test moves, and engines that are slow or wild."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mama_spark.malamute.broker.engines import Delivery, register
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Ok
from mama_spark.malamute.protocol.extensions import Extension
from mama_spark.testing.waiting import TIMEOUT

from tests.support.clocks import Clock
from tests.support.malamute.mlp import MlpSite, Peer

OK = Ok()


class Site:
    """A broker, whose clients need not ping unless it is given a ``timeout``, and its clients.

    :param clock: the broker's
    """

    def __init__(self, clock: Clock, folder: Path | None = None, **machine: Any) -> None:
        self.clock, self._site = clock, MlpSite()
        engines: dict[bytes, Any] = {b"^slow": "slow-for-tests", b"^wild": "wild-for-tests"}
        if folder is not None:
            engines |= dict.fromkeys((b"^kept", b"^_MAMA"), ("durable", {"folder": str(folder)}))
        self.broker = self._site.broker(engines, high_water=20, **machine)
        self.close = self._site.close

    def peer(self, address: bytes | None = None, **values: Any) -> Peer:
        """A client that has opened, if it has an address."""
        peer = self._site.connect(Peer, self.broker, **values)
        return peer if address is None else peer.open(address)

    def healthy(self) -> None:
        """A fresh client works in every way."""
        reader, writer = self.peer(b"fresh-reader"), self.peer(b"fresh-writer")
        assert reader.until_pong(wire.StreamRead(b"fresh", b"^a")) == [OK]
        assert writer.until_pong(wire.StreamWrite(b"fresh"), wire.StreamSend(b"abc", [b"1"])) == [OK]
        assert reader.get() == wire.StreamDeliver(b"fresh", b"fresh-writer", b"abc", [b"1"])

    def until_nobody_is_left(self) -> None:
        """Let time pass until all clients have expired: at a time a second, beyond which it would be deaf."""
        end = time.monotonic() + TIMEOUT
        while self.broker.clients():
            assert time.monotonic() < end, self.broker.clients()
            self.clock.ahead += 1.0
            self.broker.metrics()  # it has looked around

    def rest(self, peer: Peer) -> list[Command]:
        """All that is for a client, also what waits while its socket takes no more. PONG goes before that."""
        assert self.broker._loop is not None
        found = peer.until_pong()
        while (more := peer.until_pong()) or self.broker._loop.clients.blocked:
            found += more
        return found + peer.until_pong()


Make = Callable[..., Site]


class SlowEngine(SimpleEngine):
    def flush(self) -> None:
        time.sleep(0.02)


class WildEngine(SimpleEngine):
    """Delivers what fits in no command."""

    def traffic(self, deliver: Callable[[Delivery], object]) -> None:
        large = Extension(headers=((b"k", b"v" * 65_535),))
        wild = {b"long": {"subject": b"x" * 256}}
        super().traffic(lambda one: deliver(one._replace(**wild.get(one.subject, {"extension": large}))))


register("slow-for-tests", SlowEngine)
register("wild-for-tests", WildEngine)
