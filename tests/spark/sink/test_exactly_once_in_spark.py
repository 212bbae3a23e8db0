"""Option ``exactlyOnce`` in Spark: batches that run again store nothing twice, whatever their partitions."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from runpy import run_path

import pyarrow.compute as pc
import pytest
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually
from pyspark.sql import DataFrame, SparkSession

from tests.support.nats.nats_servers import Admin
from tests.support.processes import descendants, jvm_of, none_alive
from tests.support.spark.attempts import STREAM, rows, values
from tests.support.spark.sink_harness import flights
from tests.support.spark.subscribe_harness import publish

SCRIPT = Path(__file__).parents[1] / "driver_scripts" / "repeated.py"
WINDOW = 100_000_000
PATIENCE = 240


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    """With a stream, which tests that share the server do not see."""
    with Admin(nats_server.url) as admin:
        admin.create_stream(STREAM, ["once.>"], duplicate_window=WINDOW)
        yield admin
        for name in (STREAM, "MAMA_BATCHES"):
            admin.api(f"STREAM.DELETE.{name}")


def write_input(folder: Path, files: int, n: int) -> Counter[tuple[str, bytes]]:
    """Files whose rows occur four times each, mixed; all rows."""
    (folder / "input").mkdir()
    chance = random.Random(1)
    every: Counter[tuple[str, bytes]] = Counter()
    for number in range(files):
        some = rows(number * n, (number + 1) * n, copies=4)
        chance.shuffle(some)
        every.update(some)
        file = folder / "input" / f"{number}.json"
        lines = [json.dumps({"topic": topic, "value": value.decode()}) for topic, value in some]
        file.write_text("\n".join([*lines, ""]))
        os.utime(file, (number + 1, number + 1))
    return every


def await_forgotten_ids(admin: Admin) -> None:
    """Until the server takes an id again that was stored after all others: then it knows none of them any more."""
    first = int(admin.info(STREAM)["state"]["last_seq"]) + 1
    probe = [("once.probe", b"", {"Nats-Msg-Id": f"probe {first}"})]

    def last() -> int:
        publish(admin, probe)
        return int(admin.info(STREAM)["state"]["last_seq"])

    eventually(lambda: last() > first, "the server has forgotten the ids of the batch")


def published(admin: Admin) -> Counter[tuple[str, bytes]]:
    """Rows that are stored, without what :func:`await_forgotten_ids` stored."""
    return values(message for message in admin.messages(STREAM) if message.topic != "once.probe")


def test_a_batch_that_runs_again_with_other_partitions_publishes_nothing(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    """As after a driver that was killed before Spark's commit: on 2 and 3 partitions."""
    wanted, start = write_input(tmp_path, 1, 800), run_path(str(SCRIPT))["start"]
    log, commits = tmp_path / "log", tmp_path / "checkpoint" / "commits"
    options = {"url": nats_server.url, "exactlyOnce": "true", "waitTimeout": "500ms", "flightLog": str(log)}
    for cores in (2, 3):
        query = start(spark, {"folder": str(tmp_path), "options": options, "cores": cores})
        assert query.awaitTermination(PATIENCE)
        assert published(admin) == wanted
        (commits / "0").unlink()
        (commits / ".0.crc").unlink(missing_ok=True)
        await_forgotten_ids(admin)
    assert pc.sum(pc.equal(flights(log, committed=None)["sends"], 0)).as_py() == 800
    assert len(flights(log)) == 800


@pytest.mark.thorough
def test_a_batch_write_in_foreach_batch_that_is_repeated_publishes_nothing(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    wanted = write_input(tmp_path, 2, 200)

    def publish(frame: DataFrame, batch: int) -> None:
        given = {"url": nats_server.url, "exactlyOnce": "true", "waitTimeout": "500ms", "txnAppId": "job"}
        for partitions in (2, 3):
            rows = frame.repartition(partitions)
            rows.write.format("mamapub").options(**given, txnVersion=str(batch)).mode("append").save()
            await_forgotten_ids(admin)

    source = spark.readStream.schema("topic STRING, value STRING").option("maxFilesPerTrigger", 1)
    frame = source.json(str(tmp_path / "input"))
    query = frame.writeStream.foreachBatch(publish).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    assert published(admin) == wanted


class Driver:
    """A process that runs the script, in a session of its own."""

    def __init__(self, folder: Path, options: dict[str, str], cores: int) -> None:
        self.output = folder / f"driver-{cores}.out"
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        given = json.dumps({"folder": str(folder), "options": options, "cores": cores})
        with self.output.open("wb") as out:
            command = [sys.executable, str(SCRIPT), given]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)

    def kill_when(self, ready: Callable[[], bool]) -> None:
        """SIGKILL to the JVM, whose workers end with it."""
        eventually(lambda: ready() or self.process.poll() is not None, "messages are stored", PATIENCE)
        assert self.process.poll() is None, self.output.read_text()[-3_000:]
        jvm = int(eventually(lambda: jvm_of(self.process.pid), "the driver has a JVM"))
        family = descendants(jvm)
        os.kill(jvm, signal.SIGKILL)
        self.process.wait(PATIENCE)
        eventually(lambda: none_alive(family), "the workers ended with their driver", PATIENCE)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.explore
@pytest.mark.timeout(1_200)
def test_drivers_killed_on_two_four_and_three_cores_store_each_row_once(
    nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    wanted = write_input(tmp_path, 3, 2_000)
    options = {
        "url": nats_server.url, "exactlyOnce": "true", "waitTimeout": "1s", "maxRatePerPartition": "400",
        "flightLog": str(tmp_path / "log"),
    }  # fmt: skip

    def stored() -> int:
        return int(admin.info(STREAM)["state"]["messages"])

    for cores in (2, 4, 3):
        enough, driver = stored() + 400, Driver(tmp_path, options, cores)
        try:
            driver.kill_when(partial(lambda n: stored() > n, enough))
        finally:
            driver.end()
    last = Driver(tmp_path, options, 2)
    try:
        assert last.process.wait(PATIENCE) == 0, last.output.read_text()[-3_000:]
    finally:
        last.end()
    assert values(admin.messages(STREAM)) == wanted
    assert len(flights(tmp_path / "log")) == sum(wanted.values())
