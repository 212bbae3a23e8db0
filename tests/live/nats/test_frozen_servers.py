"""Option ``exactlyOnce`` while a server stands still that has our messages in the buffers of its sockets, for longer than
any server remembers their ids."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from mama_spark.nats.protocol import client
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import STREAM, Query, Row, batches, rows, values

pytestmark = [pytest.mark.thorough, pytest.mark.own_server]
WINDOW = 1_000_000_000  #: nanoseconds in which the stream recognises ids


class FreezingCluster:
    """Three servers and a stream; publishers begin at one that does not lead it."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder)

    def __enter__(self) -> FreezingCluster:
        self.cluster.start()
        config = {"name": STREAM, "subjects": ["once.>"], "num_replicas": 3, "duplicate_window": WINDOW}
        with Admin(self.cluster.url) as admin:
            eventually(lambda: "error" not in admin.api(f"STREAM.CREATE.{STREAM}", config), "three peers are known")
            leader = eventually(lambda: admin.info(STREAM)["cluster"].get("leader"), "a leader")
        self.node = next(node for node in self.cluster.nodes if node.name != leader)
        self.admin = Admin(self.cluster.node(str(leader)).url).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.admin.__exit__(None, None, None)
        self.node.resume()
        self.cluster.stop()

    @property
    def stored(self) -> int:
        found: int = self.admin.info(STREAM)["state"]["messages"]
        return found

    def freeze_below(self, given: list[Row], at: int) -> Iterator[pa.RecordBatch]:
        """Rows, of which the server gets those from ``at`` on when it stands still."""
        yield from batches(given[:at])
        eventually(lambda: self.stored == at, "they are stored")
        self.node.pause()
        yield from batches(given[at:])


@pytest.fixture
def frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FreezingCluster]:
    monkeypatch.setattr(client, "PING_INTERVAL", 1.0)
    with FreezingCluster(tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("end", ["wakes up", "is killed"])
def test_what_is_in_the_buffers_of_a_frozen_server_is_not_sent_again_before_it_is_certain(
    frozen: FreezingCluster, end: str
) -> None:
    """All others go on over other servers meanwhile."""
    given, in_flight = rows(0, 3_000), 256

    def wake_up() -> None:
        eventually(lambda: frozen.stored >= len(given) - in_flight, "others go on")
        time.sleep(5 * WINDOW / 1e9)
        frozen.node.resume() if end == "wakes up" else frozen.node.kill()

    waker = threading.Thread(target=wake_up)
    waker.start()
    options = {"maxInFlight": str(in_flight), "retryDeadline": "120s", "waitTimeout": "2s"}
    report = Query(frozen.node.url, options).attempt(frozen.freeze_below(given, 500))
    waker.join()
    assert report.counts.acked == len(given)
    found = values(frozen.admin.messages(STREAM))
    assert found == Counter(given), f"{found.total() - len(given)} are doubled"
