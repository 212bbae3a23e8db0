"""Writes events of Tango devices to a Delta table: an archive.

Needs a log that mama record writes, and a Spark with Delta.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/tango_archive.py --conf-file conf/tango-archive.toml

Each record of ``mama record`` becomes one row, exactly once. Queries: ``docs/how-to/query-the-tango-archive.md``.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

import mama_spark
from mama_spark.conf_file import as_options, load
from pyspark.sql import DataFrame, SparkSession

COLUMNS = [
    "kind", "tango.tango_host", "device", "attribute", "event", "tango.origin", "time", "to_date(time) AS day",
    "coalesce(tango.data_time, unix_micros(time) * 1000) AS data_time", "tango.received", "tango.quality",
    "tango.data_type", "tango.format", "tango.dim_x", "tango.dim_y",  # and of a scalar, whatever its type, as a number:
    """CASE WHEN tango.format = 'SCALAR' THEN coalesce(get(tango.value_double, 0), get(tango.value_long, 0),
       double(get(tango.value_ulong, 0)), double(get(tango.value_bool, 0))) END AS value""",
    *(f"tango.{part}_{kind}" for part in ("value", "set")
      for kind in ("double", "long", "ulong", "bool", "string", "encoded")),
    "tango.errors", "tango.gap_count", "tango.cause", "stream", "sequence",
]  # fmt: skip


def rows(spark: SparkSession, options: dict[str, Any], devices: list[str]) -> DataFrame:
    read = spark.readStream.format("mamasub").options(**as_options(options)).option("tango", "true")
    named = read.load().selectExpr(
        "*", "tango.kind AS kind", "tango.device AS device", "tango.attribute AS attribute", "tango.event AS event",
        "coalesce(timestamp_micros(tango.data_time div 1000), timestamp) AS time",
    )  # fmt: skip
    wanted = named.where("device IS NOT NULL OR kind = 'corrupt'").selectExpr(*COLUMNS)
    patterns = "|".join(".*".join(map(re.escape, device.split("*"))) for device in devices)
    return wanted.where(wanted.device.rlike(f"(?i)^({patterns})$") | (wanted.kind == "corrupt")) if devices else wanted


def archive(spark: SparkSession, conf: dict[str, dict[str, Any]]) -> None:
    events = rows(spark, conf["mamasub"], conf["archive"].get("devices", []))
    writer = events.writeStream.format("delta").partitionBy("day")
    when = conf["stream"].get("trigger", "10 seconds")
    writer = writer.trigger(**({"availableNow": True} if when == "availableNow" else {"processingTime": when}))
    writer.start(conf["archive"]["path"], checkpointLocation=conf["stream"]["checkpointLocation"]).awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file, ("mamasub", "archive", "stream"))
    builder = SparkSession.builder.appName("mama-tango-archive").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    spark = builder.getOrCreate()
    with mama_spark.stopping(spark):
        mama_spark.register(spark)
        archive(spark, conf)


if __name__ == "__main__":
    main()
