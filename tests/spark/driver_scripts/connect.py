"""A Spark Connect client: a batch and a stream to topics, and the same back. Argument: JSON with ``folder`` (with a
folder ``input``), ``options`` of ``mamapub`` and ``topics``."""

from __future__ import annotations

import json
import sys
from typing import Any

import mama_spark
from pyspark.sql import SparkSession


def publish(spark: SparkSession, given: dict[str, Any]) -> None:
    rows = spark.range(0, 1_000, 1, 2).selectExpr(
        "concat('orders.r', cast(id % 5 AS STRING)) AS topic", "concat('batch ', id) AS value"
    )
    rows.write.format("mamapub").options(**given["options"]).mode("append").save()
    rows = spark.readStream.schema("topic STRING, value STRING").json(f"{given['folder']}/input")
    query = (
        rows.writeStream.format("mamapub")
        .options(**given["options"])
        .option("checkpointLocation", f"{given['folder']}/published")
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    with mama_spark.announced(query, given["options"]):
        assert query.awaitTermination(240)
    assert query.exception() is None


def subscribe(spark: SparkSession, given: dict[str, Any]) -> None:
    options = {"url": given["options"]["url"], "topics": given["topics"]}
    spark.read.format("mamasub").options(**options).load().write.parquet(f"{given['folder']}/batch")
    rows = spark.readStream.format("mamasub").options(maxOffsetsPerTrigger="1000", **options).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{given['folder']}/subscribed")
    query = writer.trigger(availableNow=True).start(f"{given['folder']}/stream")
    assert query.awaitTermination(240)
    assert query.exception() is None


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    assert "connect" in type(spark).__module__
    publish(spark, given)
    subscribe(spark, given)
    spark.stop()


if __name__ == "__main__":
    main()
