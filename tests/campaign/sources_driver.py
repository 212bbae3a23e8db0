"""A driver to be killed: streams from ``mamasub`` and from ``mamadiscovery`` into a Delta table each.

The argument is JSON: ``url``, ``folder`` (for tables and checkpoints). A query that fails is started again. When there
is a file ``stop``, what is there is read, and the program ends.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from delta import configure_spark_with_delta_pip
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

CONF = {
    "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "1", "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}  # fmt: skip
SOURCES = {
    "mamasub": {"topics": "campaign.>", "startingOffsets": "earliest"},
    "mamadiscovery": {"startingOffsets": "earliest"},
}


def start(spark: SparkSession, given: dict[str, Any], source: str) -> StreamingQuery:
    folder = Path(given["folder"])
    rows = spark.readStream.format(source).options(url=given["url"], **SOURCES[source]).load()
    return (
        rows.writeStream.format("delta")
        .option("checkpointLocation", str(folder / f"{source}-checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start(str(folder / source))
    )


def main() -> None:
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2,4]").appName("to be killed")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    queries = {source: start(spark, given, source) for source in SOURCES}
    drained: set[str] = set()
    while drained != set(SOURCES):
        for source, query in queries.items():
            if not query.isActive:
                print(f"{source} failed: {query.exception()}", flush=True)
                queries[source] = start(spark, given, source)
            elif Path(given["folder"], "stop").exists() and source not in drained:
                with contextlib.suppress(StreamingQueryException):
                    query.processAllAvailable()
                    drained.add(source)
        time.sleep(0.1)
    for query in queries.values():
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
