"""Queries of ``mamadiscovery``, and what they told."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.mama.discovery_harness import BatchRecorder

PATIENCE = 240


class DiscoveryQueries:
    """Over one server; whoever makes them stops them."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder
        self.queries: list[StreamingQuery] = []

    def start(self, told: BatchRecorder, name: str = "one", *, now: bool = False, **options: str) -> StreamingQuery:
        """``now``: read what there is and end."""
        rows = self.spark.readStream.format("mamadiscovery").option("url", self.url).options(**options).load()
        writer = rows.writeStream.foreachBatch(told).option("checkpointLocation", str(self.folder / name))
        writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="100 milliseconds")
        self.queries.append(writer.start())
        return self.queries[-1]

    def run(self, told: BatchRecorder, name: str = "one", **options: str) -> None:
        assert self.start(told, name, now=True, **options).awaitTermination(PATIENCE)

    def stop(self) -> None:
        for query in self.queries:
            query.stop()
