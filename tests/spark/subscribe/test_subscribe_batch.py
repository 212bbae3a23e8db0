"""Batch reads of ``mamasub`` against a real nats-server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

from tests.support.nats.nats_servers import Admin
from tests.support.spark.subscribe_harness import plain, store


class Reads:
    def __init__(self, spark: SparkSession, server: NatsServer) -> None:
        self.spark, self.url = spark, server.url

    def frame(self, topics: str | None = "orders.>", /, **options: str) -> DataFrame:
        reader = self.spark.read.format("mamasub").options(**{"url": self.url, **options})
        return (reader if topics is None else reader.option("topics", topics)).load()

    def rows(self, topics: str | None = "orders.>", /, **options: str) -> list[Row]:
        return sorted(self.frame(topics, **options).collect(), key=lambda row: (row.stream, row.sequence))


@pytest.fixture
def reads(spark: SparkSession, nats_server: NatsServer) -> Reads:
    return Reads(spark, nats_server)


def test_every_message_is_a_row_with_all_that_the_stream_knows_of_it(reads: Reads, admin: Admin) -> None:
    admin.create_stream("ORDERS", ["orders.>"])
    headers = [None, {"Nats-Msg-Id": "a-1"}, {"kind": "x", "Nats-Msg-Id": "a-2"}, {"kind": "y"}]
    store(admin, "ORDERS", [(f"orders.r{i}", bytes([i, 0, 255]), h) for i, h in enumerate(headers)])
    found = reads.rows()
    assert [(r.topic, bytes(r.value), r.headers, r.id) for r in found] == [
        ("orders.r0", b"\x00\x00\xff", None, None),
        ("orders.r1", b"\x01\x00\xff", None, "a-1"),
        ("orders.r2", b"\x02\x00\xff", {"kind": ["x"]}, "a-2"),
        ("orders.r3", b"\x03\x00\xff", {"kind": ["y"]}, None),
    ]
    assert [(r.stream, r.sequence) for r in found] == [("ORDERS", i) for i in (1, 2, 3, 4)]
    assert all(a.timestamp <= b.timestamp for a, b in pairwise(found))
    assert [r.headers for r in reads.rows(includeHeaders="false")] == [None] * 4


def numbers_that_take_filters() -> type[DataSource]:
    """A source as in Spark's documentation; made in a function, so that it travels to Spark's processes by value."""

    class NumberReader(DataSourceReader):
        only: Any = None

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
            for one in filters:
                if isinstance(one, EqualTo) and one.attribute == ("n",):
                    self.only = one.value
                else:
                    yield one

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((n,) for n in range(3) if self.only in (None, n))

    class NumberSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers_that_take_filters"

        def schema(self) -> str:
            return "n INT"

        def reader(self, schema: StructType) -> DataSourceReader:
            return NumberReader()

    return NumberSource


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that hands filters to sources in Python."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_spark_gives_the_rows_of_one_frame_to_another_where_a_source_takes_filters(pushing: SparkSession) -> None:
    """Why ``mamasub`` takes none. If this fails, Spark is cured: take filters on ``topic``, ``sequence`` and
    ``timestamp`` then, and correct docs/how-to/read-messages.md and come-from-kafka.md."""
    pushing.dataSource.register(numbers_that_take_filters())
    frame = pushing.read.format("numbers_that_take_filters").load()
    assert [row.n for row in frame.where("n = 2").collect()] == [2]
    assert [row.n for row in frame.collect()] == [2], "which asks for no filter"


def test_frames_of_one_load_keep_their_own_rows_where_spark_pushes_filters_down(
    reads: Reads, admin: Admin, pushing: SparkSession
) -> None:
    """Spark 4.2 has one plan of a read for all frames of a ``load()``, so a source that takes filters would give the
    rows of one frame to another."""
    admin.create_stream("ORDERS", ["orders.>"])
    store(admin, "ORDERS", plain("orders.a", 3) + plain("orders.b", 2))
    frame = reads.frame()
    first, second = frame.where("topic = 'orders.a'"), frame.where("topic = 'orders.b' AND sequence > 4")
    assert [row.sequence for row in first.collect()] == [1, 2, 3]
    assert sorted(row.sequence for row in first.union(second).union(frame).collect()) == [1, 1, 2, 2, 3, 3, 4, 5, 5]
