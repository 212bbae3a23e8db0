"""The last record of each topic: offsets inside a snapshot, tasks, and what an outage leaves to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError, OptionError, Unavailable
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.contracts.record_log import Bounds, CurrentRecords, RecordLog, Records
from mama_spark.memory.logs import MemoryLog, MemoryLogs
from mama_spark.options import BATCH_READ, SubscribeOptions
from mama_spark.spark.subscribe import current_rows
from mama_spark.spark.subscribe.current_rows import current_records, last_of_each
from mama_spark.spark.subscribe.data_source import MamaSubStreamReader, schema_for, stream_reader
from mama_spark.spark.subscribe.log_reader import read_range
from mama_spark.spark.subscribe.offsets import (
    Offsets,
    ReadRange,
    StreamPosition,
    from_json,
    ranges,
    to_json,
    within_snapshots,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.nats.mamasub import rows_of
from tests.support.spark.memory_harness import FilledLog, reconciled
from tests.support.tables import each

IN_SNAPSHOT = StreamPosition(5, "a", snapshot=10)


def test_a_batch_ends_where_the_snapshot_does_and_then_changes_are_ranges_of_all_records() -> None:
    bounds = {"S": Bounds(1, 20, "a")}
    assert within_snapshots({"S": IN_SNAPSHOT}, bounds)["S"].last == 10
    behind = replace(IN_SNAPSHOT, next=11)
    assert within_snapshots({"S": behind}, bounds) == bounds
    assert ranges({"S": IN_SNAPSHOT}, {"S": replace(behind, begin=5)}) == [ReadRange("S", "a", 4, 10, 10)]
    assert ranges({"S": behind}, {"S": replace(behind, next=21, begin=11)}) == [ReadRange("S", "a", 10, 20)]
    assert from_json(json.loads(json.dumps(to_json({"S": behind})))) == {"S": behind}


@each(
    ("position", "replacing", "lost"),
    [(IN_SNAPSHOT, (), 0), (replace(IN_SNAPSHOT, next=11), (), 1), (replace(IN_SNAPSHOT, next=11), ("S",), 0)],
)
def test_what_newer_records_replaced_is_no_loss(position: StreamPosition, replacing: tuple[str], lost: int) -> None:
    _, losses = reconciled({"S": position}, {"S": Bounds(15, 20, "a")}, replacing=replacing)
    assert len(losses) == lost


def batch(first: int, topics: str, faults: dict[int, str] | None = None) -> Records:
    numbers = np.arange(first, first + len(topics))
    payloads = pa.array([b"%d" % n for n in numbers], pa.binary())
    headers = pa.array([[("x", [topic])] if topic == "h" else None for topic in topics], HEADERS_TYPE)
    given = headers if "h" in topics else None
    return Records(numbers, numbers * 10, pa.array([*topics]).dictionary_encode(), payloads, given, faults or {})


@pytest.mark.parametrize("same_hash", [False, True])
def test_the_last_of_each_topic_is_left_of_records_that_ascend(
    same_hash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if same_hash:
        monkeypatch.setattr(current_rows, "hash", lambda _: 7, raising=False)
    monkeypatch.setattr(current_rows, "_IN_MEMORY", 1)
    batches = [batch(1, "abca"), batch(11, "hbd", {0: "a fault", 1: "another"}), batch(21, "aeb"), batch(31, "")]
    found = list(last_of_each(iter(batches)))
    assert [
        (int(n), t, v)
        for some in found
        for n, t, v in zip(some.sequences, some.topics.to_pylist(), some.payloads.to_pylist(), strict=True)
    ] == [(n, topic, b"%d" % n) for n, topic in ((3, "c"), (11, "h"), (13, "d"), (21, "a"), (22, "e"), (23, "b"))]
    assert [time for some in found for time in some.times.tolist()] == [30, 110, 130, 210, 220, 230]
    assert [dict(some.faults) for some in found if some.faults] == [{0: "a fault"}]
    assert [some.headers.to_pylist() for some in found if some.headers is not None] == [[[("x", ["h"])], None]]
    assert current_records(batches).sequences.tolist() == [3, 11, 13, 21, 22, 23]
    assert len(current_records([])) == 0


def test_what_came_behind_distinct_records_replaces_them() -> None:
    batches = [batch(1, "abc"), batch(4, "db"), batch(6, "ebf")]
    for distinct in range(5):  # the first four are of four topics
        found = [n for some in last_of_each(iter(batches), distinct) for n in some.sequences.tolist()]
        assert found == [1, 3, 4, 6, 7, 8]
    assert len(list(last_of_each(iter(batches[:1]), 9))) == 1


def test_nothing_comes_before_an_outage() -> None:
    """So what is read again after it comes once."""

    def cut() -> Iterator[Records]:
        yield batch(1, "abc")
        raise Unavailable("an outage")

    with pytest.raises(Unavailable):
        next(last_of_each(cut()))


def all_of(self: MemoryLog, topics: Sequence[str] = (), since: int = 0, payloads: bool = True) -> Iterator[Records]:
    return self.read(0, self.bounds().last, topics)


def test_a_batch_that_has_come_is_not_read_again_after_an_outage(
    log: FilledLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.put(3)
    monkeypatch.setattr(MemoryLog, "current", all_of)
    source = log.source(latestPerTopic="true")
    reader, bounds, outages = source.reader(source.schema()), MemoryLog.bounds, [Unavailable("an outage")]

    def cut(self: MemoryLog) -> Bounds:
        if outages:
            raise outages.pop()
        return bounds(self)

    found = []
    for rows in reader.read(reader.partitions()[0]):
        found += rows["sequence"].to_pylist()
        monkeypatch.setattr(MemoryLog, "bounds", cut)
    assert (found, outages) == ([3], [])


def test_after_an_outage_a_range_goes_on_behind_the_last_of_its_records(log: FilledLog) -> None:
    outages, begun = [Unavailable("an outage")], list[int]()

    def read(_: RecordLog, after: int) -> Iterator[Records]:
        begun.append(after)
        return iter([batch(7, "ab"), batch(2, "cd")] if len(begun) == 1 else [])

    def check(_: RecordLog) -> None:
        if outages:
            raise outages.pop()

    options = SubscribeOptions.parse({"url": f"memory://{log.name}", "topics": "a"})
    assert len(list(read_range(options, lambda bridge: bridge.log(log.name), 0, read, check, None))) == 2
    assert begun == [0, 8]


def test_what_came_before_a_snapshot_begins_at_last_is_in_its_list(
    log: FilledLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryLog, "current", all_of)
    source = log.source(latestPerTopic="true")
    reader = source.streamReader(source.schema())
    with MemoryLogs(log.name) as bridge:
        for _ in range(2):  # an outage of another stream ends the first attempt
            log.put(1)
            begin = reader._begin(bridge)[log.name]
    end = to_json({log.name: replace(begin, next=3, begin=1)})
    assert [row["sequence"] for row in rows_of(reader, reader.partitions(to_json({log.name: begin}), end))] == [2]


def test_a_query_that_begins_again_waits_for_a_leader_that_has_its_snapshot(
    log: FilledLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    def with_sequence(self: MemoryLog, sequence: int, _: str) -> Bounds:
        asked.append(sequence)
        return self.bounds()

    def listed(self: MemoryLog, topics: Sequence[str], since: int, payloads: bool = True) -> Iterator[Records]:
        asked.append(since)
        return all_of(self)

    monkeypatch.setattr(MemoryLog, "bounds_with", with_sequence)
    monkeypatch.setattr(MemoryLog, "current", listed)
    log.put(3)
    source = log.source(latestPerTopic="true", failOnDataLoss="false")
    reader = source.streamReader(source.schema())
    reader.initialOffset()  # as of 3, which may be the end that a late leader has
    begun = StreamPosition(2, log.log.bounds().identity, snapshot=5)
    reader.latestOffset(to_json({log.name: begun}), ReadAllAvailable())
    reader.partitions(to_json({log.name: begun}), to_json({log.name: replace(begun, next=4, begin=2)}))
    assert asked == [3, 5, 5]


def test_a_stream_that_ends_within_a_snapshot_has_lost_what_followed() -> None:
    now, losses = reconciled({"S": IN_SNAPSHOT}, {"S": Bounds(1, 8, "a")})
    assert now == {"S": StreamPosition(5, "a", 5)}
    assert [loss.why for loss in losses] == ["its last sequence is 8, but the query has read up to 10"]


def test_current_records_are_divided_by_sequence() -> None:
    current = CurrentRecords(np.array([2, 5, 6, 9]))
    part = current.within(2, 6)
    assert (part.sequences.tolist(), part.before, len(current.within(6, 8))) == ([5, 6], 1, 0)
    assert part.among(batch(1, "abcdefghij")).sequences.tolist() == [5, 6]


def test_a_bucket_is_read_as_it_is_now_unless_its_history_is_wanted() -> None:
    history = {"url": "nats://h", "bucket": "b", "latestPerTopic": "false", "startingOffsets": '{"KV_b": 3}'}
    assert SubscribeOptions.parse({"url": "nats://h", "bucket": "b"}).current
    assert not SubscribeOptions.parse(history, BATCH_READ).current


def refused(reader: MamaSubStreamReader, checkpoint: Offsets, said: str) -> None:
    offset = to_json(checkpoint)
    for ask in (lambda: reader.latestOffset(offset, ReadAllAvailable()), lambda: reader.partitions(offset, offset)):
        with pytest.raises(ConfigError, match=said):
            ask()


def test_one_task_reads_a_batch(log: FilledLog) -> None:
    source = log.source(latestPerTopic="true", minPartitions="2")
    with pytest.raises(OptionError, match="minPartitions has no effect with latestPerTopic in a batch"):
        source.reader(source.schema())


@each(
    ("options", "snapshot", "said"),
    [
        ({"latestPerTopic": "true"}, None, "is of a query without latestPerTopic, and this one is with"),
        ({}, 0, "is of a query with latestPerTopic, and this one is without"),
    ],
)
def test_a_checkpoint_of_the_other_kind_is_refused(
    log: FilledLog, options: dict[str, str], snapshot: int | None, said: str
) -> None:
    source = log.source(**options)
    refused(source.streamReader(source.schema()), {"S": StreamPosition(2, "a", snapshot=snapshot)}, said)


def test_a_checkpoint_of_another_bucket_is_refused() -> None:
    given = {"url": "nats://h", "bucket": "b"}
    said = "the checkpoint is of stream KV_a, and this query reads bucket b: give"
    refused(stream_reader(given, schema_for(given), 0, 1), {"KV_a": IN_SNAPSHOT}, said)


def test_a_middleware_without_last_values_says_so(log: FilledLog) -> None:
    log.put(1)
    source = log.source(latestPerTopic="true")
    reader = source.reader(source.schema())
    with pytest.raises(ConfigError, match=r"option latestPerTopic: .* is of a middleware that keeps no last value"):
        rows_of(reader, reader.partitions())
