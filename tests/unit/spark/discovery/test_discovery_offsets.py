"""Offsets of ``mamadiscovery``, and what is read between them, over a board in memory: no Spark, no server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.bridge import DiscoveryBridge, DiscoveryEvent, DiscoveryEventKind, Position, SourceKey
from mama_spark.contracts.errors import ConfigError, DataLost, MamaError, OptionError, SchemaError, Unavailable
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import DEFAULT_FIELDS, SourceRecord, encode_source
from mama_spark.mama.messages.status import Status, StatusError
from mama_spark.memory.discovery import MemoryDiscovery, MemorySources
from mama_spark.options import STREAM_READ, DiscoveryOptions
from mama_spark.publishing.window.reconnecting import ReconnectingBridge
from mama_spark.spark.discovery.data_source import (
    ChangesReader,
    DiscoveryJob,
    plan_discovery,
    position_of,
    read_between,
)
from mama_spark.spark.discovery.row_batches import SCHEMA
from mama_spark.spark.formats import MamaDiscoveryDataSource
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

ALL = ReadAllAvailable()
DESK = SourceKey("desk", 7)


@pytest.fixture
def board(request: pytest.FixtureRequest) -> Iterator[MemorySources]:
    name = request.node.name.replace("[", "-").replace("]", "")
    yield MemorySources.get(name)
    MemorySources.forget(name)


@pytest.fixture
def source(board: MemorySources) -> Iterator[MemoryDiscovery]:
    bridge = MemoryDiscovery(board.name)
    bridge.open()
    yield bridge
    bridge.close()


def reader(board: MemorySources, **options: str) -> ChangesReader:
    """As Spark makes one, and makes it again after a restart."""
    given = {"url": f"memory://{board.name}", "waitTimeout": "200ms", **options}
    return ChangesReader(DiscoveryJob(DiscoveryOptions.parse(given), DEFAULT_FIELDS))


def announce(source: MemoryDiscovery, key: SourceKey, data_dict: str = "D") -> None:
    said = SourceRecord(key.name, key.id, "ONLINE", "OK", data_dict=data_dict)
    source.announce(key, encode(encode_source(said)), 30.0)


def rows(made: ChangesReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Kind or event, with name, of what a batch reads; offsets go through JSON, as in a checkpoint."""
    start, end = json.loads(json.dumps([start, end]))
    batches = [b for p in made.partitions(start, end) for b in made.read(p)]
    told = [row for b in batches for row in b.to_pylist()]
    return [f"{r['event']} {r['source_name']} {r['source_data_dict']}" if r["kind"] == "source" else r["event"]
            for r in told]  # fmt: skip


@pytest.mark.spec("SD-14", "SD-26")
@pytest.mark.parametrize(
    ("begin", "told"),
    [("image", ["online desk one", "image_end"]), ("earliest", ["online desk one"]), ("latest", [])],
)
def test_the_first_batch_is_the_same_when_a_new_process_runs_it_again(
    board: MemorySources, source: MemoryDiscovery, begin: str, told: list[str]
) -> None:
    """Spark asks a new reader for the first offset and then reads from it to the end that its log holds."""
    announce(source, DESK, "one")
    made = reader(board, startingOffsets=begin)
    board.up = False  # for the initial offset nobody is asked
    start = made.initialOffset()
    assert start == {"v": 1, "begin": begin}
    board.up = True
    end = made.latestOffset(start, ALL)
    assert rows(made, start, end) == told
    announce(source, DESK, "two")
    again = reader(board, startingOffsets=begin)
    assert rows(again, again.initialOffset(), end) == told
    second = again.latestOffset(end, ALL)
    assert rows(again, end, second) == ["online desk two"]
    assert again.latestOffset(second, ALL) is second, "no data: the same offset"
    assert again.partitions(second, second) == []


def test_a_batch_takes_no_more_than_it_may(board: MemorySources, source: MemoryDiscovery) -> None:
    made = reader(board, maxOffsetsPerTrigger="2")
    limit = made.getDefaultReadLimit()
    assert limit == ReadMaxRows(2)
    assert reader(board).getDefaultReadLimit() == ALL
    for i in range(5):
        announce(source, SourceKey("desk", i))
    told, at = [], made.initialOffset()
    while (end := made.latestOffset(at, limit)) != at:
        told.append(rows(made, at, end))
        at = end
    assert [len(batch) for batch in told] == [2, 2, 2]
    assert len({text for batch in told for text in batch}) == 2, "all of one name, and the end of the image"
    assert rows(made, made.initialOffset(), made.latestOffset(made.initialOffset(), ALL))[-1] == "image_end"


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(2)])
def test_available_now_ends_where_it_was_when_it_began(
    board: MemorySources, source: MemoryDiscovery, limit: ReadLimit
) -> None:
    for i in range(3):
        announce(source, SourceKey("desk", i))
    made = reader(board, startingOffsets="earliest")
    made.prepareForTriggerAvailableNow()
    at, told = made.initialOffset(), []
    for n in range(10):
        end = made.latestOffset(at, limit)
        if end == at:
            break
        told += rows(made, at, end)
        at = end
        announce(source, SourceKey("late", n))
    assert told == ["online desk D"] * 3
    made.prepareForTriggerAvailableNow()  # the query is started once more
    assert "online late D" in rows(made, at, made.latestOffset(at, ALL))


def test_lag_is_reported_up_to_the_newest_record(board: MemorySources, source: MemoryDiscovery) -> None:
    made = reader(board, startingOffsets="earliest")
    assert made.reportLatestOffset() is None
    for i in range(5):
        announce(source, SourceKey("desk", i))
    end = made.latestOffset(made.initialOffset(), ReadMaxRows(2))
    newest = made.reportLatestOffset()
    assert newest is not None
    assert newest["at"]["next"] - end["at"]["next"] == 3
    board.up = False
    assert made.reportLatestOffset() is None, "nobody answers: no progress is told, and nothing fails"


def test_a_loss_is_an_error_that_says_what_was_lost_and_the_ways_out_or_a_row(
    board: MemorySources, source: MemoryDiscovery
) -> None:
    for i in range(5):
        announce(source, SourceKey("desk", i))
    made = reader(board, startingOffsets="earliest")
    start = {"v": 1, "at": {"log": board.identity, "next": 1}}
    end = made.latestOffset(start, ALL)
    board.lose(2)
    with pytest.raises(DataLost) as e:
        rows(made, start, end)
    for part in ("records 1 to 2", f"memory://{board.name}", "failOnDataLoss=false", "another checkpoint"):
        assert part in str(e.value)
    told = rows(reader(board, failOnDataLoss="false"), start, end)
    assert told == ["gap", *["online desk D"] * 3]


def test_a_checkpoint_of_something_else_is_refused(board: MemorySources) -> None:
    for offset in ({"at": {"next": 1}}, {"v": 2, "at": {"next": 1}}, {"v": 1, "at": 5}):
        with pytest.raises(ConfigError, match="checkpoint"):
            position_of(offset)


# --- outages ---------------------------------------------------------------------------------------------------------


def change(n: int) -> DiscoveryEvent:
    return DiscoveryEvent(DiscoveryEventKind.EVENT, n, "S", n)


class Story:
    """A bridge that tells a story in parts, and breaks after some of them."""

    def __init__(self, parts: list[list[DiscoveryEvent]], breaks_after: int | None = None) -> None:
        self.parts, self.breaks_after, self.closed = parts, breaks_after, False

    def open(self) -> None: ...

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        for n, part in enumerate(self.parts):
            if n == self.breaks_after:
                raise Unavailable("gone")
            yield part

    def close(self) -> None:
        self.closed = True


def read_from(*stories: Any) -> list[DiscoveryEvent]:
    """By bridges that are made one after another."""
    bridge: ReconnectingBridge[DiscoveryBridge] = ReconnectingBridge(iter(stories).__next__, 60.0, sleep=lambda _: None)
    return [event for part in read_between(bridge, {}, {}) for event in part]


def test_reading_goes_on_after_an_outage_where_it_was() -> None:
    parts = [[change(1), change(2)], [change(3)], [], [change(4), change(5)]]
    uneven = [[change(1)], [change(2), change(3), change(4)], [change(5)]]
    first, second, third = Story(parts, 0), Story(parts, 2), Story(uneven)
    assert read_from(first, second, third) == [change(n) for n in range(1, 6)]
    assert (first.closed, second.closed) == (True, True)


def test_reading_fails_if_the_log_holds_other_records_after_an_outage() -> None:
    parts = [[change(1), change(2)], [change(3)]]
    other = [[replace(change(1), kind=DiscoveryEventKind.GAP), change(3)], [change(4)]]
    with pytest.raises(MamaError, match="read them again") as e:
        read_from(Story(parts, 1), Story(other))
    assert not e.value.retryable


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.spec("SD-18", "SD-49", "SD-50")
def test_a_transport_without_discovery_is_not_implemented_and_names_the_property(tmp_path: Path) -> None:
    path = tmp_path / "mama.properties"
    path.write_text("mama.nats.transport.desk.url=nats://here:4222\n")
    given = {"transport": "desk", "properties": str(path)}
    key = "mama.nats.transport.desk.sourcediscovery.supported"
    for more in ("", f"{key}=false\n"):
        path.write_text(path.read_text() + more)
        with pytest.raises(StatusError) as e:
            plan_discovery(given, STREAM_READ)
        assert e.value.status is Status.NOT_IMPLEMENTED
        assert key in str(e.value)
    with pytest.raises(StatusError, match=r"sourcediscovery\.supported") as e:  # which no other process sees
        plan_discovery({"url": "memory://here"}, STREAM_READ)
    assert e.value.status is Status.NOT_IMPLEMENTED
    path.write_text(path.read_text() + f"{key}=true\nmama.sourcediscovery.source.fid=20001\n")
    job = plan_discovery(given, STREAM_READ)
    assert job.options.url == ("nats://here:4222",)
    assert job.fields.source.fid == 20001


def test_a_batch_read_has_no_starting_offsets_and_the_schema_is_fixed() -> None:
    made = MamaDiscoveryDataSource({"startingOffsets": "latest"})
    full = StructType([StructField(name, StringType()) for name in SCHEMA.names])
    with pytest.raises(OptionError, match="startingOffsets"):
        made.reader(full)
    with pytest.raises(SchemaError, match="schema"):
        MamaDiscoveryDataSource({}).reader(StructType([StructField("kind", StringType())]))
    assert MamaDiscoveryDataSource.name() == "mamadiscovery"
