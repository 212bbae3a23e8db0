"""What seeds have found, as the shortest stories that show it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.contracts.bridge import EventKind
from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.ledger import NatsBatchLedger
from mama_spark.nats.publish.bridge import NatsBridge
from mama_spark.nats.settings import NatsSettings
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, OnOutage
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.exactly_once.protocol import Attempt
from mama_spark.publishing.exactly_once.session import BatchSession, Rules
from mama_spark.publishing.outage_reporter import retry_while_unavailable
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch
from mama_spark.spark.features import ReadAllAvailable
from mama_spark.spark.subscribe.data_source import schema_for, stream_reader

from tests.simulation.jetstream_api import JetStream
from tests.simulation.kernel import Scheduler, Stuck
from tests.simulation.modules import simulated
from tests.simulation.nats.node import Message, Node
from tests.simulation.nats.replicated import Cluster
from tests.simulation.network import Network
from tests.simulation.sockets import ServerPort
from tests.simulation.stream_server import StreamServer


def test_a_connection_that_was_lost_while_a_bridge_opened_says_nothing_of_the_next_one() -> None:
    told: list[EventKind] = []

    def task() -> None:
        bridge = NatsBridge(NatsSettings(("nats://nats:4222",), connect_timeout=1.0))
        try:
            bridge.open()
        except Unavailable:
            start()
            bridge.open()
        told.extend(event.kind for event in bridge.poll(1.0).events)
        bridge.close()

    with simulated(), Scheduler(1) as scheduler:
        network, there, jetstream = Network(scheduler), scheduler.host("nats"), JetStream()

        def start() -> None:
            scheduler.restart(there)
            ServerPort(network, there, StreamServer("nats", jetstream, lambda _: there.time()))

        start()
        scheduler.call_at(0.0034, lambda: scheduler.kill(there))  # it is asked whether JetStream is on
        scheduler.spawn("task", task, scheduler.host("executor"))
        scheduler.run()
        assert not scheduler.errors
    assert there.life == 2
    assert EventKind.DISCONNECTED not in told


def test_a_ledger_whose_connection_was_lost_while_it_found_streams_connects_again() -> None:
    found: list[str | None] = []

    def task() -> None:
        ledger = NatsBatchLedger(NatsSettings(("nats://nats:4222",), exactly_once=True), 30.0)
        ledger.open()
        ledger.streams_of(pa.array(["t.1"]))
        network.cut("executor", "nats")
        ledger._logs.connection().drive(0)  # another thread sees that it is lost
        found.extend(retry_while_unavailable(lambda: ledger.streams_of(pa.array(["t.2"])), wait=True, say="%s"))
        ledger.close()

    with simulated(), Scheduler(1) as scheduler:
        network, there, jetstream = Network(scheduler), scheduler.host("nats"), JetStream()
        jetstream.create("S", ["t.>"], there.time())
        ServerPort(network, there, StreamServer("nats", jetstream, lambda _: there.time()))
        scheduler.spawn("task", task, scheduler.host("executor"))
        with contextlib.suppress(Stuck):
            scheduler.run(60.0)
    assert found == ["S"]


def test_a_fast_batch_that_was_lost_with_the_leader_is_sent_again_over_the_same_connection() -> None:
    def task() -> None:
        bridge = NatsBridge(NatsSettings(("nats://nats:4222",), ack_mode="batch", ordered=True))
        policy = WindowConfig(16, 8, 5.0, RetryPolicy.doubling(0.25, 5.0, 90.0), ordered=True)
        bridge.open()
        config = BatchConfig(on_outage=OnOutage.WAIT_AT_GAP)
        publisher = BatchPublisher(bridge, policy, on_finished=lambda _: None, config=config)
        publisher.start()
        publisher.put(MessageBatch.of(["t.1"] * 3, [b"0", b"1", b"2"], ids=["a", "b", "c"]))
        publisher.drain()
        bridge.close()

    with simulated(), Scheduler(1) as scheduler:
        network, there, jetstream = Network(scheduler), scheduler.host("nats"), JetStream()
        stream = jetstream.create("S", ["t.>"], there.time(), allow_batched=True)
        take = stream.fast.take
        stream.fast.take = lambda *_: ([], False)  # type: ignore[method-assign]  # it leads no more, and knows it late
        scheduler.call_at(1.0, lambda: setattr(stream.fast, "take", take))
        ServerPort(network, there, StreamServer("nats", jetstream, lambda _: there.time()))
        scheduler.spawn("task", task, scheduler.host("executor"))
        scheduler.run(60.0)
        assert not scheduler.errors
    assert [m.payload for m in stream.messages.values()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("more", [{}, {"exactly_once": True, "max_in_flight": 4}], ids=["same order", "other order"])
def test_a_server_that_leads_again_acknowledges_no_ids_of_proposals_that_came_to_nothing(more: Any) -> None:
    """nats-server 2.15.1 keeps some of an earlier attempt, where it loses the lead under load. In another order, they
    may come behind as many new ones as may be in flight."""
    rows = [b"%d" % n for n in range(40)]
    acked: list[bytes] = []

    def note(flights: FlightBatch) -> None:
        assert flights.messages is not None
        acked.extend(row for row, state in zip(flights.messages.payloads.to_pylist(), flights.state, strict=True)
                     if state == FlightState.ACKED)  # fmt: skip

    def task() -> None:
        bridge = NatsBridge(NatsSettings(("nats://n3:4222",), ack_mode="batch", ordered=True, **more))
        policy = WindowConfig(64, 32, 5.0, RetryPolicy.doubling(0.25, 5.0, 90.0), ordered=True)
        bridge.open()
        config = BatchConfig(on_outage=OnOutage.WAIT_AT_GAP)
        publisher = BatchPublisher(bridge, policy, on_finished=note, config=config)
        publisher.start()

        def put(some: list[bytes]) -> None:
            publisher.put(MessageBatch.of(["t.1"] * len(some), some, ids=list(map(bytes.decode, some))))

        put(rows[:10])
        scheduler.wait(lambda: b"9" in stored("n1"), what="the first ones")
        cluster.elect("S", but={"n2", "n3"})
        scheduler.sleep(1.0)
        put(rows[10:])
        publisher.drain()
        bridge.close()

    def stored(server: str) -> list[bytes]:
        return [m.payload for m in cluster.replicas[server]["S"].stream.messages.values()]

    with simulated(), Scheduler(1) as scheduler:
        cluster = Cluster(scheduler, Network(scheduler), 0.001, 0.0)
        now = scheduler.host("n1").time()
        config = {"name": "S", "subjects": ["t.>"], "duplicate_window": 30_000_000_000, "allow_batched": True}
        cluster.create(config, now, leader="n2")
        cluster.replicas["n1"]["S"].stream.ids.update((row.decode(), (0, now)) for row in rows[12:20])
        scheduler.spawn("task", task, scheduler.host("executor"))
        with contextlib.suppress(Stuck):
            scheduler.run(120.0)
        assert not scheduler.errors
    assert acked == rows
    assert stored("n1") == rows


def test_a_bridge_that_is_closed_goes_on_to_name_the_servers_that_may_have_its_messages() -> None:
    """Its marker is renewed once more before it is released."""
    named: list[tuple[str, ...]] = []

    def task() -> None:
        bridge = NatsBridge(NatsSettings(("nats://nats:4222",), exactly_once=True))
        bridge.open()
        named.append(bridge.sent_to())
        bridge.close()
        named.append(bridge.sent_to())

    with simulated(), Scheduler(1) as scheduler:
        there = scheduler.host("nats")
        ServerPort(Network(scheduler), there, StreamServer("nats", JetStream(), lambda _: there.time()))
        scheduler.spawn("task", task, scheduler.host("executor"))
        scheduler.run(60.0)
        assert not scheduler.errors
    assert named[0] == named[1] != ()


@contextlib.contextmanager
def exactly_once_attempt(owner: str) -> Iterator[tuple[BatchSession, BatchPublisher]]:
    settings = NatsSettings(("nats://n1:4222",), ack_mode="message", exactly_once=True)
    bridge, me = NatsBridge(settings), Attempt("w", 7, "r", 0, owner, "w-7-", "one message a row")
    session = BatchSession(NatsBatchLedger(settings, 30.0), me, Rules(5.0, wait=True), bridge.sent_to)
    policy = WindowConfig(8, 4, 5.0, RetryPolicy.doubling(0.25, 5.0, 90.0))
    bridge.open()
    config = BatchConfig(on_outage=OnOutage.WAIT)
    publisher = BatchPublisher(bridge, policy, on_finished=lambda _: None, config=config, guard=session)
    publisher.start()
    session.open()
    session.begin(pa.array(["t.1"]))
    yield session, publisher
    publisher.drain()
    session.close()
    bridge.close()


def row(n: int) -> MessageBatch:
    return MessageBatch.of(["t.1"], [b"%d" % n], ids=[f"w-7-0-{n}"])


def test_what_is_on_a_slow_way_is_sent_again_when_no_copy_of_it_is_left_there() -> None:
    """Else it would arrive after a look over another connection had found nothing, and be stored twice: the server
    remembers ids for a second."""

    def task() -> None:
        with exactly_once_attempt("o") as (_, publisher):
            network.link("executor", "n1").rate = 1000.0
            publisher.put(MessageBatch.of(["t.1"] * 8, rows, ids=[f"w-7-0-{n}" for n in range(8)]))
            scheduler.sleep(20.0)

    rows = [b"%d" % n * 900 for n in range(8)]
    with simulated(), Scheduler(1) as scheduler:
        network, there, jetstream = Network(scheduler), scheduler.host("n1"), JetStream()
        stream = jetstream.create("S", ["t.>"], there.time(), duplicate_window=10**9)
        ServerPort(network, there, StreamServer("n1", jetstream, lambda _: there.time()))
        scheduler.spawn("task", task, scheduler.host("executor"))
        scheduler.run(120.0)
        assert not scheduler.errors
    assert [m.payload for m in stream.messages.values()] == rows


def test_what_a_leader_without_a_majority_has_proposed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It forgets ids before it stores the messages, and knows it leads for 10 s."""

    def task() -> None:
        with exactly_once_attempt("o") as (_, publisher):
            publisher.put(row(0))
            publisher.wait_settled()
            scheduler.sleep(1.7)  # the marker has just been renewed
            for host in followers:
                scheduler.freeze(host)
                scheduler.call_at(scheduler.now + 3.2, partial(scheduler.thaw, host))
            publisher.put(row(1))
            scheduler.sleep(0.1)
            network.cut("executor", "n1")

    monkeypatch.setattr(Node, "info", StreamServer.info)  # the client knows of no other server
    with simulated(), Scheduler(1) as scheduler:
        network = Network(scheduler)
        cluster = Cluster(scheduler, network, 0.001, 0.0)
        followers = [cluster.hosts["n2"], cluster.hosts["n3"]]
        config = {"name": "S", "subjects": ["t.>"], "duplicate_window": 10**9}
        stream = cluster.create(config, cluster.hosts["n1"].time(), "n1")
        scheduler.spawn("task", task, scheduler.host("executor"))
        with contextlib.suppress(Stuck):
            scheduler.run(60.0)
        assert not scheduler.errors
    assert [m.payload for m in stream.messages.values()] == [b"0", b"1"]


def test_an_attempt_after_one_that_has_ended_waits_for_a_leader_that_has_not_applied_its_rows() -> None:
    """It does not wait for the other one, whose rows were all acknowledged, and whose ids nobody knows any more."""

    def task() -> None:
        with exactly_once_attempt("first") as (_, publisher):
            publisher.put(row(1))
        scheduler.sleep(1.5)
        cluster.elect("S", {"n1", "n3"})
        with exactly_once_attempt("second") as (session, publisher):
            own = session._matching.streams["S"].own
            assert own is not None
            found.append(len(own))

    found: list[int] = []
    with simulated(), Scheduler(1) as scheduler:
        cluster = Cluster(scheduler, Network(scheduler), 0.001, 0.0)
        cluster.hasty = True
        cluster.create({"name": "S", "subjects": ["t.>"], "duplicate_window": 10**9}, cluster.hosts["n1"].time(), "n1")
        cluster.apply_late("n2", 6.0)
        scheduler.spawn("task", task, scheduler.host("executor"))
        scheduler.run(60.0)
        assert not scheduler.errors
    assert found == [1]


def test_a_message_whose_id_stays_proposed_waits_for_the_duplicate_window_and_says_so() -> None:
    """A server that leads again keeps ids of an attempt that was killed, if the next one sends in another order: no
    message with such an id is stored within the window."""
    said: list[str] = []

    def task() -> None:
        bridge = NatsBridge(NatsSettings(("nats://nats:4222",), ack_mode="message", ordered=True, dedup=True))
        bridge.open()
        policy = WindowConfig(16, 8, 5.0, RetryPolicy.doubling(0.25, 5.0, 90.0), ordered=True)
        policy = policy.for_bridge(bridge.capabilities, with_ids=True)
        config = BatchConfig(on_outage=OnOutage.WAIT_AT_GAP)
        publisher = BatchPublisher(bridge, policy, on_finished=lambda _: None, config=config)
        scheduler.call_at(25.0, lambda: said.append(publisher.waits_for))
        publisher.start()
        publisher.put(MessageBatch.of(["t.1"] * 3, [b"0", b"1", b"2"], ids=["a", "b", "c"]))
        publisher.drain()
        bridge.close()

    with simulated(), Scheduler(1) as scheduler:
        network, there, jetstream = Network(scheduler), scheduler.host("nats"), JetStream()
        stream = jetstream.create("S", ["t.>"], there.time(), duplicate_window=30_000_000_000)
        stream.ids["b"] = 0, there.time()
        ServerPort(network, there, StreamServer("nats", jetstream, lambda _: there.time()))
        scheduler.spawn("task", task, scheduler.host("executor"))
        scheduler.run(60.0)
        assert not scheduler.errors
    assert [m.payload for m in stream.messages.values()] == [b"0", b"1", b"2"]
    assert stream.messages[2].time - stream.created >= 30.0
    assert "duplicate message id is in process" in said[0]


def test_a_query_that_begins_again_waits_for_a_leader_that_has_not_applied_what_it_has_read() -> None:
    options = {"url": "nats://n1:4222", "stream": "S"}
    ends: list[dict[str, Any]] = []

    def look(host: str, start: dict[str, Any] | None) -> None:
        def task() -> None:
            reader = stream_reader(options, schema_for(options), 0, 2)
            ends.append(reader.latestOffset(reader.initialOffset() if start is None else start, ReadAllAvailable()))

        scheduler.spawn("query", task, scheduler.host(host))
        scheduler.run(60.0)

    def store(n: int) -> None:
        leader = next(cluster.nodes[name] for name, replicas in cluster.replicas.items() if replicas["S"].leads)
        leader.inbound("S", Message("t.1", "", {}, b"", b"%d" % n))
        cluster.replicate(leader)

    with simulated(), Scheduler(1) as scheduler:
        cluster = Cluster(scheduler, Network(scheduler), 0.001, 0.0)
        cluster.hasty = True
        cluster.create({"name": "S", "subjects": ["t.>"], "duplicate_window": 10**9}, 0.0, "n1")
        store(1)
        scheduler.run(60.0, lambda: cluster.replicas["n2"]["S"].applied == 1)
        cluster.apply_late("n2", 2.0)
        store(2)
        scheduler.run(60.0, lambda: cluster.replicas["n1"]["S"].applied == 2)
        look("driver", None)
        cluster.elect("S", {"n1", "n3"})
        look("next driver", ends[0])
        assert not scheduler.errors
    assert ends[0] == ends[1]


def test_threads_that_wait_for_one_connection_do_not_wake_each_other() -> None:
    def task() -> None:
        connection.open()
        network.hold("nats", "executor")
        for _ in range(3):
            scheduler.spawn("asks", lambda: connection.driver.drive(5.0))

    with simulated(), Scheduler(1) as scheduler:
        network, there = Network(scheduler), scheduler.host("nats")
        ServerPort(network, there, StreamServer("nats", JetStream(), lambda _: there.time()))
        connection = SocketConnection(NatsSettings(("nats://nats:4222",)))
        scheduler.spawn("task", task, scheduler.host("executor"))
        scheduler.run(60.0)
        assert not scheduler.errors
        assert scheduler.happened < 1000
