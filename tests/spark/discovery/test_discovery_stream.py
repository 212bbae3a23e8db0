"""``readStream.format("mamadiscovery")`` against a real nats-server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.mama.messages.event_records import EventRecord
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually
from pyspark.sql import DataFrame, SparkSession

from tests.support.mama.discovery_harness import ForeignAnnouncer, create_streams, desk, line

DESK = SourceKey("desk", 7)
PATIENCE = 200.0


@pytest.mark.spec("SD-14", "SD-26")
def test_a_query_has_the_image_its_end_and_then_every_event(
    spark: SparkSession,
    nats_server: NatsServer,
    stranger: ForeignAnnouncer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Two sources of one name; a corrupt record in the image and one among the changes."""
    create_streams(nats_server.url)
    for number in (7, 8):
        stranger.say(desk(number))
    stranger.say(b"junk", SourceKey("bad", 1))
    rows: list[dict[str, Any]] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows.extend(row.asDict() for row in batch.collect())

    changes = spark.readStream.format("mamadiscovery").option("url", nats_server.url).load()
    writer = changes.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    request.addfinalizer(writer.trigger(processingTime="100 milliseconds").start().stop)
    eventually(lambda: "image_end" in map(line, rows), "the image", PATIENCE)
    stranger.say(desk(7, data_dict="NEW"))
    stranger.publish_events(DESK, EventRecord("publisher", "create", 1, "desk", 7, topic="a.b"))
    stranger.publish_events(DESK, EventRecord("topic", "PUBLISH_ERROR_BAD_SYMBOL", 1, topic="a..b"))
    stranger.publish_events(DESK, b"junk, too")
    stranger.live(DESK, 2)
    eventually(lambda: "offline desk 7" in map(line, rows), "all changes", PATIENCE)
    lines = [line(row) for row in rows]
    assert sorted(lines[:3]) == ["bad_record bad 1", "online desk 7", "online desk 8"]
    assert lines[3:] == [
        "image_end", "online desk 7", "create a.b", "PUBLISH_ERROR_BAD_SYMBOL a..b", "bad_record None",
        "suspect desk 7", "offline desk 7",
    ]  # fmt: skip
    bad = [row for row in rows if row["event"] == "bad_record"]
    assert [bytes(row["raw"]) for row in bad] == [b"junk", b"junk, too"]
    assert all(row["status"] == "BAD_RECORD" and row["info"] for row in bad)
    expired = [row for row in rows if row["status"] == "EXPIRED"]
    assert [(row["source_state"], row["source_data_state"]) for row in expired] == [
        ("ONLINE", "SUSPECT"), ("OFFLINE", "SUSPECT"),
    ]  # fmt: skip
    (created,) = [row for row in rows if row["event"] == "create"]
    assert created["capabilities"]["EventTime"].startswith("1970-01-01"), "the clock of that publisher is wrong"
    assert created["event_time"].year > 2000, "times are the server's"
    assert {row["transport"] for row in rows} == {nats_server.url}
    assert [row["origin"] for row in rows] == ["MAMA_SOURCES"] * 3 + [rows[3]["origin"]] + ["MAMA_EVENTS"] * 6
