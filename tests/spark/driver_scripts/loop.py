"""A driver to be killed: flights from files to topics, and from the topics to a Delta table, at the same time, over one
middleware or several.

The argument is JSON: ``input`` (folder of CSV files), ``ddl`` (their schema), ``folder``, and ``lanes``, each with
``name``, ``url``, ``rate``, and perhaps ``publish`` (more options of the sink) and ``schema`` (of what is read). A
query that fails is started again, as by a supervisor. The program ends when all that was published is in the tables,
and no file of the folder is hidden.
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


class Lane:
    """One middleware, the query that publishes to it and the one that reads from it."""

    def __init__(self, spark: SparkSession, given: dict[str, Any], lane: dict[str, Any]) -> None:
        self._spark, self._given, self._lane = spark, given, lane
        self._folder = Path(given["folder"], lane["name"])
        self.out, self.back = self._publish(), self._subscribe()
        self.starts = 2

    def _publish(self) -> StreamingQuery:
        reader = self._spark.readStream.schema(self._given["ddl"]).option("header", True).option("nullValue", "NA")
        rows = reader.option("maxFilesPerTrigger", 1).csv(self._given["input"]).repartition(2)
        return (
            rows.selectExpr("concat('flights.', origin, '.', carrier) AS topic", "*")
            .writeStream.format("mamapub")
            .options(url=self._lane["url"], maxRatePerPartition=self._lane["rate"], **self._lane.get("publish", {}))
            .option("checkpointLocation", str(self._folder / "published"))
            .trigger(availableNow=True)
            .start()
        )

    def _subscribe(self) -> StreamingQuery:
        reader = self._spark.readStream.format("mamasub").options(url=self._lane["url"], topics="flights.>")
        if "schema" in self._lane:
            reader = reader.schema(self._lane["schema"])
        return (
            reader.load()
            .writeStream.format("delta")
            .option("checkpointLocation", str(self._folder / "subscribed"))
            .trigger(processingTime="500 milliseconds")
            .start(str(self._folder / "table"))
        )

    def published(self) -> bool:
        """Is all published? What has failed is started again."""
        assert self.starts < MOST_STARTS, (self.out.exception(), self.back.exception())
        if not self.out.isActive and self.out.exception() is not None:
            self.out, self.starts = self._publish(), self.starts + 1
        if not self.back.isActive:
            self.back, self.starts = self._subscribe(), self.starts + 1
        return not self.out.isActive and self.out.exception() is None

    def finish(self) -> None:
        """All that was published is in the table."""
        try:
            self.back.processAllAvailable()
        except StreamingQueryException:
            self.back = self._subscribe()
            self.back.processAllAvailable()
        self.back.stop()


def run(spark: SparkSession, given: dict[str, Any]) -> None:
    lanes = [Lane(spark, given, lane) for lane in given["lanes"]]
    hidden = list(Path(given["input"]).glob(".*.csv"))  # by whom this driver is killed before it may end
    while [lane for lane in lanes if not lane.published()] or hidden:
        time.sleep(0.1)
    for lane in lanes:
        lane.finish()


def main() -> None:
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[4,4]").appName("to be killed")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    run(spark, given)
    spark.stop()


if __name__ == "__main__":
    main()
