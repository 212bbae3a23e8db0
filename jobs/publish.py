"""Publishes anything that Spark can read.

Needs a broker; that of mama serve takes the rows of the configuration file as it is.

spark-submit jobs/publish.py --conf-file conf/publish.toml
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from typing import Any

import mama_spark
from mama_spark.options.conf_file import load
from pyspark.sql import DataFrame, SparkSession

STRINGS = dict[str, Any]


def read(spark: SparkSession, source: STRINGS, reader_options: STRINGS) -> DataFrame:
    reader = spark.readStream if source.get("stream") else spark.read
    reader = reader.format(source["format"])
    if "schema" in source:
        reader = reader.schema(source["schema"])
    for name, value in reader_options.items():
        reader = reader.option(name, value)
    rows = reader.load(source["path"]) if "path" in source else reader.load()
    return rows.selectExpr(*source["select"]) if "select" in source else rows


def write_batch(spark: SparkSession, rows: DataFrame, options: STRINGS) -> None:
    with mama_spark.progress(spark):
        rows.write.format("mamapub").options(**options).mode("append").save()


def write_stream(spark: SparkSession, rows: DataFrame, options: STRINGS, stream: STRINGS) -> None:
    writer = rows.writeStream.format("mamapub").options(**options).outputMode("append")
    writer = writer.option("checkpointLocation", stream["checkpointLocation"])
    if stream.get("trigger") == "availableNow":
        writer = writer.trigger(availableNow=True)
    elif "trigger" in stream:
        writer = writer.trigger(processingTime=stream["trigger"])
    watched = stream.get("trigger") == "availableNow" or sys.stderr.isatty()  # else a line each ten seconds, for ever
    with mama_spark.progress(spark) if watched else nullcontext():
        query = writer.start()
        with mama_spark.announced(query):  # with announce = true: OFFLINE as soon as the query has ended
            query.awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    conf = load(parser.parse_args().conf_file)
    spark = SparkSession.builder.appName("mama-publish").getOrCreate()
    with mama_spark.stopping(spark):
        mama_spark.register(spark)
        rows = read(spark, conf["input"], conf.get("reader", {}))
        if conf["input"].get("stream"):
            write_stream(spark, rows, conf["mamapub"], conf["stream"])
        else:
            write_batch(spark, rows, conf["mamapub"])


if __name__ == "__main__":
    main()
