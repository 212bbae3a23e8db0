"""Writes messages of topics to a Delta table.

Needs a broker and a Spark with Delta.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/ingest.py --conf-file conf/ingest.toml

Every message becomes one row, exactly once: the checkpoint has the position of the table. Start it again at any time.
"""

from __future__ import annotations

import argparse
from typing import Any

import mama_spark
from mama_spark.options.conf_file import as_options, load
from pyspark.sql import DataFrame, SparkSession

TABLES = ("mamasub", "output", "stream")
STRINGS = dict[str, Any]


def session() -> SparkSession:
    builder = SparkSession.builder.appName("mama-ingest")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    return builder.config("spark.sql.catalog.spark_catalog", catalog).getOrCreate()


def read(spark: SparkSession, options: STRINGS, output: STRINGS) -> DataFrame:
    rows = spark.readStream.format("mamasub").options(**as_options(options)).load()
    return rows.selectExpr(*output["select"]) if "select" in output else rows


def write(rows: DataFrame, output: STRINGS, stream: STRINGS) -> None:
    writer = rows.writeStream.format("delta").outputMode("append")
    writer = writer.option("checkpointLocation", stream["checkpointLocation"])
    if "partitionBy" in output:
        writer = writer.partitionBy(*output["partitionBy"])
    if stream.get("trigger") == "availableNow":
        writer = writer.trigger(availableNow=True)
    elif "trigger" in stream:
        writer = writer.trigger(processingTime=stream["trigger"])
    writer.start(output["path"]).awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file, TABLES)
    spark = session()
    with mama_spark.stopping(spark):
        mama_spark.register(spark)
        write(read(spark, conf["mamasub"], conf["output"]), conf["output"], conf["stream"])


if __name__ == "__main__":
    main()
