"""The last record of each topic: offsets inside a snapshot, tasks, and what an outage leaves to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.current_records import CurrentRecords
from mama_spark.contracts.errors import ConfigError, OptionError, Unavailable
from mama_spark.contracts.record_log import Bounds, RecordLog, Records
from mama_spark.options import BATCH_READ, STREAM_READ, SubscribeOptions
from mama_spark.spark.subscribe.current_rows import CurrentRead, divided
from mama_spark.spark.subscribe.offsets import (
    ReadRange,
    StreamPosition,
    from_json,
    ranges,
    reconcile,
    to_json,
    within_snapshots,
)
from mama_spark.spark.subscribe.schema import MessageColumns

from tests.support.spark.memory_harness import FilledLog
from tests.support.tables import each

OPTIONS = SubscribeOptions.parse({"url": "nats://h", "bucket": "b"})
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
    _, losses = reconcile({"S": position}, {"S": Bounds(15, 20, "a")}, replacing=replacing)
    assert len(losses) == lost


def test_tasks_share_what_is_current_where_that_is_most_of_what_is_stored() -> None:
    many = CurrentRecords(10**6, np.arange(10**6), None)
    parts = divided(many, OPTIONS, 8, None)
    assert len(parts) == 8
    assert (sum(map(len, parts)), parts[1].before, int(parts[1].sequences[0])) == (10**6, 125_000, 125_000)
    assert len(divided(replace(many, spread=5.0), OPTIONS, 8, None)) == 1
    assert len(divided(many, replace(OPTIONS, min_partitions=20), 8, 3)) == 3
    assert divided(many.slice(0, 0), OPTIONS, 8, None) == []


class _Cut(RecordLog):
    """Ends after half of what is wanted, once."""

    cut = False

    def read_current(self, wanted: CurrentRecords, topics: Sequence[str] = ()) -> Iterator[Records]:
        assert wanted.topics is not None
        names = wanted.topics.to_pylist()
        some = names if self.cut else names[: len(names) // 2]
        n = len(some)
        yield Records(np.arange(n) + 100, np.zeros(n, np.int64), pa.array(some), pa.array([b""] * n))
        if not self.cut:
            self.cut = True
            raise Unavailable("an outage")


def test_after_an_outage_a_task_reads_what_it_has_not_read_also_where_newer_values_came_instead() -> None:
    log, wanted = _Cut(), CurrentRecords(4, np.arange(1, 5), pa.array(["a", "b", "c", "d"]))  # type: ignore[abstract]
    read = CurrentRead(OPTIONS, MessageColumns(pa.schema([]), pa.schema([])), wanted)
    found: list[str] = []
    for _ in range(2):
        try:
            for records in read.records(log, 0):
                found += records.topics.to_pylist()
        except Unavailable:
            continue
    assert found == ["a", "b", "c", "d"]


@each(
    ("given", "said"),
    [
        ({"bucket": "b", "stream": "S"}, "options bucket and stream exclude each other"),
        ({"bucket": "b", "decompress": "true"}, "options bucket and decompress exclude each other"),
        ({"bucket": "b", "unpack": "true"}, "option unpack has no effect with bucket"),
        ({"bucket": "b", "startingOffsets": "latest"}, "startingOffsets and startingTimestamp have no effect with"),
        ({"topics": "a", "includeDeleted": "true"}, "includeDeleted has no effect without latestPerTopic or bucket"),
        ({"url": "mlp://h:9999/s", "bucket": "b"}, "option bucket"),
        ({"url": "memory://m", "bucket": "b"}, "option bucket: memory has no key-value buckets"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        SubscribeOptions.parse({"url": "nats://h", **given}, STREAM_READ)


def test_a_bucket_is_read_as_it_is_now_unless_its_history_is_wanted() -> None:
    history = {"url": "nats://h", "bucket": "b", "latestPerTopic": "false", "startingOffsets": '{"KV_b": 3}'}
    assert OPTIONS.current
    assert not SubscribeOptions.parse(history, BATCH_READ).current


def test_a_middleware_without_last_values_says_so(log: FilledLog) -> None:
    log.put(1)
    source = log.source(latestPerTopic="true")
    reader = source.reader(source.schema())
    with pytest.raises(ConfigError, match=r"option latestPerTopic: .* is of a middleware that keeps no last value"):
        reader.partitions()
