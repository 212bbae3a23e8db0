"""What is killed, cancelled or full in the middle of a write loses no row: the flight log agrees with the broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.malamute.restartable_broker import RestartableBroker
from tests.support.spark.sink_harness import (
    PATIENCE,
    Background,
    InterruptedWrite,
    counts,
    flights,
    small_batches,
    verdict,
)

pytestmark = pytest.mark.timeout(900)

#: What does not depend on the middleware is shown on one.
once = pytest.mark.parametrize("room", ["nats"], indirect=True)


@pytest.fixture
def case(spark: SparkSession, room: RestartableBroker, tmp_path: Path) -> Iterator[InterruptedWrite]:
    room.create("ORDERS", "orders.>")
    with small_batches(spark):
        yield InterruptedWrite(spark, room, tmp_path)


def conserved(case: InterruptedWrite, sent: int, *, exactly_once: bool = True) -> None:
    verdict(case.room, "ORDERS", case.log, sent=sent, exactly_once=exactly_once).raise_faults()


@pytest.mark.thorough
@once
def test_killed_worker_is_replaced_and_every_row_is_stored_once(case: InterruptedWrite, background: Background) -> None:
    with case.gate:
        writing = background(lambda: case.write(case.held(case.rows(4_000))))
        case.under_way(writing, 2_600)  # more than 500 of either partition
        os.kill(case.workers()[0], signal.SIGKILL)
    writing.result(PATIENCE)
    conserved(case, 4_000)
    log = flights(case.log)
    assert counts(log, "task_attempt") == {0: 2_000, 1: 2_000}
    assert counts(log, "duplicate")[True] > 500


@pytest.mark.parametrize(
    ("room", "options"),
    [
        ("nats", {}),
        pytest.param("nats", {"dedup": "false", "ackMode": "batch"}, marks=pytest.mark.thorough),
        pytest.param("nats", {"dedup": "false", "ackMode": "message"}, marks=pytest.mark.thorough),
        ("malamute", {}),
        pytest.param("malamute", {"dedup": "false"}, marks=pytest.mark.thorough),
    ],
    ids=str,
    indirect=["room"],
)
def test_killed_broker_comes_back_and_nothing_is_lost_in_any_mode(
    case: InterruptedWrite, background: Background, options: dict[str, str]
) -> None:
    """Without ids a message whose acknowledgement was lost is sent, and perhaps stored, once more; never lost. A broker
    of Malamute has what it acknowledged in the store that the next one opens; so are the ids."""
    with case.gate:
        writing = background(lambda: case.write(case.held(case.rows(3_000)), maxRatePerPartition="1500", **options))
        case.under_way(writing, 1_000)
        case.room.kill()
        case.room.start()
    writing.result(PATIENCE)
    conserved(case, 3_000, exactly_once="dedup" not in options)


@pytest.mark.thorough
@once
def test_cancelled_job_leaves_a_true_log_and_the_next_write_works(
    case: InterruptedWrite, background: Background
) -> None:
    txn = {"txnAppId": "nightly", "txnVersion": "7"}
    with case.gate:
        writing = background(lambda: case.write(case.held(case.rows(4_000)), **txn))
        case.under_way(writing, 1_000)
        case.spark.sparkContext.cancelAllJobs()
        with pytest.raises(Exception, match=r"(?i)cancel"):
            writing.result(PATIENCE)
    case.write(case.rows(4_000), **txn)
    conserved(case, 4_000)
    assert counts(flights(case.log), "duplicate")[True] >= 1_000, "what was stored before the end of the first"


# --- a retry that sees its rows in another order ---------------------------------------------------------------


@pytest.mark.parametrize("room", ["malamute"], indirect=True)
def test_retry_in_another_order_loses_nothing_with_default_ids(case: InterruptedWrite) -> None:
    """They name the content: a row number would name another row in the second attempt."""
    n = 2_400
    case.write(case.out_of_order(n, n // 4, 200))
    conserved(case, n)
    log = flights(case.log)
    assert counts(log, "task_attempt") == {1: n}
    assert counts(log, "duplicate")[True] >= n // 4


@pytest.mark.thorough
@once
def test_retry_in_another_order_may_store_packed_rows_twice_and_loses_none(case: InterruptedWrite) -> None:
    """The id of a pack covers its rows and their order: other packs have other ids."""
    n = 60_000
    case.write(case.out_of_order(n, 500, 1_000), pack="lines", packMaxRows="10")
    log = flights(case.log)
    assert (set(counts(log, "event")), sum(log["rows"].to_pylist())) == ({"acked"}, n)
    assert case.stored() > n // 10 + 500  # what the first attempt stored is there beside it


# --- found before the first row, or in time --------------------------------------------------------------------


@once
def test_speculation_without_dedup_is_refused_before_the_first_row(case: InterruptedWrite) -> None:
    case.spark.sparkContext.setLocalProperty("spark.speculation", "true")
    try:
        with pytest.raises(Exception, match=r"spark\.speculation is on and dedup is off"):
            case.write(case.rows(100), dedup="false")
        assert case.stored() == 0
        case.write(case.rows(100))
    finally:
        case.spark.sparkContext.setLocalProperty("spark.speculation", None)  # type: ignore[arg-type]
    assert case.stored() == 100
