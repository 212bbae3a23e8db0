"""Clients that are slow, many or idle: turns, limits, ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.broker.client_router import CLIENT_TURN, ClientRouter, SocketCounters
from mama_spark.malamute.broker.broker.loop import BrokerLoop
from mama_spark.malamute.broker.broker.security import Security, ZapHandler
from mama_spark.malamute.broker.engines import Delivery, register
from mama_spark.malamute.broker.engines.engine_actor import REPORT
from mama_spark.malamute.broker.engines.engine_threads import ReportSocket
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.broker.session.settings import Overflow, SessionSettings
from mama_spark.malamute.broker.session.state_machine import ServerMachine
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import decode, encode
from mama_spark.malamute.testing.driven_stream import DrivenStream
from mama_spark.testing.waiting import eventually, until

from tests.support.malamute.mlp import Peer
from tests.support.malamute.raw_malamute_clients import Make, Site
from tests.support.malamute.session_machine import Catalog

# The broker works in turns: what there is for one client, or of one stream, does not keep the others waiting

MAIL = 3 * CLIENT_TURN + 1


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(0)


class Clients:
    """A router whose sockets never block, and clients; the test executes each step."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        settings = BrokerSettings("tcp://127.0.0.1:*", SessionSettings(timeout=0.0), high_water=10 * MAIL)
        self.machine = ServerMachine(settings.machine, Catalog())
        self.counters = SocketCounters()
        self.router = ClientRouter(context, settings, self.machine, self.counters)
        zap_handler = ZapHandler(context, Security())
        self.endpoint = self.router.bind(zap_handler)[0]
        zap_handler.stop()
        self.context = context
        self.peers: list[zmq.Socket[bytes]] = []

    def open(self, address: bytes) -> zmq.Socket[bytes]:
        peer = self.context.socket(zmq.DEALER)
        self.peers.append(peer)
        peer.set_hwm(10 * MAIL)
        peer.connect(self.endpoint)
        peer.send_multipart(encode(wire.Open(address)))
        eventually(lambda: self._read(address), "the broker has read OPEN")
        return peer

    def _read(self, address: bytes) -> bool:
        self.router.read_round(0.0)
        return address in self.machine.clients.by_address

    def close(self) -> None:
        self.router.close()
        for peer in self.peers:
            peer.close(0)

    def send(self) -> int:
        """Messages that one call sends."""
        before = self.counters.sent_messages
        self.router.send_output()
        return self.counters.sent_messages - before

    def retry(self) -> int:
        before = self.counters.sent_messages
        self.router.retry_blocked()
        return self.counters.sent_messages - before


def test_a_client_for_whom_there_is_much_gets_it_in_turns_and_in_order(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    clients = Clients(context)
    writer = clients.open(b"writer")
    (identity,) = clients.machine.clients.by_identity
    clients.send()
    for number in range(MAIL):
        clients.machine.receive(identity, encode(wire.MailboxSend(b"much", b"%d" % number, b"", 0)), 0.0)
    much = clients.open(b"much")
    clients.machine.receive(identity, encode(wire.Ping()), 0.0)
    assert clients.send() == CLIENT_TURN + 1, "a turn, and the PONG behind all that"
    assert decode(writer.recv_multipart()) == wire.Ok()
    assert decode(writer.recv_multipart()) == wire.Pong()
    assert [clients.retry() for _ in range(4)] == [CLIENT_TURN, CLIENT_TURN, MAIL + 1 - 3 * CLIENT_TURN, 0]
    assert decode(much.recv_multipart()) == wire.Ok()
    got = [decode(much.recv_multipart()) for _ in range(MAIL)]
    assert [one.subject for one in got if isinstance(one, wire.MailboxDeliver)] == [b"%d" % n for n in range(MAIL)]
    clients.close()


def test_clients_that_wait_have_their_turns_one_after_another(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    clients = Clients(context)
    clients.open(b"writer")
    (identity,) = clients.machine.clients.by_identity
    names = [b"a", b"b", b"c", b"d"]
    for name in names:
        for _ in range(2 * CLIENT_TURN):
            clients.machine.receive(identity, encode(wire.MailboxSend(name, b"", b"", 0)), 0.0)
        clients.open(name)
    clients.send()
    waiting = [list(clients.router.blocked)]
    for _ in range(3):
        clients.retry()
        waiting.append(list(clients.router.blocked))
    assert [[client.address for client in one] for one in waiting] == [names, [b"c", b"d", b"a", b"b"], names, []]
    clients.close()


def test_a_long_report_of_one_stream_does_not_come_before_a_short_one_of_another(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    reports = ReportSocket(context)
    with ExitStack() as engines:  # they end before their context does, whatever fails here
        engines.callback(reports.close)
        busy, other = DrivenStream(context, b"busy"), DrivenStream(context, b"other")
        for stream in (busy, other):
            engines.callback(stream.destroy)
            reports.add(stream)
            stream.compile("reader", b"")
            stream.flush()
        for _ in range(4):
            assert reports.take(30)  # the answers to TRAFFIC and COMPILE
        busy.compile("reader", b"^last")
        busy.flush()
        assert reports.take(30), "the socket goes on with this stream while it knows of no other"
        for number in range(4 * REPORT):
            busy.accept("writer", b"writer", b"%d" % number, [b""])
        busy.flush()
        eventually(lambda: len(busy.actor.reports) == 4, "the engine has reported")
        other.accept("writer", b"writer", b"late", [b""])
        other.destroy()  # what it has reported is in the socket now
        taken = [one for _ in range(5) if (one := reports.take(30))]
        assert [stream for stream, _ in taken].index(other) <= 1, "the streams are taken in turn"
        of_busy = [report for stream, report in taken if stream is busy]
        assert [len(report) for report in of_busy] == [REPORT] * 4
        messages = [one.subject for report in of_busy for one in report if isinstance(one, Delivery)]
        assert messages == [b"%d" % number for number in range(4 * REPORT)]


# --- readers that stop, die, or take their time cost the broker no more than their limit ------------------------------


@pytest.mark.parametrize("overflow", Overflow)
def test_a_reader_that_stops_costs_no_more_than_its_limit(make: Make, overflow: Overflow) -> None:
    """The reference's memory grows by 1.1 KB a message until the reader expires."""
    limit, body = 1_000_000, b"x" * 10_000
    site = make(queue=limit, overflow=overflow)
    reader, writer, other = site.peer(b"r", hwm=10), site.peer(b"w"), site.peer(b"other")
    reader.until_pong(wire.StreamRead(b"st", b""))
    other.until_pong(wire.StreamRead(b"st", b"^last$"))
    writer.until_pong(wire.StreamWrite(b"st"))
    total = 4000
    for n in range(total):
        writer.send(wire.StreamSend(b"%d" % n, [body]))
        if n % 100 == 99:
            writer.until_pong()
    writer.send(wire.StreamSend(b"last"))
    assert other.get() == wire.StreamDeliver(b"st", b"w", b"last", []), "nobody else is held up"
    if overflow is Overflow.DISCONNECT:
        assert site.broker.clients() == [b"other", b"w"]
        return
    held = total - site.broker.counters()["lost_deliveries"]
    assert held * len(body) < limit + 40 * len(body) + 15_000_000, "the limit, and what ZeroMQ and the kernel hold"
    numbers = []
    for command in site.rest(reader):
        assert isinstance(command, wire.StreamDeliver)
        numbers.append(command.subject)
    assert numbers[-1] == b"last" or overflow is Overflow.DROP_NEWEST, "which may have room for one so small"
    kept = [int(n) for n in numbers if n != b"last"]
    assert kept == sorted(set(kept))
    assert len(kept) < total
    fit = limit // (len(body) + 350) - 1
    if overflow is Overflow.DROP_NEWEST:
        assert kept[:fit] == list(range(fit)), "the oldest, without a hole"
    else:
        assert kept[-fit:] == list(range(total - fit, total)), "the newest, without a hole"
    assert reader.until_pong() == [], "and it is still a client"


def stuck(site: Site) -> tuple[Peer, BrokerLoop, int]:
    """A reader that takes nothing, the loop that has sent what it may, and the number of messages."""
    reader, writer = site.peer(b"r", hwm=10), site.peer(b"w")
    reader.until_pong(wire.StreamRead(b"st", b""))
    writer.until_pong(wire.StreamWrite(b"st"))
    loop = site.broker._loop
    assert loop is not None
    n = 0
    while not loop.clients.blocked:
        writer.until_pong(*[wire.StreamSend(b"s", [b"x" * 10_000])] * 100)
        n += 100
        assert n < 100_000
    return reader, loop, n


def test_a_reader_that_dies_without_close_leaves_nothing_behind(make: Make) -> None:
    site = make(timeout=60.0)
    reader, loop, _ = stuck(site)
    reader.socket.close(0)
    site.until_nobody_is_left()
    until(lambda: not loop.clients.blocked)
    site.healthy()


def test_an_end_waits_until_clients_have_taken_what_waits_for_them(make: Make) -> None:
    site = make(timeout=60.0)
    reader, loop, n = stuck(site)
    loop._settings = replace(loop._settings, linger=60.0)
    end = threading.Thread(target=site.broker.stop)
    end.start()
    assert {type(command) for command in reader.take(n)} == {wire.StreamDeliver}
    end.join(60)
    assert not end.is_alive()


@pytest.mark.parametrize(
    ("number", "size", "said"),
    [
        (10, 0, ""),
        (2000, 10_000, "{held} deliveries that waited for 1 clients, and {zeromq}"),  # more than the system takes
        (18, 1_000_000, "{zeromq}"),  # that, too, and fewer than ZeroMQ holds
    ],
)
def test_an_end_that_drops_something_says_what(
    make: Make, number: int, size: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = make()
    loop = site.broker._loop
    assert loop is not None
    loop._settings = replace(loop._settings, linger=0.2)
    reader, writer = site.peer(b"r", hwm=1), site.peer(b"w")
    reader.until_pong(wire.StreamRead(b"st", b""))
    writer.until_pong(wire.StreamWrite(b"st"))
    for _ in range(number):
        writer.until_pong(wire.StreamSend(b"s", [b"x" * size]))
    site.broker.stop()
    held = f"{sum(client.queued for client in loop.machine.clients):,}"
    words = said.format(held=held, zeromq="what ZeroMQ held, 20 messages for each client at most")
    text = f"dropped at the end, for clients did not take it within 0.2 s (linger): {words}"
    assert [record.getMessage() for record in caplog.records] == ([text] if said else [])


def test_tcp_asks_after_clients_that_say_nothing(make: Make) -> None:
    """Else the connection of a host that vanished would stay for ever: its client expires, and nothing is sent."""
    site = make()
    site.peer(b"silent")
    port = int(site.broker.endpoint.rpartition(":")[2])

    def timer() -> tuple[str, float]:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            local, _, state, _, timer = line.split()[1:6]
            if int(local.partition(":")[2], 16) == port and state == "01":  # established
                kind, _, ticks = timer.partition(":")
                return kind, int(ticks, 16) / os.sysconf("SC_CLK_TCK")
        return "", 0.0

    until(lambda: timer()[0] == "02")  # what was sent is acknowledged, and all is quiet
    assert 1 < timer()[1] <= 60, "a probe after a minute at most; the system's own is after two hours"


# --- A broker gives back the engines of streams that nobody uses, and loses nothing with them -------------------------


class RemembersEngine(SimpleEngine):
    """It would lose what it keeps."""


def _broker(folder: Path) -> Broker:
    register("remembers-for-tests", RemembersEngine)
    kept = {"folder": str(folder)}
    engines = (
        EngineChoice(b"^aging", "durable", {**kept, "max_age": "1d"}),
        EngineChoice(b"^kept", "durable", kept),
        EngineChoice(b"^remembered", "remembers-for-tests"),
    )
    return Broker(BrokerSettings("tcp://127.0.0.1:*", SessionSettings(stream_idle=0.2), engines))


def _ends(broker: Broker, *left: bytes) -> Callable[[], bool]:
    """And so have the threads of engines that have one of their own."""
    names = ["stream-remembered"] if b"remembered" in left else []
    return lambda: (
        broker.streams() == sorted(left)
        and names == [thread.name for thread in threading.enumerate() if thread.name.startswith("stream-")]
    )


def test_idle_streams_end_and_begin_again_where_they_were(tmp_path: Path) -> None:
    with _broker(tmp_path) as broker:
        url = broker.endpoint.replace("tcp://", "mlp://")
        for sequence in (1, 2):
            with MalamuteClient(url, "reader") as reader, MalamuteClient(url, "writer") as writer:
                for number in range(20):
                    reader.read(f"simple{number}", "")
                reader.read("kept", "")
                writer.write("kept")
                writer.send("s", b"%d" % sequence)
                message = reader.receive(timeout=60)
                assert message is not None
                assert (message.content, message.sequence) == ((b"%d" % sequence,), sequence)
                assert len(broker.streams()) == 21
            eventually(_ends(broker), "all streams have ended")


def test_a_stream_that_would_lose_something_stays(tmp_path: Path) -> None:
    with _broker(tmp_path) as broker:
        url = broker.endpoint.replace("tcp://", "mlp://")
        with MalamuteClient(url, "client") as client:
            for stream in ("simple", "remembered", "aging", "kept"):
                client.read(stream, "")
            client.write("aging")
            client.send("s", b"it gets old")
            client.sync()
        eventually(_ends(broker, b"aging", b"remembered"), "the others have ended")


@pytest.mark.parametrize("stream", ["simple", "kept"])
def test_a_stream_that_has_just_been_ended_opens_at_once(tmp_path: Path, stream: str) -> None:
    with _broker(tmp_path) as broker, MalamuteClient(broker.endpoint.replace("tcp://", "mlp://"), "client") as client:
        assert broker._loop is not None
        for _ in range(20):
            client.read(stream, "")
            client.cancel(stream)
            ended = threading.Event()

            def end(loop: object, ended: threading.Event = ended) -> None:
                engines = broker._loop.engines  # type: ignore[union-attr]
                engines._machine.streams.idle = lambda now: [stream.encode()]  # type: ignore[method-assign]
                engines.end_idle(0.0)
                del engines._machine.streams.idle
                ended.set()

            broker._inspect(end)
            assert ended.is_set()
