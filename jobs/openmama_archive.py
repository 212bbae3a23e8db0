"""Writes messages of an OpenMAMA network to a Delta table, with what is missing among them: an archive of ticks.

Needs a log that mama record writes, and a Spark with Delta.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/openmama_archive.py --conf-file conf/openmama-archive.toml

Each message becomes one row, exactly once; the fields that the configuration names are columns of their types, a gap is
a row with its numbers. Queries: ``docs/how-to/archive-openmama.md``.
"""  # noqa: E501

from __future__ import annotations

import argparse
from typing import Any

import mama_spark
from mama_spark.options.conf_file import as_options, load
from pyspark.sql import DataFrame, SparkSession

#: Kinds of records that are not about a topic.
OTHERS = ("dictionary", "peer", "started", "stopped")
COLUMNS = [
    "mama.kind", "coalesce(mama.topic, topic) AS topic",
    "coalesce(timestamp_micros(mama.received div 1000), timestamp) AS time",
    "mama.msg_type", "mama.msg_status", "mama.seq_num", "mama.sender", "mama.gap_from", "mama.gap_to", "mama.cause",
    "mama.reason", "stream", "sequence", "pack_index",
]  # fmt: skip


def rows(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    read = spark.readStream.format("mamasub").options(**as_options(options)).option("omnm", "true").load()
    fields = read.columns[read.columns.index("mama") + 1 :] or ["mama.fields"]
    wanted = read.where(~read.mama.kind.isin(*OTHERS)).selectExpr(*COLUMNS, *fields)
    return wanted.selectExpr("*", "to_date(time) AS day")


def archive(spark: SparkSession, conf: dict[str, dict[str, Any]]) -> None:
    writer = rows(spark, conf["mamasub"]).writeStream.format("delta").partitionBy("day")
    when = conf["stream"].get("trigger", "10 seconds")
    writer = writer.trigger(**({"availableNow": True} if when == "availableNow" else {"processingTime": when}))
    with mama_spark.last_line():
        writer = writer.option("checkpointLocation", conf["stream"]["checkpointLocation"])
        writer.start(conf["archive"]["path"]).awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file, ("mamasub", "archive", "stream"))
    builder = SparkSession.builder.appName("mama-openmama-archive").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    spark = builder.getOrCreate()
    mama_spark.register(spark)
    archive(spark, conf)


if __name__ == "__main__":
    main()
