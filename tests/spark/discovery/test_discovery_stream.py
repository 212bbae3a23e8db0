"""``readStream.format("mamadiscovery")`` against a real nats-server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.mama.messages.event_records import EventRecord
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.mama.discovery_harness import BatchRecorder, ForeignAnnouncer, create_streams, desk
from tests.support.spark.discovery_harness import DiscoveryQueries

DESK = SourceKey("desk", 7)


@pytest.fixture
def case(spark: SparkSession, nats_server: NatsServer, tmp_path: Path) -> Iterator[DiscoveryQueries]:
    made = DiscoveryQueries(spark, nats_server.url, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def place(case: DiscoveryQueries, stranger: ForeignAnnouncer) -> ForeignAnnouncer:
    """The streams are there, and empty."""
    create_streams(case.url)
    return stranger


def failure(query: StreamingQuery) -> str:
    with pytest.raises(StreamingQueryException) as e:
        query.awaitTermination(240)
    return str(e.value)


@pytest.mark.spec("SD-14", "SD-26")
def test_a_query_has_the_image_its_end_and_then_every_event(case: DiscoveryQueries, place: ForeignAnnouncer) -> None:
    """Two sources of one name; a corrupt record in the image and one among the changes."""
    for number in (7, 8):
        place.say(desk(number))
    place.say(b"junk", SourceKey("bad", 1))
    told = BatchRecorder()
    case.start(told)
    told.wait(lambda lines: "image_end" in lines, "the image")
    place.say(desk(7, data_dict="NEW"))
    place.publish_events(DESK, EventRecord("publisher", "create", 1, "desk", 7, topic="a.b"))
    place.publish_events(DESK, EventRecord("topic", "PUBLISH_ERROR_BAD_SYMBOL", 1, topic="a..b"))
    place.publish_events(DESK, b"junk, too")
    place.live(DESK, 2)
    changes = [
        "online desk 7",
        "create a.b",
        "PUBLISH_ERROR_BAD_SYMBOL a..b",
        "bad_record None",
        "suspect desk 7",
        "offline desk 7",
    ]
    lines = told.wait(lambda lines: "offline desk 7" in lines, "all changes")
    end = lines.index("image_end")
    assert sorted(lines[:end]) == ["bad_record bad 1", "online desk 7", "online desk 8"]
    assert lines[end + 1 :] == changes
    bad = [row for row in told.rows if row["event"] == "bad_record"]
    assert [bytes(row["raw"]) for row in bad] == [b"junk", b"junk, too"]
    assert all(row["status"] == "BAD_RECORD" and row["info"] for row in bad)
    expired = [row for row in told.rows if row["status"] == "EXPIRED"]
    assert [(row["source_state"], row["source_data_state"]) for row in expired] == [
        ("ONLINE", "SUSPECT"),
        ("OFFLINE", "SUSPECT"),
    ]
    (created,) = [row for row in told.rows if row["event"] == "create"]
    assert created["capabilities"]["EventTime"].startswith("1970-01-01"), "the clock of that publisher is wrong"
    assert created["event_time"].year > 2000, "times are the server's"
    assert {row["transport"] for row in told.rows} == {case.url}
    assert [row["origin"] for row in told.rows] == ["MAMA_SOURCES"] * 3 + [told.rows[3]["origin"]] + ["MAMA_EVENTS"] * 6


@pytest.mark.thorough
def test_after_a_restart_each_event_comes_once_and_in_order_also_those_of_the_time_between(
    case: DiscoveryQueries, place: ForeignAnnouncer
) -> None:
    """A batch that was read and not committed is told again to the letter; so is the image."""
    place.say(desk(0))
    for fails in (0, 1):
        told = BatchRecorder(fail_in=fails)
        name = f"fails in {fails}"
        query = case.start(told, name)
        if fails:
            told.wait(lambda lines: "image_end" in lines, "the image")
        place.say(desk(1))
        assert "read and not committed" in failure(query)
        for number in (2, 3):
            place.say(desk(number))
        place.say(desk(0, data_dict="LATE"))
        query = case.start(told, name)
        lines = told.wait(lambda lines: lines[-1:] == ["online desk 0"] and len(lines) > 2, "all changes")
        query.stop()
        assert told.again == [fails]
        image, changes = lines[: lines.index("image_end")], lines[lines.index("image_end") + 1 :]
        assert set(image) <= {"online desk 0", "online desk 1", "online desk 2", "online desk 3"}
        assert len(image) == len(set(image))
        fresh = [line for line in ("online desk 1", "online desk 2", "online desk 3") if fails or line not in image]
        assert changes == [*fresh, "online desk 0"]
