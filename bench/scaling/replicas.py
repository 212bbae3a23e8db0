"""A stream by number of replicas, on a cluster of three servers: with ids, and an acknowledgement a message.

Three servers, and what publishes, share the cores of one machine: the processor time is that of any cluster, the rate
is what these cores do, and servers with cores of their own are faster.
"""

from __future__ import annotations

import time
from tempfile import TemporaryDirectory

import psutil
from mama_spark.testing.waiting import eventually

from bench.stream_sets import publish
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin

TITLE = "Replicas of a stream on three servers, a write of 200,000 rows"
UNIT = "replicas"
SIZES = (1, 3)
COLUMNS = {
    "client_us": "processor µs a row, executor", "server_us": "processor µs a row, all servers",
    "leader_us": "that of the leader", "rate": "rows a second, all on these cores",
}  # fmt: skip
GROWS = None
ROWS = 200_000
PATIENCE = 120.0


def measure(replicas: int) -> dict[str, float]:
    with TemporaryDirectory() as folder, Cluster(folder) as servers, Admin(servers.url) as admin:
        admin.create_stream("ORDERS", ["orders.>"], num_replicas=replicas)
        processes = {node.name: psutil.Process(node.pid) for node in servers.nodes}
        before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
        began = time.monotonic()
        spent = publish(servers.url, {}, 0, ROWS)
        took = time.monotonic() - began

        def equal() -> bool:
            """All replicas have all messages."""
            followers = admin.info("ORDERS")["cluster"].get("replicas", [])
            return len(followers) == replicas - 1 and all(one["current"] and not one.get("lag") for one in followers)

        eventually(equal, "the followers have all messages", PATIENCE)
        served = {name: sum(process.cpu_times()[:2]) - before[name] for name, process in processes.items()}
        leader = served[admin.info("ORDERS")["cluster"]["leader"]]
        return {
            "client_us": 1e6 * spent / ROWS, "server_us": 1e6 * sum(served.values()) / ROWS,
            "leader_us": 1e6 * leader / ROWS, "rate": ROWS / took,
        }  # fmt: skip
