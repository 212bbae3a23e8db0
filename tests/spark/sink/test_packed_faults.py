"""What is killed in the middle of a write of packed messages loses no row: counted in rows, on every middleware."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from tests.support.malamute.restartable_broker import RestartableBroker, RestartableMalamuteBroker
from tests.support.spark.packed_harness import packed_verdict
from tests.support.spark.sink_harness import PATIENCE, Background, InterruptedWrite, flights

pytestmark = pytest.mark.timeout(900)
N = 12_000
ROWS = 10  # of a pack


@pytest.fixture
def case(spark: SparkSession, room: RestartableBroker, tmp_path: Path) -> InterruptedWrite:
    room.create("ORDERS", "orders.>")
    return InterruptedWrite(spark, room, tmp_path, packMaxRows=str(ROWS))


def conserved(case: InterruptedWrite, sent: int, *, exactly_once: bool = True) -> None:
    packed_verdict(case.room, "ORDERS", case.log, sent=sent, exactly_once=exactly_once).raise_faults()


def total(log: pa.Table, column: str) -> dict[Any, int]:
    """Rows by the values of a column."""
    table = log.group_by(column).aggregate([("rows", "sum")])
    return dict(zip(table[column].to_pylist(), table["rows_sum"].to_pylist(), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("room", ["malamute"], indirect=True)
def test_killed_worker_is_replaced_and_every_packed_row_is_stored_once(
    case: InterruptedWrite, background: Background
) -> None:
    writing = background(lambda: case.write(case.rows(N), maxRatePerPartition="75", pack="lines"))
    case.under_way(writing, 100)
    assert isinstance(case.room, RestartableMalamuteBroker)
    case.room.pause()  # so that no task ends before it is killed
    interrupted = case.stored() < N // ROWS
    for worker in case.workers():
        os.kill(worker, signal.SIGKILL)
    case.room.resume()
    writing.result(PATIENCE)
    conserved(case, N)
    log = flights(case.log)
    assert not interrupted or total(log, "task_attempt")[1] in (N // 2, N)
    assert len(log) == N // ROWS


@pytest.mark.thorough
@pytest.mark.parametrize(("room", "dedup"), [("nats", "false"), ("malamute", "true")], indirect=["room"])
def test_killed_broker_comes_back_and_no_packed_row_is_lost(
    case: InterruptedWrite, background: Background, dedup: str
) -> None:
    writing = background(lambda: case.write(case.rows(N), maxRatePerPartition="300", pack="arrow", dedup=dedup))
    case.under_way(writing, 100)
    case.room.kill()
    case.room.start()
    writing.result(PATIENCE)
    conserved(case, N, exactly_once=dedup == "true")


@pytest.mark.thorough
@pytest.mark.parametrize("room", ["nats"], indirect=True)
def test_retry_in_another_order_may_store_packed_rows_twice_and_loses_none(case: InterruptedWrite) -> None:
    """The id of a pack covers its rows and their order: other packs have other ids."""
    n = 60_000
    case.write(case.out_of_order(n, 500, 1_000), pack="lines")
    conserved(case, n, exactly_once=False)
    log = flights(case.log)
    assert total(log, "task_attempt") == {1: n}
    assert pc.sum(log["rows"]).as_py() == n
    assert case.stored() > n // ROWS + 500  # what the first attempt stored is there beside it
