"""Writes discovery to two Delta tables: the history of all events, and the current state of the sources.

Needs a broker and a Spark with Delta.

spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/discover.py --conf-file conf/discover.toml
"""

from __future__ import annotations

import argparse

import mama_spark
from mama_spark.contracts.errors import ConfigError
from mama_spark.options.conf_file import Table, as_options, load
from mama_spark.spark.discovery.tables import DiscoveryTables
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

NEEDED = {"tables": ("history", "current"), "stream": ("checkpointLocation",)}
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def discover(spark: SparkSession, options: dict[str, str], tables: Table, stream: Table) -> StreamingQuery:
    """Start the query."""
    rows = spark.readStream.format("mamadiscovery").options(**options).load()
    keep = DiscoveryTables(tables["history"], tables["current"])
    writer = rows.writeStream.foreachBatch(keep.write).option("checkpointLocation", stream["checkpointLocation"])
    if stream.get("trigger") == "availableNow":
        writer = writer.trigger(availableNow=True)
    elif "trigger" in stream:
        writer = writer.trigger(processingTime=stream["trigger"])
    return writer.queryName("discovery").start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conf-file", required=True)
    path = parser.parse_args().conf_file
    conf = load(path, ("mamadiscovery", "tables", "stream"))
    for table, names in NEEDED.items():
        for name in names:
            if name not in conf[table]:
                raise ConfigError(f"{path}: [{table}] {name} is missing")
    builder = SparkSession.builder.appName("mama-discover")
    for name, value in DELTA.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with mama_spark.stopping(spark):
        mama_spark.register(spark)
        discover(spark, as_options(conf["mamadiscovery"]), conf["tables"], conf["stream"]).awaitTermination()


if __name__ == "__main__":
    main()
