"""Credit over real engines and sockets: two durable streams and a simple one share what one client gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Ok, StreamDeliver
from mama_spark.malamute.protocol.extensions import Feature

from tests.support.malamute.mlp import MlpSite, Peer


@pytest.mark.spec("ML-07", "ML-21")
def test_one_busy_stream_gets_all_of_the_credit_and_never_more(site: MlpSite, tmp_path: Path) -> None:
    """What two other streams do not use comes back to the one that has something."""
    broker = site.broker({b"^d": ("durable", {"folder": str(tmp_path)})}, high_water=20, queue=200_000)
    reader = site.peer(Peer, broker, b"r", Feature.CREDIT, hwm=10)

    def publish(stream: bytes, count: int) -> None:
        writer = site.peer(Peer, broker, b"to-" + stream, hwm=10)
        assert writer.ask(commands.StreamWrite(stream)) == Ok()
        writer.send(*(commands.StreamSend(b"%d" % n, [b"x"]) for n in range(count)))

    def deliveries(count: int) -> list[tuple[bytes, bytes]]:
        return [(one.address, one.subject) for one in reader.take(count) if isinstance(one, StreamDeliver)]

    reader.send(*(commands.StreamRead(name, b"") for name in (b"d1", b"d2", b"live")), commands.Credit(100))
    assert [type(one) for one in reader.take(3)] == [Ok] * 3
    publish(b"d1", 300)
    assert deliveries(99) == [(b"d1", b"%d" % n) for n in range(99)]
    assert deliveries(1) == [(b"d1", b"99")], "the last one comes when its turn has come"
    assert reader.until_pong() == []
    publish(b"live", 5)
    reader.send(commands.Credit(5))
    reader.send(commands.Credit(1000))
    got = deliveries(205)
    assert [subject for stream, subject in got if stream == b"d1"] == [b"%d" % n for n in range(100, 300)]
    assert [subject for stream, subject in got if stream == b"live"] == [b"%d" % n for n in range(5)]
    publish(b"d2", 50)
    assert deliveries(50) == [(b"d2", b"%d" % n) for n in range(50)]
    assert broker.counters()["lost_deliveries"] == 0
