"""``mamapub`` with ``pack``: several rows in a message, on real brokers and through the commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from mama_spark.flightlog.reading import summarise
from pyspark.sql import DataFrame, SparkSession

from tests.support.malamute.restartable_broker import RestartableBroker
from tests.support.spark.packed_harness import packed_verdict
from tests.support.spark.sink_harness import flights


def orders(spark: SparkSession, n: int) -> DataFrame:
    return spark.range(0, n, 1, 2).selectExpr(
        "concat('orders.r', cast(id % 7 as string)) AS topic", "concat('order ', id) AS value", "id AS k"
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
    write(orders(spark, 2_000), pack=pack, packMaxBytes="3000", **options)
    packed_verdict(room, "ORDERS", log, sent=2_000).raise_faults()
    table = flights(log)
    assert pc.sum(table["rows"]).as_py() == 2_000
    assert sorted(e["k"] for row in table["packed"].to_pylist() for e in row) == list(range(2_000))
    assert pc.max(table["size"]).as_py() <= 3_000
    assert len(table) < 100
    told = summarise(str(log), {})
    assert told.count_rows("acked") == 2_000
    assert "2,000 rows" in told.text()
