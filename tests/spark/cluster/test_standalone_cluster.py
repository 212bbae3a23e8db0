"""The formats on a cluster of Spark: executors are processes of their own, and one is killed in the middle of a
write."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.malamute.restartable_broker import RestartableNatsServer
from tests.support.processes import task_workers
from tests.support.spark.sink_harness import counts, flights, verdict
from tests.support.spark.standalone import SMALL_BATCHES, StandaloneCluster, submit

SCRIPT = Path(__file__).parents[1] / "driver_scripts" / "on_cluster.py"
PATIENCE = 240.0
ROWS, PARTITIONS = 8_000, 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_an_executor_that_is_killed_in_the_middle_of_a_write_loses_and_doubles_nothing(
    cluster: StandaloneCluster, nats_server: NatsServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    options = {
        "url": nats_server.url, "flightLog": str(log), "flightLogPayload": "all", "announce": "true",
        "sourceName": "orders-of-a-cluster",
    }  # fmt: skip
    given: dict[str, Any] = {"folder": str(tmp_path), "options": options, "rows": ROWS, "partitions": PARTITIONS}
    given["steps"] = ["publish", "read_stream", "discover"]
    with RestartableNatsServer(nats_server) as room:
        room.create("ORDERS", "orders.>")
        stored = room.counter("ORDERS")
        with submit(cluster, tmp_path, SCRIPT, json.dumps(given), conf=SMALL_BATCHES) as application:

            def at_work() -> psutil.Process | None:
                assert application.process.poll() is None, application.text()[-6_000:]
                busy = [one for one in cluster.executors() if task_workers(one.pid, room.port)]
                return busy[0] if len(busy) == cluster.workers and stored() >= ROWS // PARTITIONS else None

            executor: psutil.Process = eventually(at_work, "both executors publish", PATIENCE)
            executor.kill()
            eventually(lambda: not executor.is_running(), "the executor has ended")
            assert stored() < ROWS
            (tmp_path / "open").touch()
            application.wait(PATIENCE)
        found = verdict(room, "ORDERS", log, sent=ROWS).raise_faults()
    assert found.acked == ROWS
    assert max(counts(flights(log), "task_attempt")) >= 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["discovered"]["source"] >= 1
    written = pq.read_table(tmp_path / "read").to_pylist()
    assert Counter(row["value"] for row in written) == Counter(f"order {n}" for n in range(ROWS))
