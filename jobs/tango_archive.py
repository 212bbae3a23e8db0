"""Writes events of Tango devices to Delta tables: an archive, and the configurations of its attributes.

Needs a log that mama record writes, and a Spark with Delta.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/tango_archive.py --conf-file conf/tango-archive.toml

Each record of ``mama record`` becomes one row, exactly once, unless ``[strategies]`` thin out the readings of an
attribute. Queries: ``docs/how-to/query-the-tango-archive.md``.
"""

from __future__ import annotations

import argparse
from typing import Any

import mama_spark
from mama_spark.options.conf_file import as_options, load
from mama_spark.tango.archive import COLUMNS, add_configurations, configurations, rows, thin_out
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def archive(spark: SparkSession, conf: dict[str, dict[str, Any]]) -> list[StreamingQuery]:
    settings, stream, options = conf["archive"], conf["stream"], as_options(conf["mamasub"])
    devices, path, checkpoint = settings.get("devices", []), settings["path"], stream["checkpointLocation"]
    when = stream.get("trigger", "10 seconds")
    trigger: Any = {"availableNow": True} if when == "availableNow" else {"processingTime": when}
    events = thin_out(rows(spark, options, devices).selectExpr(*COLUMNS), conf["strategies"])
    writer = events.writeStream.format("delta").partitionBy("day").option("mergeSchema", "true").trigger(**trigger)
    queries = [writer.start(path, checkpointLocation=checkpoint)]

    table = settings.get("attConf", f"{path}_att_conf")
    found = configurations(spark, options, devices)
    writer = found.writeStream.foreachBatch(lambda batch, _: add_configurations(batch, table)).trigger(**trigger)
    return [*queries, writer.start(checkpointLocation=f"{checkpoint}_att_conf")]


def session(builder: SparkSession.Builder) -> SparkSession:
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    return builder.getOrCreate()


def run(spark: SparkSession, conf: dict[str, dict[str, Any]]) -> None:
    mama_spark.register(spark)
    queries = archive(spark, conf)
    while {query.awaitTermination(5) for query in queries} != {True}:  # raises if one failed
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file, ("mamasub", "archive", "stream", "strategies"))
    spark = session(SparkSession.builder.appName("mama-tango-archive"))
    with mama_spark.stopping(spark):
        run(spark, conf)


if __name__ == "__main__":
    main()
