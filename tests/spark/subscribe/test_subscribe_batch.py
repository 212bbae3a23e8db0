"""Batch reads of ``mamasub`` against a real nats-server."""

from __future__ import annotations

from itertools import pairwise

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.sql import DataFrame, Row, SparkSession

from tests.support.nats.nats_servers import Admin
from tests.support.spark.subscribe_harness import plain, store


def read(spark: SparkSession, server: NatsServer, **options: str) -> DataFrame:
    return spark.read.format("mamasub").options(url=server.url, topics="orders.>", **options).load()


def in_order(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: int(row.sequence))


def test_every_message_is_a_row_with_all_that_the_stream_knows_of_it(
    spark: SparkSession, nats_server: NatsServer, admin: Admin
) -> None:
    admin.create_stream("ORDERS", ["orders.>"])
    headers = [None, {"Nats-Msg-Id": "a-1"}, {"kind": "x", "Nats-Msg-Id": "a-2"}, {"kind": "y"}]
    store(admin, "ORDERS", [(f"orders.r{i}", bytes([i, 0, 255]), h) for i, h in enumerate(headers)])
    found = in_order(read(spark, nats_server))
    assert [(r.topic, bytes(r.value), r.headers, r.id) for r in found] == [
        ("orders.r0", b"\x00\x00\xff", None, None),
        ("orders.r1", b"\x01\x00\xff", None, "a-1"),
        ("orders.r2", b"\x02\x00\xff", {"kind": ["x"]}, "a-2"),
        ("orders.r3", b"\x03\x00\xff", {"kind": ["y"]}, None),
    ]
    assert [(r.stream, r.sequence) for r in found] == [("ORDERS", i) for i in (1, 2, 3, 4)]
    assert all(a.timestamp <= b.timestamp for a, b in pairwise(found))
    assert [r.headers for r in read(spark, nats_server, includeHeaders="false").collect()] == [None] * 4


def test_frames_of_one_load_keep_their_own_rows_where_spark_pushes_filters_down(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, request: pytest.FixtureRequest
) -> None:
    """Spark 4.2 has one plan of a read for all frames of a ``load()``, so a source that takes filters would give the
    rows of one frame to another."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.python.filterPushdown.enabled"))
    admin.create_stream("ORDERS", ["orders.>"])
    store(admin, "ORDERS", plain("orders.a", 3) + plain("orders.b", 2))
    frame = read(spark, nats_server)
    first, second = frame.where("topic = 'orders.a'"), frame.where("topic = 'orders.b' AND sequence > 4")
    assert [row.sequence for row in in_order(first)] == [1, 2, 3]
    assert [row.sequence for row in in_order(first.union(second).union(frame))] == [1, 1, 2, 2, 3, 3, 4, 5, 5]
