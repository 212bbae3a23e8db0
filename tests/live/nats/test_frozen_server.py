"""One of three servers stands still (SIGSTOP): who is connected to it goes on over the others."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.nats import NatsSettings
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.discovery.layout import DiscoveryLayout
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin


@pytest.mark.thorough
@pytest.mark.parametrize("leads", [False, True])
def test_who_publishes_and_who_reads_go_on_over_the_others(tmp_path: Path, leads: bool) -> None:
    """Also where it leads the stream."""
    configs = [{"name": "S", "subjects": ["s.>"]}, *DiscoveryLayout().streams()]
    with Cluster(tmp_path) as cluster, Admin(cluster.url) as admin, ExitStack() as ends:
        for config in configs:
            call, full = f"STREAM.CREATE.{config['name']}", {**config, "num_replicas": 3, "storage": "file"}
            eventually(lambda: "error" not in admin.api(call, full), "three peers are known")  # noqa: B023
        leader = eventually(lambda: admin.info("S")["cluster"].get("leader"), "a leader")
        node = next(n for n in cluster.nodes if (n.name == leader) == leads)
        driver = ends.enter_context(Driver(node.url, ack_mode="message"))
        one, other = (ends.enter_context(NatsLogs(NatsSettings((node.url,), name=n), 60.0)) for n in ("one", "other"))
        discovery = ends.enter_context(closing(NatsDiscovery(NatsSettings((node.url,), name="discovery"))))
        discovery.open()
        discovery.announce(SourceKey("desk", 1), b"{}", 300.0)
        ends.callback(discovery.leases.stop)
        announced = discovery.image()[0]
        assert announced.source == SourceKey("desk", 1)
        driver.begin(["s.a"], 500)
        log, tail, position = one.log("S"), other.served("S").tail(0, [], "the reader"), 0

        def is_read(n: int) -> bool:
            """By ranges and by a tail."""
            nonlocal position
            tail.poll()
            if (last := log.bounds().last) > position:
                for records in log.read(position, last):
                    position = int(records.sequences[-1])
            return min(position, tail.position) >= n

        eventually(lambda: is_read(500), "it is read")
        assert {logs.connection().info.name for logs in (one, other)} == {node.name}
        ends.callback(node.resume)
        node.pause()
        assert discovery.image()[0] == announced
        driver.put(["s.a"], 500)
        eventually(lambda: driver.counters.acked == 1_000, "it is published")
        eventually(lambda: is_read(1_000), "it is read")
        assert node.name not in {logs.connection().info.name for logs in (one, other)}
        driver.drain()
        assert driver.events() == {"acked": 1_000}, driver.reasons[:3]
