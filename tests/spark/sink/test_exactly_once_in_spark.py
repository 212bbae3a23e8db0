"""Option ``exactlyOnce`` in Spark: batches that run again store nothing twice, whatever their partitions."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.sql import DataFrame, SparkSession

from tests.support.nats.forgotten_ids import WINDOW, forget_ids
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import STREAM, rows, values
from tests.support.spark.sink_harness import flights

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


def test_a_batch_that_runs_again_with_other_partitions_publishes_nothing(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    """As after a driver that was killed before Spark's commit: on 2 and 3 partitions."""
    wanted = write_input(tmp_path, 1, 800)
    log, commits = tmp_path / "log", tmp_path / "checkpoint" / "commits"
    options = {"url": nats_server.url, "exactlyOnce": "true", "waitTimeout": "500ms", "flightLog": str(log)}
    for cores in (2, 3):
        rows = spark.readStream.schema("topic STRING, value STRING").json(str(tmp_path / "input")).repartition(cores)
        writer = rows.writeStream.format("mamapub").options(**options).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(PATIENCE)
        assert values(admin.messages(STREAM)) == wanted
        (commits / "0").unlink()
        (commits / ".0.crc").unlink(missing_ok=True)
        forget_ids(admin)
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
            forget_ids(admin)

    source = spark.readStream.schema("topic STRING, value STRING").option("maxFilesPerTrigger", 1)
    frame = source.json(str(tmp_path / "input"))
    query = frame.writeStream.foreachBatch(publish).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    assert values(admin.messages(STREAM)) == wanted
