"""A Spark Connect client: a batch read, then a stream into files. Argument: JSON with ``options``, ``batch``,
``stream`` and ``checkpoint`` (folders)."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    assert "connect" in type(spark).__module__
    spark.read.format("mamasub").options(**given["options"]).load().write.parquet(given["batch"])
    rows = spark.readStream.format("mamasub").options(maxOffsetsPerTrigger="400", **given["options"]).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", given["checkpoint"])
    query = writer.trigger(availableNow=True).start(given["stream"])
    assert query.awaitTermination(240)
    assert query.exception() is None
    spark.stop()


if __name__ == "__main__":
    main()
