"""Streaming writes of ``mamapub`` against real servers, and batch writes inside ``foreachBatch``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from mama_spark.testing.oracle import Verdict
from mama_spark.testing.waiting import eventually
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.malamute.restartable_broker import RestartableBroker, RestartableNatsServer
from tests.support.nats.nats_servers import Admin
from tests.support.processes import full_disk
from tests.support.spark.sink_harness import WriteGate, counts, flights, small_batches, verdict

SCHEMA = "topic STRING, value STRING"


#: What does not depend on the middleware is shown on one or the other.
on_nats = pytest.mark.parametrize("room", ["nats"], indirect=True)
on_malamute = pytest.mark.parametrize("room", ["malamute"], indirect=True)


class Case:
    """One stream's input folder, checkpoint, flight log and options."""

    def __init__(self, spark: SparkSession, room: RestartableBroker, folder: Path, name: str = "orders") -> None:
        self.spark, self.room, self.folder, self.name = spark, room, folder, name
        self.stored = room.counter(name.upper())
        self.log, self.checkpoint, self.input = (folder / part for part in ("log", "checkpoint", "input"))
        self.options = {
            **room.options(name.upper()),
            "flightLog": str(self.log),
            "flightLogPayload": "all",
            "waitTimeout": "60s",  # a broker that stands still for a while is sent nothing twice
        }
        self.input.mkdir(parents=True)
        self.rows = 0

    def add(self, n: int, topic: str | None = None) -> None:
        """One more file of ``n`` rows, different from all others."""
        numbers = range(self.rows, self.rows + n)
        self.rows += n
        topics = (json.dumps(topic or f"{self.name}.r{i % 5}") for i in numbers)
        lines = (f'{{"topic": {t}, "value": "{self.name} {i}"}}' for t, i in zip(topics, numbers, strict=True))
        hidden = self.input / f".{self.rows:09d}"
        hidden.write_text("\n".join([*lines, ""]))
        os.utime(hidden, (self.rows, self.rows))  # files are read by age, and these are made within one tick
        hidden.rename(self.input / f"{self.rows:09d}.json")

    def read(self, partitions: int = 2) -> DataFrame:
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.input)).repartition(partitions)

    def start(self, partitions: int = 2, rows: DataFrame | None = None, /, **options: str) -> StreamingQuery:
        """Publish what is there, a file a micro-batch, and end."""
        frame = self.read(partitions) if rows is None else rows
        writer = frame.writeStream.format("mamapub").options(**{**self.options, **options})
        return (
            writer.outputMode("append")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, partitions: int = 2, **options: str) -> StreamingQuery:
        query = self.start(partitions, **options)
        assert query.awaitTermination(240)
        return query

    def fail(self, partitions: int = 2, **options: str) -> str:
        """Run until it fails; the reason."""
        query = self.start(partitions, **options)
        with pytest.raises(StreamingQueryException) as e:
            query.awaitTermination(240)
        return str(e.value)

    def conserved(self, sent: int) -> Verdict:
        return verdict(self.room, self.name.upper(), self.log, sent=sent).raise_faults()


@pytest.fixture
def case(spark: SparkSession, room: RestartableBroker, tmp_path: Path) -> Case:
    room.create("ORDERS", "orders.>")
    return Case(spark, room, tmp_path)


@pytest.fixture
def admin(room: RestartableBroker) -> Admin:
    assert isinstance(room, RestartableNatsServer)
    return room.admin


@on_nats
def test_micro_batches_without_rows_publish_nothing_and_commit(case: Case) -> None:
    """Of an empty file, and of one of which no row is left."""
    case.add(10)
    (case.input / "empty.json").write_text("")
    case.add(10, "orders.none")
    case.add(10)
    rows = case.read().where("topic <> 'orders.none'")
    query = case.start(2, rows)
    assert query.awaitTermination(240)
    assert len([p for p in query.recentProgress if p.batchId >= 0]) >= 3
    assert case.stored() == 20
    assert {m.topic for m in case.room.messages("ORDERS")} == {f"orders.r{i}" for i in range(5)}
    assert counts(flights(case.log), "event") == {"acked": 20}


@on_nats
def test_failed_batch_and_its_restarts_are_in_the_log_and_each_row_is_stored_once(case: Case, admin: Admin) -> None:
    case.add(50)
    case.add(40)
    admin.update_stream("ORDERS", max_msgs=70, discard="new")
    error = case.fail()
    assert "20 rows were not published: 40 rows: 20 acked, 20 failed" in error
    assert "maximum messages exceeded" in error
    assert str(case.log) in error
    admin.update_stream("ORDERS", max_msgs=-1)
    case.run()
    case.conserved(90)
    good, failed = flights(case.log), flights(case.log, committed=False)
    assert counts(good, "batch_id") == {0: 50, 1: 40}
    assert counts(good, "duplicate") == {False: 70, True: 20}
    assert counts(failed, "batch_id") == {1: 40}
    assert counts(failed, "event") == {"acked": 20, "completed_exceptionally": 20}
    assert counts(failed, "task_attempt") == {0: 40}, "what the broker refuses is not tried again"
    case.add(70)
    query = case.run()
    assert sum(p.numInputRows for p in query.recentProgress) == 70
    case.conserved(160)
    log = flights(case.log)
    assert counts(log, "batch_id") == {0: 50, 1: 40, 2: 70}
    assert counts(log, "query_id") == {str(query.id): 160}
    assert len(counts(log, "run_id")) == 3


@on_malamute
def test_stopped_query_loses_nothing_after_its_restart(case: Case) -> None:
    case.add(100)
    case.add(3_000)
    gate = WriteGate(case.folder)
    rows = case.read().mapInArrow(gate.before_the_end, SCHEMA)
    with small_batches(case.spark), gate:
        query = case.start(2, rows)
        eventually(lambda: case.stored() > 1_600 or not query.isActive, "the second batch is under way", 120)
        assert query.isActive
        query.stop()
    assert case.start(2, rows).awaitTermination(240)
    case.conserved(3_100)
    assert counts(flights(case.log), "batch_id") == {0: 100, 1: 3_000}
    assert counts(flights(case.log), "duplicate")[True] > 1_400


def each_batch(case: Case, version: dict[int, int], **options: str) -> None:
    """``foreachBatch`` that publishes every batch as ``version`` says."""

    def publish(rows: DataFrame, batch_id: int) -> None:
        txn = {"txnAppId": "orders-job", "txnVersion": str(version.get(batch_id, batch_id))}
        rows.write.format("mamapub").options(**{**case.options, **txn, **options}).mode("append").save()
        rows.write.format("mamapub").options(**{**case.options, **txn, **options}).mode("append").save()

    query = case.read().writeStream.foreachBatch(publish).option("checkpointLocation", str(case.checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(240)


@on_nats
def test_repeated_version_in_foreach_batch_stores_and_commits_once(case: Case) -> None:
    case.add(30)
    case.add(20)
    each_batch(case, {})
    case.conserved(50)
    assert counts(flights(case.log), "batch_id") == {0: 30, 1: 20}
    again = flights(case.log, committed=False)
    assert counts(again, "batch_id") == {0: 30, 1: 20}
    assert counts(again, "duplicate") == {True: 50}
    assert DeltaTable(str(case.log)).transaction_version("orders-job") == 1
    assert set(counts(flights(case.log, committed=None), "query_id")) == {None}


@on_malamute
def test_foreach_batch_without_a_version_takes_no_identity_from_the_stream(case: Case) -> None:
    """A batch write inside ``foreachBatch`` sees the stream's query and batch id, and must not use them: two writes of
    one batch would be taken for one."""
    case.add(100)
    seen: list[Any] = []

    def publish(rows: DataFrame, batch_id: int) -> None:
        seen.append(batch_id)
        for _ in range(2):
            rows.write.format("mamapub").options(**case.options).mode("append").save()

    query = case.read().writeStream.foreachBatch(publish).option("checkpointLocation", str(case.checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(240)
    assert seen == [0]
    assert case.stored() == 200
    assert counts(flights(case.log), "event") == {"acked": 200}
    assert len(counts(flights(case.log), "run_id")) == 2


@pytest.mark.thorough
@on_nats
@pytest.mark.parametrize(
    ("java", "others", "largest"), [(False, True, 2_000), (True, False, 50), (True, True, 50)],
    ids=["flight log", "checkpoint", "both"],
)  # fmt: skip
def test_full_disk_ends_the_query_with_the_reason_and_loses_nothing(
    case: Case, java: bool, others: bool, largest: int
) -> None:
    """The checkpoint is written by Spark's JVM, the flight log by Python; either file is too large for the disk."""
    case.add(100)
    case.run()
    case.add(50)
    gateway = case.spark.sparkContext._gateway
    assert gateway is not None
    with full_disk(gateway.proc.pid, largest, java=java, others=others):
        text = case.fail()
    assert "File too large" in text
    assert java or f"mama_spark.contracts.errors.Unavailable: writing {case.log}" in text
    assert case.stored() == (100 if java else 150)
    case.run()
    case.conserved(150)
    assert counts(flights(case.log), "batch_id") == {0: 100, 1: 50}
    assert counts(flights(case.log), "duplicate").get(True, 0) == (0 if java else 50)


@on_nats
def test_a_second_query_on_a_checkpoint_takes_the_place_of_the_first_and_stores_nothing_twice(case: Case) -> None:
    """As it happens where a cell of a notebook is run again."""

    def start() -> StreamingQuery:
        writer = case.read().writeStream.format("mamapub").options(**case.options)
        return writer.option("checkpointLocation", str(case.checkpoint)).start()

    case.add(40)
    first = start()
    eventually(lambda: case.stored() == 40 or not first.isActive, "the first query has published", 240)
    second = start()
    eventually(lambda: not first.isActive, "the first query has ended", 240)
    assert first.exception() is None
    case.add(30)
    eventually(lambda: case.stored() == 70 or not second.isActive, "the second query has published", 240)
    second.processAllAvailable()
    second.stop()
    case.conserved(70)
    assert counts(flights(case.log), "batch_id") == {0: 40, 1: 30}


@on_nats
def test_small_files_of_the_flight_log_are_merged_in_every_so_many_commits(case: Case) -> None:
    for _ in range(3):
        case.add(20)
    case.run(flightLogCompactEvery="2")
    files = DeltaTable(str(case.log)).file_uris()
    assert len([path for path in files if "/part-" in path]) == 1  # of the first two micro-batches
    assert counts(flights(case.log), "batch_id") == {0: 20, 1: 20, 2: 20}
