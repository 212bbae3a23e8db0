"""Keeps a Delta table like a key-value bucket, or like the last message of each topic.

Needs a bucket, or a stream, and a Spark with Delta.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/mirror.py --conf-file conf/mirror.toml

The table first gets what is there, then each change, once. Start it again at any time; `mama check` says where table
and bucket differ.
"""

from __future__ import annotations

import argparse
from typing import Any

import mama_spark
from mama_spark.options.conf_file import as_options, load
from pyspark.sql import SparkSession


def mirror(spark: SparkSession, conf: dict[str, dict[str, Any]]) -> None:
    options, output, stream = as_options(conf["mamasub"]), conf["output"], conf["stream"]
    columns = {} if "bucket" in conf["mamasub"] else {"key": "topic", "revision": "sequence"}
    changes = spark.readStream.format("mamasub").options(**{"includeDeleted": "true", **options}).load()
    changes = changes.selectExpr(*output["select"]) if "select" in output else changes
    when = stream.get("trigger", "10 seconds")
    trigger: Any = {"availableNow": True} if when == "availableNow" else {"processingTime": when}
    writer = changes.writeStream.foreachBatch(mama_spark.merge_changes(output["path"], **columns)).trigger(**trigger)
    writer.start(checkpointLocation=stream["checkpointLocation"]).awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file, ("mamasub", "output", "stream"))
    builder = SparkSession.builder.appName("mama-mirror")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    spark = builder.getOrCreate()
    with mama_spark.stopping(spark):
        mama_spark.register(spark)
        mirror(spark, conf)


if __name__ == "__main__":
    main()
