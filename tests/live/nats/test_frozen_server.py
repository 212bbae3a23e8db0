"""One of three servers stands still (SIGSTOP): who is connected to it goes on over the others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from mama_spark.nats import NatsSettings
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin


@pytest.mark.thorough
@pytest.mark.parametrize("leads", [False, True])
def test_who_publishes_and_who_reads_go_on_over_the_others(tmp_path: Path, leads: bool) -> None:
    """Also where it leads the stream."""
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "storage": "file"}
    with Cluster(tmp_path) as cluster, Admin(cluster.url) as admin, ExitStack() as ends:
        eventually(lambda: "error" not in admin.api("STREAM.CREATE.S", config), "three peers are known")
        leader = eventually(lambda: admin.info("S")["cluster"].get("leader"), "a leader")
        node = next(n for n in cluster.nodes if (n.name == leader) == leads)
        driver = ends.enter_context(Driver(node.url, ack_mode="message"))
        one, other = (ends.enter_context(NatsLogs(NatsSettings((node.url,), name=n), 60.0)) for n in ("one", "other"))
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
        driver.put(["s.a"], 500)
        eventually(lambda: driver.counters.acked == 1_000, "it is published")
        eventually(lambda: is_read(1_000), "it is read")
        assert node.name not in {logs.connection().info.name for logs in (one, other)}
        driver.drain()
        assert driver.events() == {"acked": 1_000}, driver.reasons[:3]
