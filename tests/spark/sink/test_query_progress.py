"""``mama_spark.QueryProgress`` hears of real queries over all formats, and logs and exports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mama_spark
import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.telemetry.task_metrics import meter_provider
from mama_spark.testing.waiting import eventually
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.mama.discovery_harness import ForeignAnnouncer, create_streams, desk, key

READER = InMemoryMetricReader()


def make_provider() -> MeterProvider:
    """Named by the listener."""
    return MeterProvider([READER])


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[mama_spark.QueryProgress]:
    meter_provider.cache_clear()
    made = mama_spark.QueryProgress(f"{__name__}:make_provider")
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)


def rows_of(query: str) -> int:
    data = READER.get_metrics_data()
    resources = [] if data is None else data.resource_metrics
    metrics = [metric for resource in resources for scope in resource.scope_metrics for metric in scope.metrics]
    rows = [metric for metric in metrics if metric.name == "mama.query.rows"]
    points: list[Any] = [point for metric in rows for point in metric.data.data_points]
    return sum(point.value for point in points if point.attributes["query"] == query)


@pytest.mark.thorough
def test_queries_of_all_formats_are_logged_and_exported(
    spark: SparkSession,
    nats_server: NatsServer,
    tmp_path: Path,
    listener: mama_spark.QueryProgress,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_streams(nats_server.url)
    with ForeignAnnouncer(nats_server.url) as client:
        client.create_stream("IN", ["in.>"])
        client.publish_all((f"in.{i}", b"x", None) for i in range(5))
        client.say(desk(1))
        client.live(key(desk(1)), 60)
    messages = spark.readStream.format("mamasub").option("url", nats_server.url).option("topics", "in.>").load()
    copies = (
        messages.selectExpr("'out.rows' AS topic", "value")
        .writeStream.format("mamapub")
        .options(url=nats_server.url, stream="OUT", createStream="true", flightLog=str(tmp_path / "log"))
    )
    changes = spark.readStream.format("mamadiscovery").option("url", nats_server.url).load()
    with caplog.at_level("INFO", "mama_spark"):
        queries: list[StreamingQuery] = [
            writer.queryName(name).option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
            for name, writer in (("copies", copies), ("sources", changes.writeStream.format("noop")))
        ]
        for query in queries:
            query.awaitTermination()
        eventually(lambda: rows_of("copies") == 5, "the rows of mamasub and mamapub")
        eventually(lambda: rows_of("sources") >= 1, "the rows of mamadiscovery")
    assert any(text.startswith("query copies, batch 0: 5 rows") and "IN 0 behind" in text for text in caplog.messages)
    assert any(text.startswith("query sources, batch 0: ") for text in caplog.messages)
