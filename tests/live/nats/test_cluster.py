"""A replicated stream on three servers: what happens when its leader goes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from mama_spark.contracts.bridge import EventKind, PollResult
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.testing.waiting import TIMEOUT, eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.nats_cluster import Cluster, await_replicas
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy

MODES = [
    pytest.param({"ack_mode": "message"}, id="message"),
    pytest.param({"ack_mode": "batch", "ordered": True, "stream": "S"}, id="batch in order"),
]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    soon = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"\n'
    with Cluster(tmp_path_factory.mktemp("mortal"), config=soon) as cluster:
        yield cluster


@pytest.fixture
def cluster(mortal: Cluster) -> Cluster:
    """All three run, and there is no stream."""
    try:
        for node in [node for node in mortal.nodes if not node.running]:
            node.spawn()
        for node in mortal.nodes:
            node.resume()
            node.wait_ready()
    except Unavailable:  # somebody else was given the port of one that was down
        mortal.stop()
        shutil.rmtree(mortal.folder)
        mortal.start()
    with Admin(mortal.url) as admin:
        eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
        admin.api("STREAM.DELETE.S")
        eventually(lambda: not admin.api("STREAM.NAMES").get("streams"), "the stream is gone")
    return mortal


def replicated(admin: Admin) -> None:
    eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "storage": "file", "allow_batched": True}
    eventually(lambda: "error" not in admin.api("STREAM.CREATE.S", config), "three peers are known")
    await_replicas(admin, "S")


def leader(admin: Admin) -> str:
    return str(eventually(lambda: admin.info("S")["cluster"].get("leader"), "a leader"))


def held_to(driver: Driver, admin: Admin, mode: dict[str, Any], n: int) -> None:
    assert driver.events() == {"acked": n}, driver.reasons[:3]
    driver.conserved(admin, exactly_once=mode.get("dedup", True))
    if mode.get("ordered"):
        driver.in_order(admin)


@pytest.mark.parametrize("mode", MODES)
def test_a_leader_that_steps_down_in_flight_costs_nothing(nats_cluster: Cluster, mode: dict[str, Any]) -> None:
    with Admin(nats_cluster.url) as admin:
        replicated(admin)
        with Driver(nats_cluster.url, window=256, **mode) as driver:
            for _ in range(4):
                driver.put(["s.a"], 500)
            eventually(lambda: driver.counters.acked > 300, "some are acknowledged")
            assert admin.api("STREAM.LEADER.STEPDOWN.S").get("success")
            driver.drain()
            held_to(driver, admin, mode, 2_000)
        fresh_message_gets_through(nats_cluster.url, "s.new")


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES[1:])
def test_a_killed_leader_in_flight_costs_nothing(cluster: Cluster, mode: dict[str, Any]) -> None:
    with Admin(cluster.url) as admin:
        replicated(admin)
        with Driver(cluster.url, deadline=60.0, window=256, **mode) as driver:
            for _ in range(4):
                driver.put(["s.a"], 1000)
            eventually(lambda: driver.counters.acked > 1000, "some are acknowledged")
            cluster.node(leader(admin)).kill()
            driver.drain()
            held_to(driver, admin, mode, 4_000)
        fresh_message_gets_through(cluster.url, "s.new")


@pytest.mark.thorough
@pytest.mark.parametrize("mode", [*MODES, pytest.param({"ack_mode": "message", "dedup": False}, id="no ids")])
def test_a_leader_that_announces_its_end_in_flight_costs_neither_writer_nor_reader_anything(
    cluster: Cluster, mode: dict[str, Any]
) -> None:
    """Lame duck mode: it goes on until its streams have other leaders, then closes one connection after another."""
    with Admin(cluster.url) as admin, ThreadPoolExecutor(1) as beside:
        replicated(admin)
        duck, read, wanted = cluster.node(leader(admin)), list[int](), [sys.maxsize]
        with NatsLogs(NatsSettings((duck.url,)), 60.0) as logs, Driver(duck.url, window=256, **mode) as driver:
            tail = logs.served("S").tail(0, [], "the reader")

            def is_read() -> bool:
                if (records := tail.poll()) is not None:
                    read.extend(records.sequences.tolist())
                return len(read) >= wanted[0]

            def is_left() -> bool:
                driver.put(["s.a"], 500)
                return f":{duck.port}" not in driver.bridge.connected_to + logs.connection().server

            reader = beside.submit(eventually, is_read, "all is read", 3 * TIMEOUT)
            eventually(lambda: not is_left() and read, "the leader takes rows, and they are read")
            os.kill(duck.pid, signal.SIGUSR2)
            eventually(is_left, "its connections end")
            driver.drain()
            wanted[0] = int(admin.info("S")["state"]["last_seq"])
            held_to(driver, admin, mode, driver.sent)
            assert reader.result()
            assert read == list(range(1, len(read) + 1))
            tail.close()
        fresh_message_gets_through(cluster.url, "s.new")
        duck.shutdown()


def refusals(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Codes of what the bridge refuses from now on, counted as they arrive."""
    seen: Counter[int] = Counter()
    poll = driver.bridge.poll

    def watched(timeout: float, want: int = 1) -> PollResult:
        polled = poll(timeout, want)
        for r in polled.refusals:
            seen[r.error.code] += len(r.tokens)
        return polled

    monkeypatch.setattr(driver.bridge, "poll", watched)
    return seen


@pytest.mark.thorough
def test_an_id_in_process_is_asked_again_and_never_a_success(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a quorum nothing commits: a resend of a proposed id is answered by 409 (10158)."""
    with Admin(cluster.url) as admin:
        replicated(admin)
        name = leader(admin)
        others = [n for n in cluster.nodes if n is not cluster.node(name)]
        with Driver(cluster.node(name).url, wait_timeout=0.3, deadline=60.0) as driver:
            seen = refusals(driver, monkeypatch)
            driver.begin(["s.a"], 200)
            for node in others:
                node.pause()
            driver.put(["s.a"], 200)
            eventually(lambda: seen[10158] >= 200, "all are asked again, and in process")
            assert driver.counters.acked == 200, "nothing can have been committed"
            for node in others:
                node.resume()
            driver.drain()
            held_to(driver, admin, {}, 400)
        fresh_message_gets_through(cluster.url, "s.new")


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_what_an_earlier_try_proposed_is_not_acknowledged_to_the_next_one_and_lost(
    cluster: Cluster, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fast ingest counts a proposed id as stored: with the leader the proposal would go, and the message be lost."""
    with Admin(cluster.url) as admin:
        replicated(admin)
        chief = cluster.node(leader(admin))
        others = [n for n in cluster.nodes if n is not chief]
        fresh_message_gets_through(chief.url, "s.before", dedup=False)
        await_replicas(admin, "S")
        for node in others:
            node.kill()
        with Driver(chief.url, wait_timeout=0.3, deadline=300.0, ack_mode="message") as earlier:
            seen = refusals(earlier, monkeypatch)
            earlier.put(["s.a"], 200)
            eventually(lambda: seen[10158] >= 200, "all are proposed")
        with Driver(chief.url, wait_timeout=0.3, deadline=300.0, **mode) as driver:
            seen = refusals(driver, monkeypatch)
            driver.put(["s.a"], 200)
            eventually(lambda: seen[10158] or driver.counters.acked, "it is answered")
            assert not driver.counters.acked, "nothing can have been committed"
            chief.kill()
            for node in others:
                node.spawn()
            for node in others:
                node.wait_ready(300.0)
            driver.drain()
            assert driver.events() == {"acked": 200}, driver.reasons[:3]
            held = [m.payload[:8] for m in admin.messages("S") if m.topic == "s.a"]
            assert sorted(held) == [b"%08d" % i for i in range(200)]
            if mode.get("ordered"):
                assert held == sorted(held)


def test_fast_ingest_with_ids_but_without_order_is_refused_where_a_proposed_id_counts(nats_cluster: Cluster) -> None:
    with Admin(nats_cluster.url) as admin:
        replicated(admin)
        with pytest.raises(ConfigError, match="replicated"), Driver(nats_cluster.url, ack_mode="batch", stream="S"):
            pass
        with Driver(nats_cluster.url, ack_mode="batch", stream="S", dedup=False) as driver:
            driver.put(["s.a"], 200)
            driver.drain()
            assert driver.events() == {"acked": 200}


def test_a_row_that_may_end_a_replicated_stream_is_refused(nats_cluster: Cluster) -> None:
    """It is never sent: the shared cluster would lose the stream."""
    with Admin(nats_cluster.url) as admin:
        replicated(admin)
    with closing(NatsBridge(NatsSettings((nats_cluster.url.split(",")[0],), dedup=False))) as bridge:
        bridge.open()
        rows = MessageBatch.of(["s.a"] * 2, [b"0", b"1"], headers=[{}, {"nats-expected-last-msg-id": ["x"]}])
        ((row, error),) = bridge.prepare(rows).rejected
        assert row == 1
        assert "ends a replicated stream for good" in str(error)


@contextmanager
def one_unanswered(cluster: Cluster) -> Iterator[tuple[NatsBridge, Proxy, MessageBatch]]:
    """A bridge that keeps the order, the silent way to its server, and two rows, of which the first is sent."""
    with Admin(cluster.url) as admin:
        replicated(admin)
    with Proxy(cluster.url.split(",")[0]) as proxy:
        settings = NatsSettings((proxy.url,), stream="S", ack_mode="batch", ordered=True, wait_timeout=0.1)
        with closing(NatsBridge(settings)) as bridge:
            bridge.open()
            rows = MessageBatch.of(["s.a"] * 2, [b"0", b"1"], ids=["0", "1"])
            proxy.silence()
            assert bridge.send(rows, 0) == 1
            yield bridge, proxy, rows


def test_nothing_overtakes_a_message_that_was_not_answered_in_time(nats_cluster: Cluster) -> None:
    with one_unanswered(nats_cluster) as (bridge, _, rows):
        assert not bridge.send(rows.slice(1, 1), 1), "the publisher does not know yet"
        told = eventually(lambda: bridge.poll(0.1).refusals, "it is told")
        assert [r.tokens.tolist() for r in told] == [[0]]
        assert bridge.send(rows, 1) == 1


def test_nothing_overtakes_a_message_whose_connection_was_lost(nats_cluster: Cluster) -> None:
    with one_unanswered(nats_cluster) as (bridge, proxy, rows):
        connection = bridge._connection
        assert connection is not None
        proxy.cut()
        proxy.speak()
        connection.drive(TIMEOUT, lambda: not connection.up)
        connection.drive(TIMEOUT, lambda: connection.up)
        assert not bridge.send(rows.slice(1, 1), 1), "the publisher does not know yet"
        polled = bridge.poll(0)
        assert [event.kind for event in polled.events] == [EventKind.DISCONNECTED, EventKind.RECONNECTED]
        assert [r.tokens.tolist() for r in polled.refusals] == [[0]]
        assert bridge.send(rows, 1) == 1


def test_a_second_try_in_order_goes_one_at_a_time(nats_cluster: Cluster) -> None:
    with Admin(nats_cluster.url) as admin:
        replicated(admin)
        for n in (100, 1_000):
            with Driver(nats_cluster.url, wait_timeout=60.0, ordered=True) as driver:
                driver.put(["s.a"], n)
                driver.drain()
                assert driver.bridge.mode == "batch"
                assert driver.events() == {"acked": n}, driver.reasons[:3]
                driver.in_order(admin)
                driver.conserved(admin)
        assert driver.counters.duplicates == 100, "each had an answer of its own"
