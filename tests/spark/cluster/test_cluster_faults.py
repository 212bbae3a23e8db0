"""What goes wrong on a cluster of Spark in the middle of writes: workers lost, stages repeated, executors given back,
attempts doubled. The oracle after each."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import pytest
from mama_spark.testing.waiting import eventually

from tests.spark.cluster.conftest import PATIENCE, SCRIPT, Write
from tests.support.spark.sink_harness import SMALL_BATCHES, counts, flights
from tests.support.spark.standalone import submit

pytestmark = [pytest.mark.explore, pytest.mark.timeout(1_800)]


SPECULATION = {
    "spark.speculation": "true", "spark.speculation.interval": "200ms", "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5", "spark.speculation.minTaskRuntime": "1s",
}  # fmt: skip


def test_speculation(write: Callable[..., Write]) -> None:
    """A partition that stands still is published by two attempts, and stored once."""
    one = write(slow=2)
    one.open()
    with one.submit(**SPECULATION) as application:
        application.wait(PATIENCE)
    one.conserved()
    assert 1 in counts(flights(one.log), "task_attempt")


def test_speculation_where_the_stream_forgets_ids_at_once(write: Callable[..., Write]) -> None:
    """With ``exactlyOnce`` one of the two attempts has the partition, and the other waits for it."""
    one = write(slow=2, slow_for=8, options={"exactlyOnce": "true", "waitTimeout": "2s"})
    one.room.admin.update_stream("ORDERS", duplicate_window=100_000_000)
    one.open()
    with one.submit(**SPECULATION) as application:
        application.wait(PATIENCE)
    assert (one.folder / "attempt-1").exists(), "Spark has begun a second attempt"
    one.conserved()


def test_dynamic_allocation(write: Callable[..., Write]) -> None:
    """Executors come for the write, go when it pauses, and come again."""
    one = write(steps=["publish", "pause", "read_stream", "read_batch"], partitions=8)
    conf = {
        "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0", "spark.dynamicAllocation.initialExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2", "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "2s", "spark.executor.cores": "1",
    }  # fmt: skip
    with one.submit(**conf) as application:
        one.busy(application, 500)  # each of two partitions has 400 rows besides those that wait
        one.open()
        eventually((one.folder / "paused").exists, "the write is done", PATIENCE)
        eventually(lambda: not one.cluster.executors(), "all executors are given back", PATIENCE)
        (one.folder / "go").touch()
        application.wait(PATIENCE)
    one.conserved()
    assert one.results()["read"] == one.rows


def test_a_barrier_that_fails_is_written_by_a_second_run(write: Callable[..., Write]) -> None:
    """An executor is lost: Spark gives up all partitions, and does not repeat a barrier that writes."""
    one = write(partitions=2, barrier=True, options={"idPrefix": "orders-of-today"})
    one.room.admin.update_stream("ORDERS", duplicate_window=1_800 * 10**9)
    with one.submit() as application:
        one.busy(application, 2_000)[0].kill()
        text = application.fails(PATIENCE)
    assert "barrier ResultStage" in text, text[-6_000:]
    one.cluster.repair()
    one.open()
    with one.submit() as application:
        application.wait(PATIENCE)
    one.conserved()


def test_two_applications_write_one_stream_and_one_flight_log(write: Callable[..., Write]) -> None:
    """Each has an executor, and one of the two is killed."""
    one = write(rows=4_000, partitions=2)
    one.log.mkdir()
    with contextlib.ExitStack() as stack:
        applications = []
        for number in range(2):
            folder = one.folder / str(number)
            folder.mkdir()
            given = {**one.given, "folder": str(folder), "first": number * 2_000, "rows": 2_000}
            conf = {**SMALL_BATCHES, "spark.cores.max": "1", "spark.executor.cores": "1"}
            applications.append(stack.enter_context(submit(one.cluster, folder, SCRIPT, json.dumps(given), conf=conf)))
        one.busy(applications[0], 500)[0].kill()
        for number, application in enumerate(applications):
            (one.folder / str(number) / "open").touch()
            application.wait(PATIENCE)
    one.conserved()
    assert len(counts(flights(one.log), "run_id")) == 2


def test_half_a_million_rows_through_all_faults(write: Callable[..., Write]) -> None:
    """The server killed twice, both executors, and a worker: nothing lost, nothing doubled, one outcome a row."""
    one = write(rows=500_000, partitions=20, shuffled=True, options={"retryDeadline": "120s", "announce": "true"})
    one.room.admin.update_stream("ORDERS", duplicate_window=1_800 * 10**9)
    with one.submit(**{"spark.task.maxFailures": "12", "spark.stage.maxConsecutiveAttempts": "12"}) as application:
        one.busy(application, 5_000)[0].kill()  # its shuffle is lost: stages are repeated
        one.busy(application, 10_000)
        one.restart_server()
        one.busy(application, 15_000)[1].kill()
        one.open()
        one.busy(application, 100_000, executors=1)
        one.cluster.kill_worker(1)
        one.cluster.start_worker(1)
        one.busy(application, 200_000, executors=1)
        one.restart_server()
        text = application.wait(1_200)
    assert "FetchFailed" in text, text[-6_000:]
    found = one.conserved()
    print(f"{found.rows:,} rows, {found.acked:,} acked, {found.duplicates} doubled, {found.faults}")
