"""A replicated stream on three servers: what happens when its leader goes."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.bridge import PollResult
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import TIMEOUT, eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.nats_cluster import Cluster, await_replicas
from tests.support.nats.nats_servers import Admin

MODES: list[dict[str, Any]] = [{"ack_mode": "message"}, {"ack_mode": "batch", "ordered": True}]


def replicated(admin: Admin) -> None:
    eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "storage": "file", "allow_batched": True}
    eventually(lambda: "error" not in admin.api("STREAM.CREATE.S", config), "three peers are known")
    await_replicas(admin, "S")


def leader(cluster: Cluster, admin: Admin) -> NatsServer:
    return cluster.node(str(eventually(lambda: admin.info("S")["cluster"].get("leader"), "a leader")))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_leader_that_steps_down_in_flight_costs_nothing(nats_cluster: Cluster, mode: dict[str, Any]) -> None:
    with Admin(nats_cluster.url) as admin:
        replicated(admin)
        costs_nothing(nats_cluster, admin, lambda: admin.api("STREAM.LEADER.STEPDOWN.S"), **mode)


@pytest.mark.thorough
def test_a_killed_leader_in_flight_costs_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, Admin(cluster.url) as admin:
        replicated(admin)
        costs_nothing(cluster, admin, leader(cluster, admin).kill, ack_mode="batch", ordered=True)


def costs_nothing(cluster: Cluster, admin: Admin, change: Callable[[], object], **mode: Any) -> None:
    with Driver(cluster.url, window=256, stream="S", **mode) as driver:
        for _ in range(4):
            driver.put(["s.a"], 500)
        eventually(lambda: driver.counters.acked > 300, "some are acknowledged")
        change()
        cost_nothing(driver, admin)
    fresh_message_gets_through(cluster.url, "s.new")


def cost_nothing(driver: Driver, admin: Admin) -> None:
    driver.drain()
    assert driver.events() == {"acked": driver.sent}, driver.reasons[:3]
    driver.conserved(admin)
    if driver.policy.ordered:
        driver.in_order(admin)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_leader_that_announces_its_end_in_flight_costs_neither_writer_nor_reader_anything(
    tmp_path: Path, mode: dict[str, Any]
) -> None:
    """Lame duck mode: it goes on until its streams have other leaders, then closes one connection after another."""
    soon = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"\n'
    with Cluster(tmp_path, config=soon) as cluster, Admin(cluster.url) as admin, ThreadPoolExecutor(1) as beside:
        replicated(admin)
        duck, read, wanted = leader(cluster, admin), list[int](), [sys.maxsize]
        with (
            NatsLogs(NatsSettings((duck.url,)), 60.0) as logs,
            Driver(duck.url, window=256, stream="S", **mode) as driver,
            closing(logs.served("S").tail(0, [], "the reader")) as tail,
        ):

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
            cost_nothing(driver, admin)
            wanted[0] = int(admin.info("S")["state"]["last_seq"])
            assert reader.result()
            assert read == list(range(1, len(read) + 1))
        fresh_message_gets_through(cluster.url, "s.new")


@pytest.mark.thorough
def test_an_id_in_process_is_asked_again_and_never_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a quorum nothing commits: a resend of a proposed id is answered by 409 (10158)."""
    seen = Counter[int]()
    with Cluster(tmp_path) as cluster, Admin(cluster.url) as admin:
        replicated(admin)
        chief = leader(cluster, admin)
        others = [node for node in cluster.nodes if node is not chief]
        with Driver(chief.url, wait_timeout=0.3) as driver:
            poll = driver.bridge.poll

            def watched(timeout: float, want: int = 1) -> PollResult:
                polled = poll(timeout, want)
                for refusal in polled.refusals:
                    seen[refusal.error.code] += len(refusal.tokens)
                return polled

            monkeypatch.setattr(driver.bridge, "poll", watched)
            driver.begin(["s.a"], 200)
            for node in others:
                node.pause()
            driver.put(["s.a"], 200)
            eventually(lambda: seen[10158] >= 200, "all are asked again, and in process")
            assert driver.counters.acked == 200, "nothing can have been committed"
            for node in others:
                node.resume()
            cost_nothing(driver, admin)
        fresh_message_gets_through(cluster.url, "s.new")


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
