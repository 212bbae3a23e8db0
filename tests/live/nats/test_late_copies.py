"""Option ``exactlyOnce`` while a server stands still that has our messages in the buffers of its sockets, for longer
than any server remembers their ids."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mama_spark.nats.protocol import client
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.publishing.window.stream_ends import StreamEnds
from mama_spark.spark.sink.job import PartitionReport
from mama_spark.testing.waiting import TIMEOUT, eventually

from tests.support.nats.forgotten_ids import forget_ids_as
from tests.support.nats.nats_cluster import Cluster, await_replicas
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy
from tests.support.spark.attempts import STREAM, Query, Row, batches, rows, values

pytestmark = [pytest.mark.thorough, pytest.mark.own_server]
WINDOW = 1_000_000_000  #: nanoseconds in which the stream recognises ids
IN_FLIGHT = 256
OPTIONS = {"maxInFlight": str(IN_FLIGHT), "retryDeadline": "120s", "waitTimeout": "2s"}


class Aside:
    """Runs something on another thread, and waits for its end."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()


class FreezingCluster:
    """Three servers and a stream; publishers begin at one that has neither that nor the markers, so that it takes part
    in no election, and hands on all that it has when it wakes up.

    :ivar proxy: to that one: it keeps what was sent to it also where our end discards it with the connection
    """

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder)

    def __enter__(self) -> FreezingCluster:
        self.cluster.start()
        holders, admin = set(), Admin(self.cluster.url).__enter__()
        for name, subject in ((STREAM, "once.>"), ("MAMA_BATCHES", "MAMA_BATCHES.>")):
            config = {"name": name, "subjects": [subject], "max_msgs_per_subject": 1 if name != STREAM else -1}
            eventually(
                lambda: "error" not in admin.api(f"STREAM.CREATE.{name}", {**config, "duplicate_window": WINDOW}),  # noqa: B023
                "it is made",
            )
            holders.add(str(eventually(lambda: admin.info(name)["cluster"].get("leader"), "a leader")))  # noqa: B023
        admin.__exit__(None, None, None)
        self.node = next(node for node in self.cluster.nodes if node.name not in holders)
        self.admin = Admin(self.cluster.node(min(holders)).url).__enter__()
        self.proxy = Proxy(self.node.url, keep=True).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.admin.__exit__(None, None, None)
        self.node.resume()
        self.proxy.__exit__(None, None, None)
        self.cluster.stop()

    @property
    def stored(self) -> int:
        found: int = self.admin.info(STREAM)["state"]["messages"]
        return found

    @property
    def paused(self) -> bool:
        """The server of the publishers stands still."""
        assert self.node.pid is not None
        return Path(f"/proc/{self.node.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def doubled(self, given: list[Row]) -> int:
        """How many rows are stored twice; none may be missing."""
        found = values(self.admin.messages(STREAM))
        assert set(found) == set(given)
        return found.total() - len(given)

    def freeze_at(self, stored: int) -> None:
        """When so many rows are stored."""
        eventually(lambda: self.stored == stored, "they are stored")
        self.node.pause()

    def fill_buffers(self, start: Callable[[], None] = lambda: None) -> None:
        """Freeze at 500 rows; who publishes does not leave it before rows are in its buffers, however slow it is."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "PATIENCE", TIMEOUT)
            start()
            self.freeze_at(500)
            eventually(lambda: b"row 600" in self.proxy.heard, "rows are in its buffers")

    def forget_ids(self) -> None:
        forget_ids_as(self.admin, "MAMA_BATCHES.probe")

    def kill_publisher(self, query: Query, given: list[Row]) -> str:
        """When the server that stands still has rows in its buffers; the others' addresses."""
        first = get_context("fork").Process(target=query.attempt, args=(self.rows(given, 500, wait=60.0),))
        self.fill_buffers(first.start)
        first.kill()
        first.join()
        return ",".join(node.url for node in self.cluster.nodes if node is not self.node)

    def named(self, report: PartitionReport, log: Path) -> set[str]:
        """Ids of the rows that are perhaps stored twice, as all say who tell it; those that are stored twice are among
        them."""
        tables = [pq.read_table(log / part.path) for part in report.parts]
        ids = {
            row["flight_id"] for table in tables for row in table.to_pylist() if "stored twice" in (row["info"] or "")
        }
        assert report.counts.perhaps_twice == len(ids) > 0
        stored = Counter(message.headers["Nats-Msg-Id"][0] for message in self.admin.messages(STREAM))
        assert {one for one, n in stored.items() if n > 1} <= ids
        return ids

    def rows(self, given: list[Row], at: int, wait: float = 0.0) -> Iterator[pa.RecordBatch]:
        """Those from ``at`` on come when the server stands still, the last one ``wait`` seconds after the others."""
        yield from batches(given[:at])
        eventually(lambda: self.paused, "the server stands still")
        yield from batches(given[at:-1])
        time.sleep(wait)
        yield from batches(given[-1:])


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[FreezingCluster]:
    with FreezingCluster(tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("end", ["wakes up", "is killed"])
def test_what_is_in_the_buffers_of_a_frozen_server_is_not_sent_again_before_it_is_certain(
    frozen: FreezingCluster, end: str
) -> None:
    """All others go on over other servers meanwhile."""
    given = rows(0, 3_000)

    def wake_up() -> None:
        frozen.freeze_at(500)
        eventually(lambda: frozen.stored >= len(given) - IN_FLIGHT, "others go on")
        frozen.forget_ids()
        frozen.node.resume() if end == "wakes up" else frozen.node.kill()

    url = frozen.proxy.url if end == "wakes up" else frozen.node.url
    with Aside(wake_up):
        report = Query(url, OPTIONS).attempt(frozen.rows(given, 500))
    assert report.counts.acked == len(given)
    assert frozen.doubled(given) == 0


def test_a_repetition_waits_for_the_server_that_a_killed_attempt_has_sent_to(
    frozen: FreezingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mama_spark")
    given = rows(0, 1_000)
    others = frozen.kill_publisher(Query(frozen.proxy.url, OPTIONS), given)

    def wake_up() -> None:
        eventually(lambda: "has sent rows, and server" in caplog.text or frozen.stored == len(given), "it waits")
        frozen.forget_ids()
        frozen.node.resume()

    with Aside(wake_up):
        again = Query(others, OPTIONS).attempt(given, attempt=1)
    assert again.counts.acked == len(given)
    assert frozen.doubled(given) == 0


def test_who_does_not_wait_is_told_each_row_that_is_stored_twice(frozen: FreezingCluster, tmp_path: Path) -> None:
    given = rows(0, 1_000)

    def wake_up() -> None:
        frozen.fill_buffers()
        eventually(lambda: frozen.stored == len(given), "all are sent again")
        frozen.forget_ids()
        frozen.node.resume()

    more = {"onSilentServer": "publish", "flightLog": str(tmp_path / "log")}
    with Aside(wake_up):
        report = Query(frozen.proxy.url, {**OPTIONS, **more}).attempt(frozen.rows(given, 500))
    eventually(lambda: frozen.stored > len(given), "the server hands on what it has")
    frozen.named(report, tmp_path / "log")


def test_a_repetition_that_does_not_wait_names_each_row_that_is_stored_twice(
    frozen: FreezingCluster, tmp_path: Path
) -> None:
    given = rows(0, 1_000)
    others = frozen.kill_publisher(Query(frozen.proxy.url, OPTIONS), given)
    more = {"onSilentServer": "publish", "flightLog": str(tmp_path / "log")}
    report = Query(others, {**OPTIONS, **more}).attempt(given, attempt=1)
    frozen.forget_ids()
    frozen.node.resume()
    eventually(lambda: frozen.stored > len(given), "the server hands on what it has")
    assert len(frozen.named(report, tmp_path / "log")) == 500, "those that were found are stored once"


@pytest.mark.parametrize(
    ("pack", "stored"), [({}, 500), ({"pack": "lines", "packMaxRows": "7"}, 0)], ids=["off", "lines"]
)
def test_a_link_that_is_slower_than_ids_are_remembered_doubles_nothing(
    nats_server: NatsServer, pack: dict[str, str], stored: int
) -> None:
    given = rows(0, 1_000)
    with Admin(nats_server.url) as admin, Proxy(nats_server.url) as proxy:
        admin.create_stream(STREAM, ["once.>"], duplicate_window=WINDOW)

        def come() -> Iterator[pa.RecordBatch]:
            yield from batches(given[:stored])
            eventually(lambda: admin.info(STREAM)["state"]["messages"] == stored, "they are stored")
            proxy.narrow(10_000)
            yield from batches(given[stored:])

        report = Query(proxy.url, {**OPTIONS, **pack, "waitTimeout": "1s"}).attempt(come())
        assert report.counts.acked == len(given)
        found = values(admin.messages(STREAM))
    assert found == Counter(given), f"{found.total() - len(given)} are doubled"


def test_rows_that_a_leader_without_a_majority_has_proposed_are_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It forgets their ids when the window has passed, and stores them all when the others go on (nats-server 2.15.1).
    The markers are written all the time: it alone has them, and it leads the cluster, too."""
    given, ends, real = rows(0, 1_000), [0], StreamEnds.note

    def note(noted: StreamEnds, at: float, last: int) -> None:
        real(noted, at, last)
        ends.append(last)

    monkeypatch.setattr(StreamEnds, "note", note)
    with Cluster(tmp_path) as cluster, Admin(cluster.url) as any_of_them:
        leader = cluster.node(cluster.nodes[0].ask("jsz")["meta_cluster"]["leader"])
        followers = [node for node in cluster.nodes if node is not leader]
        config = {"name": STREAM, "subjects": ["once.>"], "num_replicas": 3, "duplicate_window": WINDOW}
        eventually(lambda: "error" not in any_of_them.api(f"STREAM.CREATE.{STREAM}", config), "it is made")
        await_replicas(any_of_them, STREAM)

        def leads_the_stream() -> bool:
            leads = any_of_them.info(STREAM)["cluster"].get("leader") == leader.name
            preferred = {"placement": {"preferred": leader.name}}
            return leads or not any_of_them.api(f"STREAM.LEADER.STEPDOWN.{STREAM}", preferred)

        eventually(leads_the_stream, "it leads the stream")
        keeps = {"max_msgs_per_subject": 1, "discard": "new", "placement": {"tags": [leader.name]}}
        any_of_them.create_stream("MARKERS", ["MARKERS.>"], **keeps)
        with Admin(leader.url) as admin, Proxy(leader.url, keep=True) as proxy:

            def come() -> Iterator[pa.RecordBatch]:
                yield from batches(given[:500])
                eventually(lambda: admin.info(STREAM)["state"]["messages"] == 500, "they are stored")
                eventually(lambda: ends[-1] == 500, "the task notes where the stream ends")
                for node in followers:
                    node.pause()
                yield from batches(given[500:])

            def go_on() -> None:
                eventually(lambda: b"row 600" in proxy.heard, "the leader has them")
                until = time.monotonic() + 6.0
                eventually(lambda: proxy.heard.count(b"row 600") > 1 or time.monotonic() > until, "it is sent again")
                for node in followers:
                    node.resume()

            with Aside(go_on):
                report = Query(proxy.url, {**OPTIONS, "waitTimeout": "1s", "batchesStream": "MARKERS"}).attempt(come())
            assert report.counts.acked == len(given)
        # a server that has lost the lead meanwhile answers with what it has itself, until it knows
        eventually(lambda: any_of_them.info(STREAM)["state"]["messages"] >= len(given), "all acknowledged are there")
        await_replicas(any_of_them, STREAM)
        found = values(any_of_them.messages(STREAM))
    assert found == Counter(given), f"{found.total() - len(given)} are doubled"
