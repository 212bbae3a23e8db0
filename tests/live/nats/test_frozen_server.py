"""One of three servers stands still (SIGSTOP): who is connected to it is at work again over the others within seconds.

The times are printed, and prove nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mama_spark.cli.commands.record import log_options
from mama_spark.contracts.bridge import SourceKey
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsSettings
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.discovery.layout import DiscoveryLayout
from mama_spark.nats.discovery.lease import NatsLeases
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.publishing.resilient_publisher import ResilientPublisher
from mama_spark.registry import publisher_bridge
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy

DESK = SourceKey("desk", 1)


class Reader:
    """Reads a stream on a thread of its own, by ranges as ``mamasub`` does, or as a tail, from its beginning on."""

    def __init__(self, url: str, stream: str, *, tail: bool) -> None:
        self._logs = NatsLogs(NatsSettings((url,), name=f"{stream} {tail}"), 60.0)
        self._stream, self._tail, self._stop = stream, tail, threading.Event()
        self.position = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            log = self._logs.log(self._stream)
            follower = self._logs.served(self._stream).tail(0, [], "the reader") if self._tail else None
            while not self._stop.wait(0.02):
                if follower is not None:
                    follower.poll()
                    self.position = follower.position
                elif (last := log.bounds().last) > self.position:
                    for records in log.read(self.position, last):
                        self.position = int(records.sequences[-1])
        except BaseException as e:  # noqa: BLE001 - the test looks at it
            self.error = e

    def server(self) -> str:
        return self._logs.connection().info.name

    def __enter__(self) -> Reader:
        self._logs.open()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._logs.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all cases: each lets the server go on that it has stopped, waits for it, and has streams of its own."""
    with Cluster(tmp_path_factory.mktemp("frozen")) as cluster, Admin(cluster.url) as admin:
        for config in DiscoveryLayout().streams():
            make(admin, config)
        yield cluster


def make(admin: Admin, config: dict[str, Any]) -> None:
    call, full = f"STREAM.CREATE.{config['name']}", {**config, "num_replicas": 3, "storage": "file"}
    eventually(lambda: "error" not in admin.api(call, full), "three peers are known")


@contextmanager
def standing_still(node: NatsServer) -> Iterator[float]:
    node.pause()
    try:
        yield time.monotonic()
    finally:
        node.resume()


@pytest.mark.thorough
@pytest.mark.parametrize("leads", [False, True])
def test_all_go_on_over_the_others_when_a_server_stands_still(
    cluster: Cluster, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that they are connected to, which may lead the stream, too."""
    stream = "LED" if leads else "FOLLOWED"
    for node in cluster.nodes:
        node.wait_ready()  # it may have stood still before
    with Admin(cluster.url) as admin, ExitStack() as ends:
        make(admin, {"name": stream, "subjects": [f"{stream}.>"], "allow_batched": True})
        leader = eventually(lambda: admin.info(stream)["cluster"].get("leader"), "a leader")
        node = next(n for n in cluster.nodes if (n.name == leader) == leads)
        others = [n for n in cluster.nodes if n is not node]
        driver = ends.enter_context(Driver(node.url, ack_mode="message"))
        ranges, tail = (ends.enter_context(Reader(node.url, stream, tail=tail)) for tail in (False, True))
        discovery = ends.enter_context(closing(NatsDiscovery(NatsSettings((node.url,), name=stream))))
        discovery.open()
        discovery.announce(DESK, b"{}", 6.0)
        ends.callback(discovery.leases.stop)
        leases = discovery.leases.store
        assert isinstance(leases, NatsLeases)

        def renewed() -> int:
            return max(leases.last_sequences.values(), default=0)

        log = log_options({"url": f"{node.url}/{stream}"})
        recorder = ends.enter_context(closing(ResilientPublisher(lambda: publisher_bridge(log))))

        def record(first: int) -> None:
            ids = [f"record {n}" for n in range(first, first + 100)]
            recorder.write(MessageBatch.of([f"{stream}.r"] * 100, [b"x"] * 100, None, ids))

        def recorded() -> bool:
            recorder.reconnect()
            return recorder.stored == 200

        driver.begin([f"{stream}.a"], 500)
        record(0)
        eventually(lambda: recorder.stored == 100, "it is recorded")
        for reader in (ranges, tail):
            eventually(lambda: reader.position >= 600 or reader.error, "it is read")  # noqa: B023
            assert reader.error is None
            assert reader.server() == node.name
        last = renewed()
        asks = ends.enter_context(ThreadPoolExecutor(1))
        with standing_still(node) as stopped:
            image = asks.submit(discovery.image)
            driver.put([f"{stream}.a"], 500)
            record(100)
            monkeypatch.setattr(random.Random, "shuffle", lambda *_: None)
            servers = [n.url for n in (node, *others)]
            with closing(SocketConnection(NatsSettings(tuple(servers)))) as connection:
                connection.open()
                assert connection.info.name != node.name
                opened = time.monotonic()
            took = at_work(
                {
                    "published": lambda: driver.counters.acked == 1_000,
                    "recorded": recorded,
                    "read by ranges": lambda: ranges.position >= 1_200 or ranges.error,
                    "read by a tail": lambda: tail.position >= 1_200 or tail.error,
                    "lease renewed": lambda: renewed() > last,
                    "discovery": image.done,
                },
                stopped,
            )
            print(f"\nopened in {opened - stopped:.1f} s;", "; ".join(f"{k}: {v:.1f} s" for k, v in took.items()))
            assert (ranges.error, tail.error, image.exception()) == (None, None, None)
            assert node.name not in (ranges.server(), tail.server())
        driver.drain()
        assert driver.events() == {"acked": 1_000}, driver.reasons[:3]


def at_work(conditions: dict[str, Callable[[], object]], since: float) -> dict[str, float]:
    """Wait for all; the seconds until each was met."""
    took: dict[str, float] = {}

    def look() -> bool:
        took.update({k: time.monotonic() - since for k, is_met in conditions.items() if k not in took and is_met()})
        return len(took) == len(conditions)

    eventually(look, "all are at work again")
    return took


@pytest.mark.thorough
def test_the_only_server_is_not_left_when_its_answers_are_held(tmp_path: Path) -> None:
    """By the clock: the trial is about times."""
    held = 14
    with NatsServer(tmp_path / "n") as server, Admin(server.url) as admin, Proxy(server.url) as proxy:
        admin.create_stream("S", ["s.>"])
        with Driver(proxy.url, ack_mode="message") as driver:
            driver.begin(["s.a"], 500)
            connection = driver.bridge._connection
            assert connection is not None
            proxy.silence()
            driver.put(["s.a"], 500)
            until = time.monotonic() + held
            eventually(lambda: time.monotonic() > until, "the hold is over")
            proxy.speak()
            driver.drain()
            print(f"\nrows flow {time.monotonic() - until:.1f} s after {held} s; left {connection._losses} times")
            assert driver.events() == {"acked": 1_000}, driver.reasons[:3]
            driver.conserved(admin)
            assert connection._losses == 0
