"""Source discovery over real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.discovery import lease_keeper
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.mama import SourceDiscovery, SourceRecord, Transport
from mama_spark.mama.messages.source_records import OFFLINE, OK, ONLINE, SUSPECT
from mama_spark.mama.states import TransportTopicEvent
from mama_spark.nats import NatsSettings
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import until

from tests.support.malamute.malamute_discovery import LASTING, SourceAnnouncers, discovering_broker
from tests.support.mama.mama_discovery import DiscoveryRecorder, as_bytes
from tests.support.mama.mama_harness import CallbackRecorder

# --- source discovery over a real server, whose own clock makes sources vanish ----------------------------------------

KEY = SourceKey("desk", 7)


def records(ear: DiscoveryRecorder) -> list[SourceRecord]:
    return [one for one in ear.heard if isinstance(one, SourceRecord)]


@pytest.fixture
def source(nats_server: NatsServer) -> Iterator[NatsDiscovery]:
    made = NatsDiscovery(NatsSettings((nats_server.url,), name="a source"))
    made.open()
    yield made
    made.close()
    lease_keeper.clear()
    POOL.clear()


def test_a_connection_that_was_closed_for_good_is_made_again(nats_server: NatsServer, source: NatsDiscovery) -> None:
    ear = DiscoveryRecorder()
    place = NatsDiscovery(NatsSettings((nats_server.url,), name="a reader"))
    transport = Transport.create("disc", nats_server.url, place)
    SourceDiscovery.create(ear.callbacks(), None, transport)
    first, second = (SourceRecord("desk", number, ONLINE, OK) for number in (7, 8))
    source.announce(KEY, as_bytes(first), 60.0)
    until(lambda: records(ear) == [first])
    connection = place._connection
    assert connection is not None
    connection.close()
    source.announce(SourceKey("desk", 8), as_bytes(second), 60.0)
    until(lambda: records(ear) == [first, second])
    transport.destroy()


# --- openMAMA's source discovery and topic events over a Malamute broker ----------------------------------------------


@pytest.mark.spec("SD-14", "SD-26", "SD-31", "PE-05", "PE-17")
def test_sources_come_and_vanish_and_readers_are_topic_events(tmp_path: Path) -> None:
    """Image, its end, changes, and what the broker itself says"""
    ear, recorder = DiscoveryRecorder(), CallbackRecorder()
    first, second = SourceRecord("desk", 7, ONLINE, OK), SourceRecord("desk", 7, ONLINE, OK, data_dict="MARKETDATA")
    with discovering_broker(tmp_path) as broker, SourceAnnouncers(broker.url) as desks:
        desks.say(first, ttl=LASTING)
        transport = Transport.create("disc", f"{broker.url}/prices")
        transport.set_transport_topic_callback(recorder.on_topic)
        SourceDiscovery.create(ear.callbacks(), None, transport)
        ear.wait(2)
        with MalamuteClient(broker.url, "reader", features=None) as reader:
            reader.read("prices", "^eu")
        until(lambda: len(recorder.topics) == 2)
        desks.say(second, ttl=2.0)
        desks.fall_silent()
        ear.wait(5)
        transport.destroy()
    suspect = SourceRecord("desk", 7, ONLINE, SUSPECT, data_dict="MARKETDATA")
    offline = SourceRecord("desk", 7, OFFLINE, SUSPECT, data_dict="MARKETDATA")
    assert ear.heard == [first, "end of the image", second, suspect, offline]
    assert recorder.topics == [
        (TransportTopicEvent.SUBSCRIBED, "prices", "client reader reads ^eu"),
        (TransportTopicEvent.UNSUBSCRIBED, "prices", "client reader"),
    ]
