"""``mamadiscovery`` over ``mama broker``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.discovery import lease_keeper
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.mama.messages.event_records import EventRecord
from pyspark.sql import SparkSession

from tests.support.malamute.broker_process import BrokerProcess
from tests.support.malamute.malamute_discovery import SourceAnnouncers, discovering_broker
from tests.support.mama.discovery_harness import BatchRecorder, desk
from tests.support.spark.discovery_harness import DiscoveryQueries

DESK = SourceKey("desk", 7)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with discovering_broker(tmp_path / "broker") as running:
        yield running
        lease_keeper.clear()


@pytest.fixture
def desks(broker: BrokerProcess) -> Iterator[SourceAnnouncers]:
    with SourceAnnouncers(broker.url) as made:
        yield made


@pytest.fixture
def case(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Iterator[DiscoveryQueries]:
    made = DiscoveryQueries(spark, broker.url, tmp_path)
    yield made
    made.stop()


@pytest.mark.spec("SD-14", "SD-26", "PE-17")
def test_a_batch_read_is_the_image_and_a_stream_is_image_end_and_changes(
    case: DiscoveryQueries, broker: BrokerProcess, desks: SourceAnnouncers
) -> None:
    """Sources, events of publishers, and plain clients that come and go."""
    desks.say(desk(7, qos_rate="BEST"))
    desks.say(b"junk", SourceKey("bad", 1))
    rows = case.spark.read.format("mamadiscovery").option("url", broker.url).load().collect()
    assert sorted((r.kind, r.event, r.source_name, int(r.source_id)) for r in rows) == [
        ("source", "bad_record", "bad", 1),
        ("source", "online", "desk", 7),
    ]
    assert {r.bridge for r in rows} == {"malamute"}
    told = BatchRecorder()
    query = case.start(told)
    told.wait(lambda lines: "image_end" in lines, "the image")
    desks.say(desk(7, data_dict="NEW"))
    desks.tell(DESK, EventRecord("publisher", "create", 1, "desk", 7, topic="a.b"))
    desks.tell(DESK, b"junk, too")
    with MalamuteClient(broker.url, "reader", features=None) as reader:
        reader.read("prices", "^eu")
        reader.cancel("prices")
    told.wait(lambda lines: "GONE None" in lines, "the client went")
    desks.say(desk(8), ttl=2.0)
    desks.fall_silent()
    lines = told.wait(lambda lines: "offline desk 8" in lines, "all changes")
    end = lines.index("image_end")
    assert sorted(lines[:end]) == ["bad_record bad 1", "online desk 7"]
    changes = ["online desk 7", "create a.b", "bad_record None", "CONNECTED None", "SUBSCRIBED prices",
               "UNSUBSCRIBED prices", "GONE None", "online desk 8", "suspect desk 8", "offline desk 8"]  # fmt: skip
    assert sorted(lines[end + 1 :]) == sorted(changes), "however often the query looked"
    by_event = {row["event"]: row for row in told.rows}
    assert by_event["SUBSCRIBED"]["info"] == "client reader reads ^eu"
    assert (by_event["SUBSCRIBED"]["kind"], by_event["SUBSCRIBED"]["origin"]) == ("topic", "_MAMA_EVENTS")
    assert by_event["GONE"]["info"] == "client reader went: close"
    assert (by_event["offline"]["status"], by_event["offline"]["source_state"]) == ("EXPIRED", "OFFLINE")
    assert query.isActive
