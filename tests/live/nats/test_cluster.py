"""A replicated stream on three servers: what happens when its leader goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.nats_cluster import Cluster, await_replicas
from tests.support.nats.nats_servers import Admin


def replicated(admin: Admin) -> None:
    eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "storage": "file", "allow_batched": True}
    eventually(lambda: "error" not in admin.api("STREAM.CREATE.S", config), "three peers are known")
    await_replicas(admin, "S")


@pytest.mark.parametrize("mode", [{"ack_mode": "message"}, {"ack_mode": "batch", "ordered": True}], ids=str)
def test_a_leader_that_steps_down_in_flight_costs_nothing(nats_cluster: Cluster, mode: dict[str, Any]) -> None:
    with Admin(nats_cluster.url) as admin:
        replicated(admin)
        costs_nothing(nats_cluster, admin, lambda: admin.api("STREAM.LEADER.STEPDOWN.S"), **mode)


@pytest.mark.thorough
def test_a_killed_leader_in_flight_costs_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, Admin(cluster.url) as admin:
        replicated(admin)
        leader = str(eventually(lambda: admin.info("S")["cluster"].get("leader"), "a leader"))
        costs_nothing(cluster, admin, cluster.node(leader).kill, ack_mode="batch", ordered=True)


def costs_nothing(cluster: Cluster, admin: Admin, change: Callable[[], object], **mode: Any) -> None:
    with Driver(cluster.url, window=256, stream="S", **mode) as driver:
        for _ in range(4):
            driver.put(["s.a"], 500)
        eventually(lambda: driver.counters.acked > 300, "some are acknowledged")
        change()
        driver.drain()
        assert driver.events() == {"acked": 2_000}, driver.reasons[:3]
        driver.conserved(admin)
        if "ordered" in mode:
            driver.in_order(admin)
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
