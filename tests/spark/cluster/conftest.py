"""A cluster of Spark, and writes on it that tests interrupt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.oracle import Verdict
from mama_spark.testing.waiting import eventually

from tests.support.malamute.restartable_broker import RestartableNatsServer
from tests.support.processes import task_workers
from tests.support.spark.sink_harness import SMALL_BATCHES, verdict
from tests.support.spark.standalone import Application, StandaloneCluster, submit

SCRIPT = Path(__file__).parents[1] / "driver_scripts" / "on_cluster.py"
PATIENCE = 600.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def cluster(shared: StandaloneCluster) -> StandaloneCluster:
    """Complete again, whatever the test before did."""
    shared.repair()
    return shared


class Write:
    """One write on the cluster, with what tests do to it."""

    def __init__(self, cluster: StandaloneCluster, room: RestartableNatsServer, folder: Path, **given: Any) -> None:
        self.cluster, self.room, self.folder, self.log = cluster, room, folder, folder / "log"
        options = {"url": room.server.url, "flightLog": str(self.log), "flightLogPayload": "all"}
        options |= given.pop("options", {})
        self.rows = int(given.get("rows", 8_000))
        self.given = {"folder": str(folder), "options": options, "rows": self.rows, "partitions": 4, **given}
        self.given.setdefault("steps", ["publish"])
        room.create("ORDERS", "orders.>")
        self.stored = room.counter("ORDERS")

    def submit(self, **conf: str) -> Application:
        return submit(self.cluster, self.folder, SCRIPT, json.dumps(self.given), conf={**SMALL_BATCHES, **conf})

    def open(self) -> None:
        """The last rows of each partition may go."""
        (self.folder / "open").touch()

    def busy(self, application: Application, least: int, executors: int = 2) -> list[psutil.Process]:
        """The executors that publish, when so many do and so much is stored."""

        def found() -> list[psutil.Process]:
            assert application.process.poll() is None, application.text()[-6_000:]
            at_work = [one for one in self.cluster.executors() if task_workers(one.pid, self.room.port)]
            return at_work if len(at_work) >= executors and self.stored() >= least else []

        at_work: list[psutil.Process] = eventually(found, f"{executors} executors publish", PATIENCE)
        return at_work

    def restart_server(self) -> None:
        """Killed, and started again, with its page elsewhere."""
        self.room.kill()
        self.room.start()
        self.stored = self.room.counter("ORDERS")

    def conserved(self) -> Verdict:
        found = verdict(self.room, "ORDERS", self.log, sent=self.rows).raise_faults()
        assert found.acked == self.rows
        assert found.duplicates == 0
        return found

    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "results.json").read_text())
        return found


@pytest.fixture
def write(cluster: StandaloneCluster, nats_server: NatsServer, tmp_path: Path) -> Iterator[Callable[..., Write]]:
    with RestartableNatsServer(nats_server) as room:
        yield lambda **given: Write(cluster, room, tmp_path, **given)
