"""A Spark Connect client: a batch write, then a stream of what a folder holds. Argument: JSON with ``options``,
``input``, ``checkpoint``."""

from __future__ import annotations

import json
import sys

import mama_spark
from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    assert "connect" in type(spark).__module__
    rows = spark.range(0, 1_000, 1, 2).selectExpr(
        "concat('orders.r', cast(id % 5 AS STRING)) AS topic", "concat('batch ', id) AS value"
    )
    rows.write.format("mamapub").options(**given["options"]).mode("append").save()
    rows = spark.readStream.schema("topic STRING, value STRING").json(given["input"])
    query = (
        rows.writeStream.format("mamapub")
        .options(**given["options"])
        .option("checkpointLocation", given["checkpoint"])
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    with mama_spark.announced(query, given["options"]):
        assert query.awaitTermination(240)
    assert query.exception() is None
    spark.stop()


if __name__ == "__main__":
    main()
