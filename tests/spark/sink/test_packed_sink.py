"""``mamapub`` with ``pack``: several rows in a message, on real brokers and through the commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from mama_spark.flightlog.reading import summarise, unpublished
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.malamute.restartable_broker import RestartableBroker
from tests.support.nats.nats_servers import Admin
from tests.support.spark.sink_harness import flights


def orders(spark: SparkSession, n: int, *more: str) -> DataFrame:
    return spark.range(0, n, 1, 2).selectExpr(
        "concat('orders.r', cast(id % 7 as string)) AS topic", "concat('order ', id) AS value", *more
    )


def write(df: DataFrame, **options: str) -> None:
    df.write.format("mamapub").options(**options).mode("append").save()


@pytest.mark.parametrize(("room", "pack"), [("nats", "lines"), ("malamute", "arrow")], indirect=["room"])
def test_packed_rows_are_stored_once_and_are_in_the_committed_log(
    spark: SparkSession, room: RestartableBroker, tmp_path: Path, pack: str
) -> None:
    room.create("ORDERS", "orders.>")
    log = tmp_path / "log"
    options = {**room.options("ORDERS"), "flightLog": str(log), "flightLogPayload": "all", "flightLogColumns": "k"}
    rows = orders(spark, 2_000, "id AS k")
    write(rows, pack=pack, packMaxBytes="3000", **options)
    back = spark.read.format("mamasub").options(**room.options("ORDERS"), topics="orders.>").load()
    shown = ("topic", "cast(value AS string) AS value")
    assert sorted(back.selectExpr(*shown).collect()) == sorted(rows.selectExpr(*shown).collect())
    assert len(room.messages("ORDERS")) < 100
    table = flights(log)
    assert set(table["event"].to_pylist()) == {"acked"}
    assert pc.sum(table["rows"]).as_py() == 2_000
    assert sorted(e["k"] for row in table["packed"].to_pylist() for e in row) == list(range(2_000))
    assert pc.max(table["size"]).as_py() <= 3_000
    told = summarise(str(log), {})
    assert told.count_rows("acked") == 2_000
    assert "2,000 rows" in told.text()


def test_failed_packs_are_published_again_from_the_flight_log(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    """The log keeps the pack; sent as it is, with its headers and id, its rows come back."""
    admin.create_stream("ORDERS", ["orders.>"], max_msgs=10, discard="new")
    log, url = str(tmp_path / "log"), nats_server.url
    rows = orders(spark, 200, "concat('id-', id) AS id")
    with pytest.raises(PySparkException, match="rows were not published"):
        write(rows, pack="arrow", packMaxRows="10", idColumn="id", flightLog=log, url=url)
    failed = unpublished(log, {})
    assert 10 <= failed.num_rows <= 22
    admin.update_stream("ORDERS", max_msgs=-1)
    write(spark.createDataFrame(failed), idColumn="id", flightLog=log, url=url)
    assert unpublished(log, {}).num_rows == 0
    back = spark.read.format("mamasub").options(url=url, topics="orders.>").load()
    columns = ("topic", "cast(value AS string) AS value", "id")
    assert sorted(back.selectExpr(*columns).collect()) == sorted(rows.selectExpr(*columns).collect())
