"""What a batch reads where a stream was made anew, where rows are counted, and where a query shall end."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.bridges.memory import MemoryBroker
from mama_spark.bridges.memory.logs import MemoryLogs
from mama_spark.message import MessageBatch
from mama_spark.options import SubscribeOptions
from mama_spark.record_log import Bounds
from mama_spark.spark.subscribe.data_source import MamaSubStreamReader
from mama_spark.spark.subscribe.offsets import ReadRange, StreamPosition, advance, ranges
from mama_spark.spark.subscribe.schema import SCHEMA, message_columns_of
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.tables import each

OLD, NEW = "made yesterday", "made today"


def test_nothing_is_read_between_positions_in_two_streams_of_one_name() -> None:
    assert ranges({"S": StreamPosition(5, OLD)}, {"S": StreamPosition(9, OLD)}) == [ReadRange("S", OLD, 4, 8)]
    assert ranges({"S": StreamPosition(5, OLD)}, {"S": StreamPosition(9, NEW)}) == []
    assert ranges({"S": StreamPosition(50, OLD)}, {"S": StreamPosition(9, NEW, 3)}) == [ReadRange("S", NEW, 2, 8)]


@each(("each", "rows", "n"), [({"S": 10.0}, 100, 10), ({"S": 10.0}, 4, 1), ({}, 100, 100), ({"S": 2.5}, 100, 40)])
def test_a_limit_of_rows_is_one_of_as_many_records_as_have_them(each: dict[str, float], rows: int, n: int) -> None:
    end = advance({"S": StreamPosition(1, OLD)}, {"S": Bounds(1, 1_000, OLD)}, None, rows, each)
    assert end["S"].next == 1 + n
    assert end["S"].rows == round(n * each.get("S", 1.0))


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    name = uuid4().hex
    yield MemoryBroker.get(name)
    MemoryBroker.forget(name)


def put(broker: MemoryBroker, n: int) -> None:
    MemoryLogs(broker.name).log(broker.name).append(MessageBatch.of(["t"] * n, [b""] * n))


def test_a_query_that_takes_what_there_is_ends_where_the_stream_ended_when_it_began(broker: MemoryBroker) -> None:
    put(broker, 5)
    options = SubscribeOptions.parse({"url": f"memory://{broker.name}", "topics": "t"})
    stream = MamaSubStreamReader(options, message_columns_of(SCHEMA, options))
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    put(broker, 3)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end[broker.name]["next"] == 6
    put(broker, 1)
    assert stream.latestOffset(end, ReadAllAvailable()) == end
