"""``mama_spark.QueryProgress`` hears of a real query; the unit tests have what it logs and exports."""

from __future__ import annotations

from pathlib import Path

import mama_spark
import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually
from pyspark.sql import SparkSession

from tests.support.nats.nats_servers import Admin
from tests.support.spark.subscribe_harness import plain, store


@pytest.mark.thorough
def test_a_query_from_mamasub_to_mamapub_is_logged_from_its_start_to_its_end(
    spark: SparkSession,
    nats_server: NatsServer,
    admin: Admin,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    admin.create_stream("IN", ["in.>"])
    store(admin, "IN", plain("in.a", 5))
    listener = mama_spark.QueryProgress()
    spark.streams.addListener(listener)
    request.addfinalizer(lambda: spark.streams.removeListener(listener))
    messages = spark.readStream.format("mamasub").option("url", nats_server.url).option("topics", "in.>").load()
    copies = messages.selectExpr("'out.rows' AS topic", "value").writeStream.format("mamapub").queryName("copies")
    copies = copies.options(url=nats_server.url, stream="OUT", createStream="true", checkpointLocation=str(tmp_path))
    with caplog.at_level("INFO", "mama_spark"):
        query = copies.trigger(availableNow=True).start()
        query.awaitTermination()
        eventually(lambda: f"query {query.id} ended" in caplog.messages, "the end of the query")
    started, first, *_ = [text for text in caplog.messages if text.startswith("query copies")]
    assert started == "query copies started"
    assert first.startswith("query copies, batch 0: 5 rows")
    assert "IN 0 behind" in first
