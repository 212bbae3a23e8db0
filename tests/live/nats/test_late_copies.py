"""Option ``exactlyOnce`` while a server stands still that has our messages in the buffers of its sockets, for longer
than any server remembers their ids."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mama_spark.nats.protocol import client
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import TIMEOUT, eventually

from tests.support.nats.forgotten_ids import forget_ids_as
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy
from tests.support.spark.attempts import STREAM, Query, batches, rows, values

pytestmark = [pytest.mark.thorough, pytest.mark.own_server]
GIVEN = rows(0, 1_000)
OPTIONS = {"maxInFlight": "256", "retryDeadline": "120s", "waitTimeout": "2s"}


class Frozen(NamedTuple):
    """A server that stands still, the addresses of the others, and a client of one of these."""

    node: NatsServer
    others: str
    admin: Admin

    def stored(self) -> int:
        found: int = self.admin.info(STREAM)["state"]["messages"]
        return found

    def wake_up(self) -> None:
        """When nobody remembers ids any more."""
        forget_ids_as(self.admin, "MAMA_BATCHES.probe")
        self.node.resume()


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Frozen]:
    """It has neither the stream nor the markers, so that it takes part in no election, and the second half of the rows
    of an attempt that was killed. The way to it keeps what our end discards with the connection."""
    with Cluster(tmp_path / "cluster") as cluster, ExitStack() as ends:
        holders = set()
        with Admin(cluster.url) as any_of_them:
            for name, subject, most in ((STREAM, "once.>", -1), ("MAMA_BATCHES", "MAMA_BATCHES.>", 1)):
                limits = {"max_msgs_per_subject": most, "duplicate_window": 1_000_000_000}
                config: dict[str, Any] = {"name": name, "subjects": [subject], **limits}
                create = (f"STREAM.CREATE.{name}", config)
                eventually(lambda: "error" not in any_of_them.api(*create), "it is made")  # noqa: B023
                holders.add(str(eventually(lambda: any_of_them.info(name)["cluster"].get("leader"), "a leader")))  # noqa: B023
        node = next(node for node in cluster.nodes if node.name not in holders)
        others = ",".join(one.url for one in cluster.nodes if one is not node)
        proxy = ends.enter_context(Proxy(node.url, keep=True))
        ends.callback(node.resume)
        found = Frozen(node, others, ends.enter_context(Admin(cluster.node(min(holders)).url)))

        def come() -> Iterator[pa.RecordBatch]:
            yield from batches(GIVEN[:500])
            stat = Path(f"/proc/{node.pid}/stat")
            eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the server stands still")
            yield from batches(GIVEN[500:-1])
            Event().wait()  # until it is killed

        killed = get_context("fork").Process(target=Query(proxy.url, OPTIONS).attempt, args=(come(),))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "PATIENCE", TIMEOUT)  # it does not leave the server before, however slow it is
            killed.start()
            ends.callback(killed.kill)
            eventually(lambda: found.stored() == 500, "they are stored")
            node.pause()
            eventually(lambda: b"row 600" in proxy.heard, "rows are in its buffers")
        killed.kill()
        killed.join()
        yield found


def test_a_repetition_waits_for_the_server_that_a_killed_attempt_has_sent_to(
    frozen: Frozen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mama_spark")

    def wake_up() -> None:
        eventually(lambda: "has sent rows, and server" in caplog.text or frozen.stored() == len(GIVEN), "it waits")
        frozen.wake_up()

    with ThreadPoolExecutor(1) as beside:
        woken = beside.submit(wake_up)
        again = Query(frozen.others, OPTIONS).attempt(GIVEN, attempt=1)
    woken.result()
    assert again.counts.acked == len(GIVEN)
    assert values(frozen.admin.messages(STREAM)) == Counter(GIVEN)


def test_a_repetition_that_does_not_wait_names_each_row_that_is_stored_twice(frozen: Frozen, tmp_path: Path) -> None:
    more = {"onSilentServer": "publish", "flightLog": str(tmp_path / "log")}
    report = Query(frozen.others, {**OPTIONS, **more}).attempt(GIVEN, attempt=1)
    frozen.wake_up()
    eventually(lambda: frozen.stored() > len(GIVEN), "the server hands on what it has")
    logged = [row for part in report.parts for row in pq.read_table(tmp_path / "log" / part.path).to_pylist()]
    named = {row["flight_id"] for row in logged if "stored twice" in (row["info"] or "")}
    stored = Counter(message.headers["Nats-Msg-Id"][0] for message in frozen.admin.messages(STREAM))
    assert {one for one, n in stored.items() if n > 1} <= named
    assert report.counts.perhaps_twice == len(named) == 500, "those that were found are stored once"
