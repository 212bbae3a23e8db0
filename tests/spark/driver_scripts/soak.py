"""A driver to be killed, again and again: a folder that grows to topics, and from the topics to a Delta table.

The argument is JSON: ``ddl`` (schema of the CSV files), ``folder`` (with ``input``, checkpoints, tables), ``options``
of mamapub, ``url``. Queries that fail are started again, as a supervisor would, and the reason is written to
``failures``, a JSON object a line. When there is a file ``stop``, what is there is published and read, and the program
ends.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delta import configure_spark_with_delta_pip
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
BETWEEN_STARTS = 1.0


def publish(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    reader = spark.readStream.schema(given["ddl"]).option("header", True).option("nullValue", "NA")
    rows = reader.option("maxFilesPerTrigger", 20).csv(f"{given['folder']}/input").repartition(2)
    return (
        rows.selectExpr("concat('flights.', origin, '.', carrier) AS topic", "*")
        .writeStream.format("mamapub")
        .options(**given["options"])
        .option("checkpointLocation", f"{given['folder']}/published")
        .trigger(processingTime="1 second")
        .start()
    )


def subscribe(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    rows = spark.readStream.format("mamasub").options(url=given["url"], topics="flights.>").load()
    return (
        rows.writeStream.format("delta")
        .option("checkpointLocation", f"{given['folder']}/subscribed")
        .trigger(processingTime="1 second")
        .start(f"{given['folder']}/table")
    )


class Supervised:
    """A query that is started again whenever it fails."""

    def __init__(self, name: str, start: Callable[[], StreamingQuery], failures: Path) -> None:
        self.name, self._start, self._failures = name, start, failures
        self.query: StreamingQuery | None = None
        self._begin()

    def _begin(self) -> None:
        try:
            self.query = self._start()
        except (PySparkException, Py4JJavaError) as e:  # it is planned by a worker, too
            self.query = None
            self._note(e)

    def _note(self, error: Any) -> None:
        with self._failures.open("a") as out:
            said = {"query": self.name, "why": str(error), "cause": str(getattr(error, "_cause", None))}
            print(json.dumps(said), file=out)

    def look(self) -> None:
        """Start it again if it failed."""
        if self.query is not None and self.query.isActive:
            return
        if self.query is not None:
            self._note(self.query.exception())
        time.sleep(BETWEEN_STARTS)
        self._begin()

    def finish(self) -> None:
        """Until all that is there has gone through."""
        while True:
            with contextlib.suppress(StreamingQueryException):
                if self.query is not None:
                    self.query.processAllAvailable()
                    if self.query.isActive:
                        self.query.stop()
                        return
            self.look()


def main() -> None:
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    builder = SparkSession.builder.master("local[2,4]").appName("to be killed")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    out = Supervised("publish", lambda: publish(spark, given), folder / "failures")
    back = Supervised("subscribe", lambda: subscribe(spark, given), folder / "failures")
    while not (folder / "stop").exists():
        out.look()
        back.look()
        time.sleep(0.1)
    out.finish()
    back.finish()
    spark.stop()


if __name__ == "__main__":
    main()
