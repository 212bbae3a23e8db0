"""The readers of ``mamasub`` as Spark calls them, over the in-memory log: outages, losses, plans, tasks."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from mama_spark.contracts.errors import ConfigError, DataLost, SchemaError, Unavailable
from mama_spark.memory import MemoryBroker
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.register import sized_for
from mama_spark.spark.subscribe import task_ranges
from mama_spark.spark.subscribe.data_source import MamaSubReader, MamaSubStreamReader
from mama_spark.spark.subscribe.plan_ahead import PlanAhead
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.testing.waiting import eventually
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from tests.support.spark.memory_harness import FilledLog


def delete(log: FilledLog, *sequences: int) -> None:
    MemoryBroker.get(log.name).delete(sequences)


def stream_of(log: FilledLog, **options: str) -> MamaSubStreamReader:
    return log.source(**options).streamReader(SCHEMA)


def read(reader: MamaSubReader | MamaSubStreamReader, tasks: list[Any]) -> list[int]:
    """As on executors: reader and tasks arrive pickled."""
    there: MamaSubReader = pickle.loads(pickle.dumps(reader))
    return [s for t in tasks for b in there.read(pickle.loads(pickle.dumps(t))) for s in b["sequence"].to_pylist()]


def upto(n: int) -> list[int]:
    return list(range(1, n + 1))


def test_micro_batches_follow_each_other_without_gap_or_overlap(log: FilledLog) -> None:
    log.put(25)
    stream = stream_of(log, maxOffsetsPerTrigger="10")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    at, seen = stream.initialOffset(), []
    while (end := stream.latestOffset(at, limit)) != at:
        seen.append(read(stream, stream.partitions(at, end)))
        at = end
    assert seen == [upto(10), list(range(11, 21)), list(range(21, 26))]
    assert stream.partitions(at, at) == []
    assert stream.reportLatestOffset() == {log.name: {"next": 26, "identity": at[log.name]["identity"]}}


def test_batch_without_records_reads_nothing(log: FilledLog) -> None:
    log.put(3)
    reader = log.source(startingOffsets=f'{{"{log.name}": -1}}').reader(SCHEMA)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []  # what Spark makes of no tasks


# --- outages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lasts", [False, True])
def test_outage_is_waited_for_on_the_driver_and_in_tasks_and_an_error_if_it_lasts(log: FilledLog, lasts: bool) -> None:
    log.put(10)
    stream = stream_of(log, waitTimeout="200ms" if lasts else "30s")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    tasks = stream.partitions(start, end)
    memory = MemoryBroker.get(log.name)
    questions: list[Callable[[], bool]] = [
        lambda: stream.latestOffset(start, ReadAllAvailable()) == end,
        lambda: read(stream, tasks) == upto(10),
    ]
    for question in questions:
        memory.up = False
        if lasts:
            with pytest.raises(Unavailable, match="is down"):
                question()
        else:
            threading.Timer(0.3, setattr, (memory, "up", True)).start()
            assert question()


# --- losses ----------------------------------------------------------------------------------------------------

Damage = Callable[[FilledLog], None]


def again(log: FilledLog) -> None:
    """Deleted and made again."""
    MemoryBroker.forget(log.name)
    log.rows = 0
    log.put(50)


@pytest.mark.parametrize(
    ("damage", "reason", "left"),
    [
        (lambda b: delete(b, 5), "sequence 5", [n for n in upto(20) if n != 5]),
        (lambda b: delete(b, *range(1, 8)), "7 sequences 1 to 7", list(range(8, 21))),
        (again, "deleted and made again", []),
    ],
    ids=["in the middle", "below", "made again"],
)
@pytest.mark.parametrize("moment", ["planning", "reading"])
def test_loss_between_offset_and_rows_is_found_whenever_it_happens(
    log: FilledLog, caplog: pytest.LogCaptureFixture, moment: str, damage: Damage, reason: str, left: list[int]
) -> None:
    log.put(20)
    strict, lax = stream_of(log), stream_of(log, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    tasks = strict.partitions(start, end) if moment == "reading" else None
    damage(log)
    with pytest.raises(DataLost, match=reason) as e:
        read(strict, strict.partitions(start, end) if tasks is None else tasks)
    assert log.name in str(e.value)
    caplog.set_level(logging.ERROR, "mama_spark")
    assert read(lax, lax.partitions(start, end) if tasks is None else tasks) == left
    assert reason in caplog.text


def test_stream_that_is_gone_when_its_task_runs_is_a_loss(log: FilledLog, caplog: pytest.LogCaptureFixture) -> None:
    log.put(20)
    other = FilledLog(uuid4().hex)  # the name of a log is the broker's: a task that looks for another one finds none
    strict, lax = stream_of(log), stream_of(log, failOnDataLoss="false")
    start = strict.initialOffset()
    (task,) = strict.partitions(start, strict.latestOffset(start, ReadAllAvailable()))
    task.range = replace(task.range, stream=other.name)
    with pytest.raises(DataLost, match="has no log"):
        read(strict, [task])
    assert read(lax, [task]) == []
    assert "20 sequences 1 to 20" in caplog.text


def test_data_loss_is_reported_once(log: FilledLog, caplog: pytest.LogCaptureFixture) -> None:
    """The offset moves behind the gap although there is nothing new, so the next look does not find it again."""
    log.put(20)
    lax = stream_of(log, failOnDataLoss="false", startingOffsets=f'{{"{log.name}": 3}}')
    start = lax.initialOffset()
    delete(log, *range(1, 21))
    moved = lax.latestOffset(start, ReadAllAvailable())
    assert moved[log.name]["next"] == 21
    assert lax.partitions(start, moved) == []
    assert lax.latestOffset(moved, ReadAllAvailable()) == moved
    assert caplog.text.count("removed before they were read") == 1


def test_progress_is_shown_when_it_is_wanted(log: FilledLog) -> None:
    log.put(20)
    for stream in (stream_of(log), stream_of(log, progressConsumer="dashboard")):
        end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(12))
        stream.commit(end)
    assert MemoryBroker.get(log.name).progress == {"dashboard": 12}


def test_what_cannot_be_read_is_refused_before_anything_is_opened(log: FilledLog) -> None:
    with pytest.raises(SchemaError, match="column 'sequence' of mamasub is bigint, not string"):
        log.source().reader(StructType([StructField("sequence", StringType())]))
    with pytest.raises(ConfigError, match="has no log 'other'"):
        MamaSubDataSource({"url": f"memory://{log.name}", "stream": "other"}).reader(SCHEMA).partitions()


# --- Plans that are made while Spark writes the offsets of a micro-batch ----------------------------------------------


def test_a_plan_is_given_once_for_its_key_alone_and_to_no_other_process() -> None:
    ahead: PlanAhead[int] = PlanAhead()
    assert ahead.take("a") is None
    ahead.begin("a", lambda: 1)
    assert pickle.loads(pickle.dumps(ahead)).take("a") is None
    assert [ahead.take("a"), ahead.take("a")] == [1, None]
    ahead.begin("a", lambda: 1)
    assert ahead.take("b") is None
    ahead.begin("a", lambda: 1)
    ahead.begin("b", lambda: 2)
    assert ahead.take("b") == 2


def test_plan_that_failed_is_made_anew_unless_the_time_is_over() -> None:
    def make(error: Exception) -> int:
        raise error

    ahead: PlanAhead[int] = PlanAhead()
    ahead.begin("a", partial(make, ConfigError("changed in the middle")))
    assert ahead.take("a") is None
    ahead.begin("a", partial(make, Unavailable("no answer")))
    with pytest.raises(Unavailable, match="no answer"):
        ahead.take("a")


def test_tasks_are_planned_before_spark_asks_and_are_those_of_a_reader_that_plans_then(log: FilledLog) -> None:
    log.put(40)
    first, second = (stream_of(log, minPartitions="4", waitTimeout="200ms") for _ in range(2))
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    eventually(lambda: all(t.name != "mamasub-plan" for t in threading.enumerate()), "the end of the plan")
    expected = second.partitions(start, end)
    MemoryBroker.get(log.name).up = False
    assert first.partitions(start, end) == expected
    assert len(expected) == 4
    with pytest.raises(Unavailable):  # the plan was taken: it is made now
        first.partitions(start, end)


# --- How many tasks read: as many as the cluster runs at once, where it is known --------------------------------------


def piped(what: Any) -> Any:
    """``what`` in another process."""
    return cloudpickle.loads(cloudpickle.dumps(what))  # type: ignore[no-untyped-call]


def test_a_registered_class_knows_the_size_of_the_cluster(log: FilledLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_ranges, "MIN_TASK_ROWS", 1)
    log.put(64)
    registered: type[MamaSubDataSource] = sized_for(MamaSubDataSource, 24)  # type: ignore[assignment]
    assert registered.name() == "mamasub"

    def made(source: type[MamaSubDataSource], **options: str) -> MamaSubDataSource:
        """As Spark does: the class is pickled where it is registered, and used in other processes."""
        there = piped(source)({"url": f"memory://{log.name}", "topics": "orders.>", **options})
        return piped(there)  # type: ignore[no-any-return]

    for source, options, tasks in (
        (MamaSubDataSource, {}, min(len(os.sched_getaffinity(0)), 64)),
        (registered, {}, 24),
        (registered, {"parallelism": "7"}, 7),
        (registered, {"minPartitions": "9"}, 9),
    ):
        assert len(made(source, **options).reader(SCHEMA).partitions()) == tasks
    stream = made(registered).streamReader(SCHEMA)
    start = stream.initialOffset()
    assert len(stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))) == 24
