"""An engine that is behind: what is held, what is lost, and that nobody else notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.bridge.bridge import MalamuteBridge
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.broker.broker import loop as broker_loop
from mama_spark.malamute.broker.broker.engine_pool import MAX_LAG, PACE, EngineBacklog
from mama_spark.malamute.broker.engines import register
from mama_spark.malamute.broker.engines.commands import AcceptMessage, SyncOutcomes
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.broker.session import streams
from mama_spark.malamute.broker.session.settings import EngineBacklogPolicy
from mama_spark.malamute.client.connection_settings import FEATURES, ConnectionSettings
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Error, Ok, StreamDeliver
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.testing.waiting import until

from tests.support.clocks import Clock
from tests.support.malamute.mlp import MlpSite, Peer

PATIENCE = 60.0
LIMIT = 1_000_000
STUCK = threading.Event()  #: set: the stuck engines go on


class StuckEngine(SimpleEngine):
    def flush(self) -> None:
        assert STUCK.wait(PATIENCE)


class Site:
    """A broker with engines that are stuck while the test says so."""

    def __init__(self, site: MlpSite, behind: EngineBacklogPolicy, timeout: float = 0) -> None:
        register("stuck-for-tests", StuckEngine)
        STUCK.set()
        self._site = site
        self.broker = site.broker({b"^stuck": "stuck-for-tests"}, timeout=timeout, backlog=LIMIT, behind=behind)

    def peer(self, address: bytes) -> Peer:
        return self._site.peer(Peer, self.broker, address, hwm=0)

    def counted(self, name: str) -> int:
        return self.broker.counters()[name]


@pytest.fixture
def make(site: MlpSite) -> Iterator[Callable[..., Site]]:
    yield partial(Site, site)
    STUCK.set()


def serve_others(site: Site) -> None:
    """Another stream goes on, more than all that ZeroMQ and the backlog could hide."""
    reader, writer = site.peer(b"other-r"), site.peer(b"other-w")
    assert reader.ask(commands.StreamRead(b"others", b"")) == Ok()
    assert writer.ask(commands.StreamWrite(b"others")) == Ok()
    writer.send(*(commands.StreamSend(b"%d" % n, [b"x" * 500]) for n in range(3000)))
    got = [one.subject for one in reader.take(3000) if isinstance(one, StreamDeliver)]
    assert got == [b"%d" % n for n in range(3000)]


@pytest.mark.parametrize("behind", [EngineBacklogPolicy.DROP_NEWEST, EngineBacklogPolicy.DISCONNECT])
def test_a_stuck_engine_holds_nobody_else_and_its_backlog_has_a_limit(
    make: Callable[..., Site], behind: EngineBacklogPolicy
) -> None:
    site = make(behind)
    writer, reader = site.peer(b"w"), site.peer(b"r")
    assert writer.ask(commands.StreamWrite(b"stuck")) == Ok()
    assert reader.ask(commands.StreamRead(b"stuck", b"")) == Ok()
    STUCK.clear()
    sent = 0
    while not site.counted("lost_sends"):
        writer.send(*(commands.StreamSend(b"%d" % n, [b"x" * 5000]) for n in range(sent, sent + 20)))
        sent += 20
        assert sent < 200_000, "the backlog has no limit"
        time.sleep(0.001)
    serve_others(site)
    assert site.broker._loop is not None
    backlog = site.broker._loop.engines.streams[b"stuck"].backlog
    assert backlog.queued_bytes < LIMIT + 600 * 5256, "and no more than a round beyond"
    assert (b"w" in site.broker.clients()) is (behind is EngineBacklogPolicy.DROP_NEWEST)
    STUCK.set()
    machine = site.broker._loop.machine
    until(lambda: b"stuck" not in machine.streams.full)
    if behind is EngineBacklogPolicy.DISCONNECT:
        assert writer.get() == Error(300, b"the stream does not keep up")
        assert writer.ask(commands.Ping()) == Error(500)
        writer = site.peer(b"w")
        assert writer.ask(commands.StreamWrite(b"stuck")) == Ok()
    writer.send(commands.StreamSend(b"again"))
    kept: list[int] = []
    while (one := reader.get()) != StreamDeliver(b"stuck", b"w", b"again", []):
        assert isinstance(one, StreamDeliver)
        kept.append(int(one.subject))
    assert kept == list(range(len(kept))), "the oldest, in order"
    assert len(kept) < sent


def test_those_who_come_and_go_add_no_more_than_a_limit_to_what_a_stuck_engine_owes(
    make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_AWAITED", 20)
    site = make(EngineBacklogPolicy.DROP_NEWEST)
    writer = site.peer(b"w")
    assert writer.ask(commands.StreamWrite(b"stuck")) == Ok()
    STUCK.clear()
    for n in range(40):
        site.peer(b"comes and goes").send(commands.StreamRead(b"stuck", b"^%d$" % n), commands.Close())
    peer = site.peer(b"asks")
    for command in (commands.StreamRead(b"stuck", b""), commands.StreamWrite(b"stuck")):
        assert peer.ask(command) == Error(502, b"the stream does not keep up")
    loop = site.broker._loop
    assert loop is not None
    assert len(loop.machine.streams[b"stuck"].awaited) <= 2 * 20, "and each leaves by a CANCEL"
    STUCK.set()
    until(lambda: not loop.machine.streams[b"stuck"].awaited)
    assert peer.ask(commands.StreamRead(b"stuck", b"")) == Ok()


def test_whoever_is_held_is_not_silent(make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody is read, nobody can be heard: clients that ping are there afterwards, and get everything."""
    clock = Clock()
    monkeypatch.setattr(broker_loop, "time", clock)
    site = make(EngineBacklogPolicy.HOLD, timeout=30.0)
    writer, reader = site.peer(b"w"), site.peer(b"r")
    assert writer.ask(commands.StreamWrite(b"stuck")) == Ok()
    assert reader.ask(commands.StreamRead(b"stuck", b"")) == Ok()
    STUCK.clear()
    loop, sent = site.broker._loop, 0
    assert loop is not None
    while not loop.reading_paused:
        writer.send(*(commands.StreamSend(b"%d" % n, [b"x" * 5000]) for n in range(sent, sent + 20)))
        reader.send(commands.Ping())
        sent += 20
        time.sleep(0.001)
    for _ in range(100):
        clock.ahead += 1.0
        site.broker.metrics()  # it has looked around
        for peer in (reader, writer):
            peer.send(commands.Ping())
    assert loop.reading_paused
    STUCK.set()
    got: list[int] = []
    while len(got) < sent:
        one = reader.get()
        if isinstance(one, StreamDeliver):
            got.append(int(one.subject))
        else:
            assert one == commands.Pong()
    assert got == list(range(sent))
    assert site.broker.clients() == [b"r", b"w"]
    assert site.counted("lost_sends") == 0


@pytest.mark.spec("ML-07")
def test_the_bridge_takes_nothing_more_while_the_engine_is_stuck(make: Callable[..., Site]) -> None:
    """``send`` returns 0 when the broker gives no credit, and all that was taken is acknowledged."""
    site = make(EngineBacklogPolicy.DROP_NEWEST)
    url = site.broker.endpoint.replace("tcp", "mlp")
    bridge = MalamuteBridge(MalamuteSettings(ConnectionSettings((url,), features=FEATURES & ~Feature.CREDIT), "stuck"))
    bridge.open()
    try:
        batch = MessageBatch.of(["a"] * 100, [b"x" * 5000] * 100)
        STUCK.clear()
        taken = 0
        while n := bridge.send(batch, taken):
            taken += n
            assert taken * 5000 < LIMIT
        bridge.poll(0.3)
        assert bridge.send(batch, taken) == 0
        STUCK.set()
        acked = 0
        while acked < taken:  # or the test is stopped
            acked += sum(len(acks.tokens) for acks in bridge.poll(1.0).acks)
        assert bridge.send(batch, taken) > 0
    finally:
        STUCK.set()
        bridge.close()
    assert site.counted("lost_sends") == 0


def test_an_engine_that_goes_on_is_waited_for_and_one_that_stands_still_is_not() -> None:
    backlog = EngineBacklog(limit=10_000)
    now = 0.0
    for _ in range(MAX_LAG):
        backlog.posted([AcceptMessage(None, b"", b"s", [b"x" * 100])], now)
    assert backlog.keeps_pace(now)
    assert 0 < backlog.queued_bytes < MAX_LAG * 400
    for waiting in range(MAX_LAG - 1, MAX_LAG // 2, -1):
        now += PACE / 2
        backlog.update(waiting, now)
        assert backlog.keeps_pace(now)
    assert not backlog.keeps_pace(now + 2 * PACE), "stands still"
    waiting = len(backlog)
    for _ in range(10):
        now += 2 * PACE
        waiting -= 1
        backlog.update(waiting, now)
    assert not backlog.keeps_pace(now), "goes on, but slowly"
    backlog.update(0, now)
    assert backlog.queued_bytes == 0
    for _ in range(40):
        backlog.posted([SyncOutcomes(None)], now)
        now += PACE / 100
        backlog.update(0, now)
    assert backlog.keeps_pace(now), "and found its pace again"


# --- credit over real engines and sockets: two durable streams and a simple one share what one client gives -------


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
