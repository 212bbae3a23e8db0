"""Brokers by number of topics, replicas, sources and streams."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from mama_spark.contracts.bridge import SourceKey
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.spark.subscribe.data_source import schema_for, stream_reader
from mama_spark.testing.waiting import eventually
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.stream_sets import publish
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin

ROWS = 200_000
PATIENCE = 120.0
RECORD = b"%0*d" % (400, 0)
STREAM_ROWS = 10_000


def topics(number: int) -> dict[str, float]:
    """Publishing by number of topics, each row to another one in turn: with ids, and an acknowledgement a message."""
    with TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        process = psutil.Process(server.pid)
        before = sum(process.cpu_times()[:2])
        spent = publish(server.url, {}, 0, ROWS, number)
        served = sum(process.cpu_times()[:2]) - before
        memory = process.memory_info().rss / 1e6
        return {"client_us": 1e6 * spent / ROWS, "server_us": 1e6 * served / ROWS, "server_mb": memory}


def replicas(replicas: int) -> dict[str, float]:
    """A stream by number of replicas, on a cluster of three servers: with ids, and an acknowledgement a message.

    Three servers, and what publishes, share the cores of one machine: the processor time is that of any cluster, the
    rate is what these cores do, and servers with cores of their own are faster.
    """
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


def sources(number: int) -> dict[str, float]:
    """Discovery by number of sources that are announced: an image of all, and what one announcement costs."""
    with TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        process = psutil.Process(server.pid)
        discovery = NatsDiscovery(NatsSettings((server.url,), retry_deadline=120.0))
        discovery.open()
        try:
            discovery.create_streams()
            served, before = sum(process.cpu_times()[:2]), time.process_time()
            for n in range(number):
                discovery.announce(SourceKey(f"desk-{n}", n), RECORD, 86_400.0)
            announced, before = time.process_time() - before, time.process_time()
            start = discovery.initial_offset("image")
            end = discovery.latest_offset(start)
            found = sum(len(events) for events in discovery.read(start, end))
            image, served = time.process_time() - before, sum(process.cpu_times()[:2]) - served
            if found < number:
                raise SystemExit(f"{found} events of {number} sources")
            stored = server.ask("jsz")["bytes"]
        finally:
            discovery.close()
        return {
            "announce_us": 1e6 * announced / number, "image_s": image, "server_s": served, "stored_mb": stored / 1e6,
            "offset": len(json.dumps(end)),
        }  # fmt: skip


def streams(number: int) -> dict[str, float]:
    """One write and one query over many streams: what a task spends before its first row, and the driver for a
    batch."""
    with TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        several = {"streams": f"orders-{{0..{number - 1}}}"}
        publish(server.url, several, 0, STREAM_ROWS, STREAM_ROWS)  # makes the streams
        written = publish(server.url, several, 1, STREAM_ROWS, STREAM_ROWS)
        given = {"url": server.url, "streams": "orders-*", "startingOffsets": "earliest"}
        reader = stream_reader(given, schema_for(given), time.time_ns() // 1_000, 2)
        start = reader.initialOffset()
        before = time.process_time()
        end = reader.latestOffset(start, ReadAllAvailable())
        planned = reader.partitions(start, end)
        spent = time.process_time() - before
        if sum(len(task.range) for task in planned) != 2 * STREAM_ROWS:
            raise SystemExit("not all rows are planned")
        memory = psutil.Process(server.pid).memory_info().rss / 1e6
        return {"write_s": written, "plan_s": spent, "offset": len(json.dumps(end)), "server_mb": memory}
