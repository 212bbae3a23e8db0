"""A replicated stream on three servers: what happens when its leader goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.bridges.nats.server import Cluster
from mama_spark.testing.driving import Driver, eventually, fresh_message_gets_through
from mama_spark.testing.servers import Admin

MODES = [
    pytest.param({"ack_mode": "message"}, id="message"),
    pytest.param({"ack_mode": "batch", "ordered": True, "stream": "S"}, id="batch in order"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as cluster:
        yield cluster


def replicated(admin: Admin) -> None:
    eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "storage": "file", "allow_batched": True}
    eventually(lambda: "error" not in admin.api("STREAM.CREATE.S", config), "three peers are known")


def leader(admin: Admin) -> str:
    return str(eventually(lambda: admin.info("S")["cluster"].get("leader"), "a leader"))


def held_to(driver: Driver, admin: Admin, mode: dict[str, Any], n: int) -> None:
    assert driver.events() == {"acked": n}, driver.reasons[:3]
    driver.conserved(admin)
    if mode.get("ordered"):
        driver.in_order(admin)


@pytest.mark.parametrize("mode", MODES)
def test_a_leader_that_steps_down_in_flight_costs_nothing(cluster: Cluster, mode: dict[str, Any]) -> None:
    with Admin(cluster.url) as admin:
        replicated(admin)
        with Driver(cluster.url, **mode) as driver:
            for _ in range(5):
                driver.put(["s.a"], 2000)
            eventually(lambda: driver.counters.acked > 2000, "some are acknowledged")
            assert admin.api("STREAM.LEADER.STEPDOWN.S").get("success")
            driver.drain()
            held_to(driver, admin, mode, 10_000)
        fresh_message_gets_through(cluster.url, "s.new")


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_leader_in_flight_costs_nothing(cluster: Cluster, mode: dict[str, Any]) -> None:
    with Admin(cluster.url) as admin:
        replicated(admin)
        with Driver(cluster.url, deadline=60.0, **mode) as driver:
            for _ in range(5):
                driver.put(["s.a"], 2000)
            eventually(lambda: driver.counters.acked > 2000, "some are acknowledged")
            cluster.node(leader(admin)).kill()
            driver.drain()
            held_to(driver, admin, mode, 10_000)
            assert driver.counters.resends < 100_000, "503 holds the publisher"
        fresh_message_gets_through(cluster.url, "s.new")


def test_a_replica_that_is_down_costs_nothing(cluster: Cluster) -> None:
    with Admin(cluster.url) as admin:
        replicated(admin)
        follower = next(n for n in cluster.nodes if n.running and n is not cluster.node(leader(admin)))
        with Driver(cluster.url) as driver:
            driver.put(["s.a"], 2000)
            eventually(lambda: driver.counters.acked > 500, "some are acknowledged")
            follower.kill()
            driver.put(["s.a"], 2000)
            driver.drain()
            held_to(driver, admin, {}, 4000)


def test_an_id_in_process_is_asked_again_and_never_a_success(cluster: Cluster) -> None:
    """Without a quorum nothing commits: a resend of a proposed id is answered by 409 or by silence."""
    with Admin(cluster.url) as admin:
        replicated(admin)
        name = leader(admin)
        others = [n for n in cluster.nodes if n is not cluster.node(name)]
        with Driver(cluster.node(name).url, wait_timeout=0.3, deadline=40.0) as driver:
            driver.put(["s.a"], 200)
            eventually(lambda: driver.counters.acked == 200, "the first are acknowledged")
            for node in others:
                node.pause()
            driver.put(["s.a"], 200)
            eventually(lambda: driver.counters.resends > 200, "they are asked again")
            assert driver.counters.acked == 200, "nothing can have been committed"
            for node in others:
                node.resume()
            driver.drain()
            held_to(driver, admin, {}, 400)
