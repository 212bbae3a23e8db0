"""Credit over real engines and sockets: two durable streams and a simple one share what one client gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Ok, StreamDeliver
from mama_spark.malamute.protocol.extensions import Feature

from tests.support.malamute.mlp import MlpSite, Peer


class ReadingClient(Peer):
    def deliveries(self, count: int) -> list[tuple[bytes, bytes]]:
        found = self.take(count)
        assert all(isinstance(one, StreamDeliver) for one in found)
        return [(one.address, one.subject) for one in found if isinstance(one, StreamDeliver)]


Connect = Callable[..., ReadingClient]


@pytest.fixture
def broker(site: MlpSite, tmp_path: Path) -> Broker:
    return site.broker({b"^d": ("durable", {"folder": str(tmp_path)})}, high_water=20, queue=200_000)


@pytest.fixture
def connect(site: MlpSite, broker: Broker) -> Connect:
    return lambda address, features=None: site.peer(ReadingClient, broker, address, features, hwm=10)


def publish(connect: Connect, stream: bytes, count: int, size: int = 1) -> ReadingClient:
    writer = connect(b"to-" + stream)
    assert isinstance(writer.ask(commands.StreamWrite(stream)), Ok)
    writer.send(*(commands.StreamSend(b"%d" % n, [b"x" * size]) for n in range(count)))
    return writer


@pytest.mark.spec("ML-07", "ML-21")
def test_one_busy_stream_gets_all_of_the_credit_and_never_more(broker: Broker, connect: Connect) -> None:
    """What two other streams do not use comes back to the one that has something."""
    reader = connect(b"r", Feature.CREDIT)
    reader.send(*(commands.StreamRead(name, b"") for name in (b"d1", b"d2", b"live")), commands.Credit(100))
    assert [type(reader.get()) for _ in range(3)] == [Ok] * 3
    publish(connect, b"d1", 300)
    assert reader.deliveries(99) == [(b"d1", b"%d" % n) for n in range(99)]
    assert reader.deliveries(1) == [(b"d1", b"99")], "the last one comes when its turn has come"
    assert reader.until_pong() == []
    publish(connect, b"live", 5)
    reader.send(commands.Credit(5))
    reader.send(commands.Credit(1000))
    got = reader.deliveries(205)
    assert [subject for stream, subject in got if stream == b"d1"] == [b"%d" % n for n in range(100, 300)]
    assert [subject for stream, subject in got if stream == b"live"] == [b"%d" % n for n in range(5)]
    publish(connect, b"d2", 50)
    assert reader.deliveries(50) == [(b"d2", b"%d" % n) for n in range(50)]
    assert broker.counters()["lost_deliveries"] == 0


@pytest.mark.spec("ML-21")
def test_a_slow_reader_without_credit_loses_nothing_of_stored_streams(broker: Broker, connect: Connect) -> None:
    """4 MB for a client whose queue may take 200 kB: the engines hold, on disk."""
    reader = connect(b"r")
    reader.send(commands.StreamRead(b"d1", b""), commands.StreamRead(b"d2", b""))
    assert [type(reader.get()) for _ in range(2)] == [Ok] * 2
    writers = [publish(connect, name, 200, 10_000) for name in (b"d1", b"d2")]
    for writer in writers:
        writer.until_pong()
    got = reader.deliveries(400)
    for stream in (b"d1", b"d2"):
        assert [subject for name, subject in got if name == stream] == [b"%d" % n for n in range(200)]
    assert broker.counters()["lost_deliveries"] == 0
