"""``mamasub`` of packed messages against real brokers: what ``mamapub`` packs comes back row for row."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from mama_spark.flightlog.reading import unpublished
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.malamute.restartable_broker import RestartableBroker
from tests.support.nats.nats_servers import Admin


def orders(spark: SparkSession, n: int, parts: int = 2) -> DataFrame:
    return spark.range(0, n, 1, parts).selectExpr(
        "concat('orders.r', cast(id % 7 as string)) AS topic", "concat('order ', id) AS value",
        "if(id % 3 = 0, map('k', cast(id as string)), null) AS headers", "concat('id-', id) AS id",
    )  # fmt: skip


def write(df: DataFrame, **options: str) -> None:
    ids = {"idColumn": "id"} if "id" in df.columns else {}
    df.write.format("mamapub").options(**ids, **options).mode("append").save()


def subscription(room: RestartableBroker) -> dict[str, str]:
    return {"topics": "orders.>", "stream": "ORDERS", **room.options("ORDERS")}


def read(spark: SparkSession, room: RestartableBroker, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("mamasub").options(**{**subscription(room), **options})
    return (reader if schema is None else reader.schema(schema)).load()


@pytest.fixture
def ready(room: RestartableBroker) -> RestartableBroker:
    room.create("ORDERS", "orders.>")
    return room


def listed(df: DataFrame) -> list[Any]:
    return sorted((r.asDict(recursive=True) for r in df.collect()), key=str)


@pytest.mark.parametrize("room", ["malamute"], indirect=True)
def test_packed_rows_come_back_as_rows_that_were_not_packed(spark: SparkSession, ready: RestartableBroker) -> None:
    """Value, headers and id, and beside them the place in the pack; all three kinds in one stream."""
    df = orders(spark, 300)
    for prefix, options in {"off": {}, "arrow": {"pack": "arrow"}, "lines": {"pack": "lines"}}.items():
        chosen = df.drop("headers", "id") if prefix == "lines" else df
        write(chosen, topicPrefix=f"orders.{prefix}", **ready.options("ORDERS"), **options)
    kinds: dict[str, list[dict[str, Any]]] = {"off": [], "arrow": [], "lines": []}
    for row in read(spark, ready).collect():
        kind, topic = row.topic.removeprefix("orders.").split(".", 1)
        assert row.pack_error is None
        kinds[kind].append({**row.asDict(recursive=True), "topic": topic})

    def shown(kind: str, *names: str) -> list[Any]:
        return sorted(([row[name] for name in names] for row in kinds[kind]), key=str)

    every = ("topic", "value", "headers", "id")
    sent = [[r.topic, r.value.encode(), r.headers and {"k": [r.headers["k"]]}, r.id] for r in df.collect()]
    by_id = itemgetter(3)
    assert sorted(shown("off", *every), key=by_id) == sorted(sent, key=by_id)
    assert shown("arrow", *every) == shown("off", *every)
    assert shown("lines", "topic", "value") == shown("off", "topic", "value")
    assert {row["pack_index"] for row in kinds["off"]} == {None}
    for kind in ("arrow", "lines"):
        places: dict[int, list[int]] = {}
        for packed in kinds[kind]:
            places.setdefault(packed["sequence"], []).append(packed["pack_index"])
        assert 7 <= len(places) <= 14
        assert all(sorted(indexes) == list(range(len(indexes))) for indexes in places.values())


def test_failed_packs_are_published_again_from_the_flight_log(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path
) -> None:
    """The log keeps the pack; sent as it is, with its headers and id, its rows come back."""
    with Admin(nats_server.url) as admin:
        admin.create_stream("ORDERS", ["orders.>"], max_msgs=10, discard="new")
        log, url = str(tmp_path / "log"), nats_server.url
        rows = orders(spark, 200).drop("headers")
        with pytest.raises(PySparkException, match="rows were not published"):
            write(rows, pack="arrow", packMaxRows="10", flightLog=log, url=url)
        failed = unpublished(log, {})
        assert 10 <= failed.num_rows <= 22
        admin.update_stream("ORDERS", max_msgs=-1)
        write(spark.createDataFrame(failed), flightLog=log, url=url)
        assert unpublished(log, {}).num_rows == 0
        back = spark.read.format("mamasub").options(url=url, topics="orders.>").load()
        columns = ("topic", "cast(value AS string) AS value", "id")
        assert listed(back.selectExpr(*columns)) == listed(rows.selectExpr(*columns))
        admin.api("STREAM.DELETE.ORDERS")
