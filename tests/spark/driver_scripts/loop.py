"""A driver to be killed: flights from files to topics, and from the topics to a Delta table, at the same time.

The argument is JSON: ``input`` (folder of CSV files), ``ddl`` (their schema), ``folder``, ``url``, ``rate``, and
perhaps ``publish`` (more options of the sink) and ``schema`` (of what is read). A query that fails is started again, as
a supervisor would; the program ends when all that was published is in the table, and no file of the folder is hidden.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from delta import configure_spark_with_delta_pip
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

MOST_STARTS = 10


def publish(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    reader = spark.readStream.schema(given["ddl"]).option("header", True).option("nullValue", "NA")
    rows = reader.option("maxFilesPerTrigger", 1).csv(given["input"]).repartition(2)
    return (
        rows.selectExpr("concat('flights.', origin, '.', carrier) AS topic", "*")
        .writeStream.format("mamapub")
        .options(url=given["url"], maxRatePerPartition=given["rate"], **given.get("publish", {}))
        .option("checkpointLocation", f"{given['folder']}/published")
        .trigger(availableNow=True)
        .start()
    )


def subscribe(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    reader = spark.readStream.format("mamasub").options(url=given["url"], topics="flights.>")
    if "schema" in given:
        reader = reader.schema(given["schema"])
    return (
        reader.load()
        .writeStream.format("delta")
        .option("checkpointLocation", f"{given['folder']}/subscribed")
        .trigger(processingTime="0 seconds")
        .start(f"{given['folder']}/table")
    )


def main() -> None:
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2,4]").appName("to be killed")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    out, back = publish(spark, given), subscribe(spark, given)
    starts = 2
    hidden = list(Path(given["input"]).glob(".*.csv"))  # by whom this driver is killed before it may end
    while hidden or out.isActive or out.exception() is not None or not back.isActive:
        assert starts < MOST_STARTS, (out.exception(), back.exception())
        if not out.isActive and out.exception() is not None:
            out, starts = publish(spark, given), starts + 1
        if not back.isActive:
            back, starts = subscribe(spark, given), starts + 1
        time.sleep(0.1)
    try:
        back.processAllAvailable()
    except StreamingQueryException:
        back = subscribe(spark, given)
        back.processAllAvailable()
    back.stop()
    print(f"{starts} starts")
    spark.stop()


if __name__ == "__main__":
    main()
