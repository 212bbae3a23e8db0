"""Times as the first and the last offset of a query, and micro-batches that wait for a number of records."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from mama_spark.contracts.errors import OptionError
from mama_spark.contracts.record_log import Bounds
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.subscribe.data_source import MamaSubReader, MamaSubStreamReader
from mama_spark.spark.subscribe.offsets import requested_offsets
from mama_spark.spark.subscribe.schema import SCHEMA
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.spark.memory_harness import FilledLog


def micros(log: FilledLog, sequence: int) -> int:
    (records,) = log.log.read(sequence - 1, sequence)
    return int(records.times[0])


def iso(log: FilledLog, sequence: int) -> str:
    """The time of a record, as a person writes it."""
    return datetime.fromtimestamp(micros(log, sequence) / 1e6, UTC).isoformat()


def load(log: FilledLog, **options: str) -> MamaSubDataSource:
    """As Spark does: made by ``load()``, pickled from then on."""
    return pickle.loads(pickle.dumps(log.source(**options)))  # type: ignore[no-any-return]


def sequences(reader: MamaSubReader | MamaSubStreamReader, tasks: list[Any]) -> list[int]:
    return [s for task in tasks for batch in reader.read(task) for s in batch["sequence"].to_pylist()]


def batch(source: MamaSubDataSource) -> list[int]:
    reader = source.reader(SCHEMA)
    return sequences(reader, reader.partitions())


def stream(source: MamaSubDataSource) -> list[int]:
    reader = source.streamReader(SCHEMA)
    start = reader.initialOffset()
    return sequences(reader, reader.partitions(start, reader.latestOffset(start, ReadAllAvailable())))


@pytest.mark.parametrize("option", ["startingOffsets", "startingTimestamp"])
def test_now_is_the_time_of_load_and_not_of_the_first_micro_batch(log: FilledLog, option: str) -> None:
    log.put(3)
    source = load(log, **{option: "now"})
    log.put(2)
    assert stream(source) == [4, 5]


def test_a_time_is_where_a_query_begins_and_a_batch_ends(log: FilledLog) -> None:
    log.put(5)
    assert stream(load(log, startingOffsets=iso(log, 3))) == [3, 4, 5]
    assert stream(load(log, startingTimestamp=iso(log, 3))) == [3, 4, 5]
    assert batch(load(log, startingOffsets=iso(log, 2), endingOffsets=iso(log, 4))) == [2, 3]
    assert batch(load(log, endingTimestamp=iso(log, 4))) == [1, 2, 3]
    assert batch(load(log, startingTimestamp="2100-01-01", endingTimestamp="2100-01-01")) == []
    assert batch(load(log, startingOffsets=iso(log, 4), endingOffsets=iso(log, 2))) == []


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_a_batch_that_ends_now_reads_the_same_each_time(log: FilledLog, option: str) -> None:
    log.put(3)
    source = load(log, **{option: "now"})
    log.put(2)
    assert batch(source) == batch(source) == [1, 2, 3]
    assert batch(load(log)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("there", [0, 2])
def test_a_checkpoint_wins_over_the_time_of_a_restart(log: FilledLog, there: int) -> None:
    """Also where its first micro-batch was planned and not committed: Spark asks for the initial offset again."""
    log.put(3)
    first = load(log, startingOffsets="now")
    log.put(there)
    reader = first.streamReader(SCHEMA)
    start = reader.initialOffset()
    planned = reader.latestOffset(start, ReadAllAvailable())
    log.put(2)
    again = load(log, startingOffsets="now").streamReader(SCHEMA)
    assert sequences(again, again.partitions(again.initialOffset(), planned)) == list(range(4, 4 + there))
    after = again.latestOffset(planned, ReadAllAvailable())
    assert sequences(again, again.partitions(planned, after)) == [4 + there, 5 + there]


def test_a_time_to_come_is_no_position_behind_the_end() -> None:
    """Records that come between two questions must not look as if they had been lost."""
    bounds = {"S": Bounds(1, 10, "i")}
    assert requested_offsets("startingOffsets", bounds, "earliest", {"S": 14})["S"].next == 11
    assert requested_offsets("endingOffsets", bounds, "latest", {"S": 14})["S"].next == 11


def test_a_batch_does_not_begin_at_its_end(log: FilledLog) -> None:
    for option in ("startingOffsets", "startingTimestamp"):
        with pytest.raises(OptionError, match=f"{option}=now is for streams: a batch would read nothing"):
            load(log, **{option: "now"}).reader(SCHEMA)
    with pytest.raises(OptionError, match="startingOffsets=latest is for streams"):
        load(log, startingOffsets="latest").reader(SCHEMA)


# --- micro-batches that wait -------------------------------------------------------------------------------------


def waiting(log: FilledLog, now: list[float], **options: str) -> MamaSubStreamReader:
    """``now``: the time, which a test sets forward."""
    made = load(log, minOffsetsPerTrigger="10", maxTriggerDelay="1m", **options).streamReader(SCHEMA)
    return MamaSubStreamReader(made.options, made.columns, lambda: now[0])


def test_a_micro_batch_waits_for_enough_records_or_for_the_delay(log: FilledLog) -> None:
    now = [0.0]
    reader = waiting(log, now)

    def planned(start: dict[str, Any]) -> dict[str, Any]:
        return reader.latestOffset(start, reader.getDefaultReadLimit())

    log.put(3)
    first = planned(reader.initialOffset())
    assert first[log.name]["next"] == 4, "the first one does not wait"
    log.put(9)
    now[0] = 59.0
    assert planned(first) == first
    log.put(1)
    second = planned(first)
    assert second[log.name]["next"] == 14, "there are enough"
    log.put(1)
    now[0] = 118.0
    assert planned(second) == second
    now[0] = 119.0
    third = planned(second)
    assert third[log.name]["next"] == 15, "the delay is over"
    assert planned(third) == third, "nothing is there, however long it waits"


def test_records_that_nobody_reads_are_not_waited_for(log: FilledLog) -> None:
    reader = waiting(log, [0.0])
    log.put(1)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    log.put(100, "trades.a")
    log.put(9)
    assert reader.latestOffset(first, reader.getDefaultReadLimit()) == first
    log.put(1)
    assert reader.latestOffset(first, reader.getDefaultReadLimit())[log.name]["next"] == 112


def test_a_query_that_takes_what_there_is_does_not_wait(log: FilledLog) -> None:
    reader = waiting(log, [0.0], maxOffsetsPerTrigger="10")
    log.put(13)
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    ends = []
    for _ in range(2):
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
        ends.append(at[log.name]["next"])
    assert ends == [11, 14]
