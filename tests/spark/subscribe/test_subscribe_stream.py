"""Streaming reads of ``mamasub``: each message once, whatever happens in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mama_spark
import pyarrow as pa
import pytest
from mama_spark.nats.server.nats_server import NatsServer
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.support.nats.nats_servers import Admin
from tests.support.spark.subscribe_harness import ReadQuery, plain, store


@pytest.fixture
def case(spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path) -> ReadQuery:
    admin.create_stream("ORDERS", ["orders.>"])
    return ReadQuery(spark, tmp_path, url=nats_server.url, topics="orders.>")


def offsets(case: ReadQuery) -> list[dict[str, Any]]:
    """The end of each batch, as the checkpoint has it."""
    files = sorted((int(f.name), f) for f in (case.checkpoint / "offsets").iterdir() if f.name.isdigit())
    return [json.loads(f.read_text().splitlines()[2]) for _, f in files]


def upto(n: int) -> list[int]:
    return list(range(1, n + 1))


def test_restart_from_a_checkpoint_goes_on_behind_the_last_row(case: ReadQuery, admin: Admin) -> None:
    store(admin, "ORDERS", plain("orders.a", 500))
    case.run()
    assert case.sequences() == upto(500)
    store(admin, "ORDERS", plain("orders.b", 300))
    query = case.run(startingOffsets="latest")  # the checkpoint wins
    assert case.sequences() == upto(800)
    assert sum(p.numInputRows for p in query.recentProgress) == 300


def test_available_now_ends_at_what_was_there_in_batches_of_a_limit_that_streams_share(
    case: ReadQuery, admin: Admin
) -> None:
    """And the progress of the query tells the lag."""
    admin.create_stream("TRADES", ["trades.>"])
    store(admin, "ORDERS", plain("orders.a", 250))
    store(admin, "TRADES", plain("trades.a", 50))
    query = case.run(topics="orders.>,trades.>", maxOffsetsPerTrigger="100")
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [100, 100, 100]
    ends = [{s: p["next"] - 1 for s, p in offset.items()} for offset in offsets(case)]
    assert ends == [{"ORDERS": 50, "TRADES": 50}, {"ORDERS": 150, "TRADES": 50}, {"ORDERS": 250, "TRADES": 50}]
    assert (case.sequences("ORDERS"), case.sequences("TRADES")) == (upto(250), upto(50))
    lags = [mama_spark.lag(progress) for progress in query.recentProgress]
    assert lags[:3] == [{"ORDERS": left, "TRADES": 0} for left in (200, 100, 0)]
    assert mama_spark.lag(query) == lags[-1]


def braked(rows: DataFrame, brake: Path) -> DataFrame:
    """Rows that cannot be written while there is a file ``brake``."""
    brake.touch()

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if brake.exists():
                raise RuntimeError("this batch is not to be written")
            yield batch

    return rows.select("stream", "sequence").mapInArrow(write, "stream string, sequence long")


@pytest.mark.thorough
def test_first_batch_that_failed_is_run_again_from_where_it_began(case: ReadQuery, admin: Admin) -> None:
    """Spark asks for the first offset again after a restart; ``earliest`` has moved by then, and that is a loss."""
    store(admin, "ORDERS", plain("orders.a", 100))
    brake = case.folder / "brake"
    frame = braked(case.read(), brake)
    assert "not to be written" in case.fail(frame)
    admin.api("STREAM.PURGE.ORDERS", {"seq": 31})
    brake.unlink()
    assert "stream 'ORDERS': 30 sequences 1 to 30: deleted before they were read" in case.fail(frame)
    case.run(case.read(failOnDataLoss="false"))
    assert case.sequences() == list(range(31, 101))


def test_failed_task_is_tried_again_and_leaves_each_row_once(case: ReadQuery, admin: Admin) -> None:
    store(admin, "ORDERS", plain("orders.a", 300))

    def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for i, batch in enumerate(batches):
            yield batch
            if i == 0 and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt ends here")

    rows = case.read(minPartitions="3").select("stream", "sequence")
    case.run(rows.mapInArrow(dies_once, "stream string, sequence bigint"))
    assert case.sequences() == upto(300)
