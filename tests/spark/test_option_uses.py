"""What Spark hands over by itself is told from what the user asks for: a path has no effect, and is an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

NOWHERE = "nats://127.0.0.1:1"
Call = Callable[[SparkSession, str], object]


def stream(spark: SparkSession, folder: str) -> object:
    rows = spark.readStream.format("rate").load().selectExpr("'a.b' AS topic", "cast(value AS string) AS value")
    writer = rows.writeStream.format("mamapub").option("url", NOWHERE).queryName("a_name")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start("/out")
    return query.awaitTermination()


CALLS: list[Call] = [
    lambda spark, _: spark.range(1).write.format("mamapub").mode("append").save("/out"),
    lambda spark, _: spark.read.format("mamasub").option("topics", "a").load(["/in", "/there"]),
    lambda spark, _: spark.readStream.format("mamasub").option("topics", "a").load("/in"),
    lambda spark, _: spark.read.format("mamadiscovery").load("/in").collect(),
    stream,
]


def test_a_path_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for call in CALLS:
        with pytest.raises(Exception, match=r"option path, which \.save\(\), \.load\(\) and \.start\(\) take too") as e:
            call(spark, str(tmp_path))
        assert "checkpointLocation" not in str(e.value)
        assert "queryName" not in str(e.value)
