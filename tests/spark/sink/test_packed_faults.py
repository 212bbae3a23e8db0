"""What is killed in the middle of a write of packed messages loses no row: counted in rows, on every middleware."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mama_spark
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from mama_spark.testing.waiting import eventually
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.support.malamute.restartable_broker import RestartableBroker, RestartableMalamuteBroker
from tests.support.processes import task_workers
from tests.support.spark.packed_harness import packed_verdict
from tests.support.spark.sink_harness import flights

PATIENCE = 240.0
pytestmark = pytest.mark.timeout(900)
N = 12_000
ROWS = 10  # of a pack

Background = Callable[[Callable[[], Any]], Future[Any]]


@pytest.fixture
def background(spark: SparkSession) -> Iterator[Background]:
    """Run something in a thread."""
    with ThreadPoolExecutor(2, initializer=mama_spark.register, initargs=(spark,)) as threads:
        yield threads.submit


class Case:
    """Rows that are published slowly enough to be interrupted, ten in a message."""

    def __init__(self, spark: SparkSession, room: RestartableBroker, folder: Path) -> None:
        self.spark, self.room = spark, room
        self.log = folder / "log"
        self.options = {**room.options("ORDERS"), "flightLog": str(self.log), "flightLogPayload": "all",
                        "packMaxRows": str(ROWS)}  # fmt: skip
        self.stored = room.counter("ORDERS")

    def rows(self) -> DataFrame:
        return self.spark.range(0, N, 1, 2).selectExpr(
            "concat('orders.r', cast(id % 5 as string)) AS topic", "concat('order ', id) AS value"
        )

    def write(self, rows: DataFrame, **options: str) -> None:
        rows.write.format("mamapub").options(**{**self.options, **options}).mode("append").save()

    def under_way(self, writing: Future[Any], packs: int = 100) -> None:
        def enough() -> bool:
            if writing.done():
                writing.result()  # raises what ended it
            return self.stored() >= packs

        eventually(enough, f"{packs} packs are stored", PATIENCE)

    def conserved(self, sent: int, *, exactly_once: bool = True) -> None:
        packed_verdict(self.room, "ORDERS", self.log, sent=sent, exactly_once=exactly_once).raise_faults()


@pytest.fixture
def case(spark: SparkSession, room: RestartableBroker, tmp_path: Path) -> Case:
    room.create("ORDERS", "orders.>")
    return Case(spark, room, tmp_path)


def total(log: pa.Table, column: str) -> dict[Any, int]:
    """Rows by the values of a column."""
    table = log.group_by(column).aggregate([("rows", "sum")])
    return dict(zip(table[column].to_pylist(), table["rows_sum"].to_pylist(), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("room", ["malamute"], indirect=True)
def test_killed_worker_is_replaced_and_every_packed_row_is_stored_once(case: Case, background: Background) -> None:
    writing = background(lambda: case.write(case.rows(), maxRatePerPartition="75", pack="lines"))
    case.under_way(writing)
    assert isinstance(case.room, RestartableMalamuteBroker)
    case.room.pause()  # so that no task ends before it is killed
    interrupted = case.stored() < N // ROWS
    jvm = case.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    for worker in task_workers(jvm, case.room.port):
        os.kill(worker, signal.SIGKILL)
    case.room.resume()
    writing.result(PATIENCE)
    case.conserved(N)
    log = flights(case.log)
    assert not interrupted or total(log, "task_attempt")[1] in (N // 2, N)
    assert len(log) == N // ROWS


@pytest.mark.thorough
@pytest.mark.parametrize(("room", "dedup"), [("nats", "false"), ("malamute", "true")], indirect=["room"])
def test_killed_broker_comes_back_and_no_packed_row_is_lost(case: Case, background: Background, dedup: str) -> None:
    writing = background(lambda: case.write(case.rows(), maxRatePerPartition="300", pack="arrow", dedup=dedup))
    case.under_way(writing)
    case.room.kill()
    case.room.start()
    writing.result(PATIENCE)
    case.conserved(N, exactly_once=dedup == "true")


@pytest.mark.thorough
@pytest.mark.parametrize("room", ["nats"], indirect=True)
def test_retry_in_another_order_may_store_packed_rows_twice_and_loses_none(case: Case) -> None:
    """The id of a pack covers its rows and their order: other packs have other ids."""
    stored, n = case.stored, 60_000

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0
        order = range(n) if first else range(n - 1, -1, -1)
        for start in range(0, n, 1_000):
            if first and start == n * 3 // 4:
                eventually(lambda: stored() >= 500, "the first attempt published its rows", 60)
                raise RuntimeError("the first attempt ends here")
            chosen = list(order[start : start + 1_000])
            yield pa.RecordBatch.from_pydict(
                {"topic": [f"orders.r{i % 5}" for i in chosen], "value": [f"order {i}" for i in chosen]}
            )

    one = case.spark.range(0, 1, 1, 1)
    case.write(one.mapInArrow(fails_once, "topic string, value string"), pack="lines")
    case.conserved(n, exactly_once=False)
    log = flights(case.log)
    assert total(log, "task_attempt") == {1: n}
    assert pc.sum(log["rows"]).as_py() == n
    assert case.stored() > n // ROWS + 500  # what the first attempt stored is there beside it
