"""Source discovery: images that do not come, records that cannot be read, collisions and losses."""

from __future__ import annotations

import pytest
from mama_spark.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.bridges.memory.discovery import MemoryDiscovery
from mama_spark.errors import ConfigError
from mama_spark.mama import (
    MamaMsg,
    SourceDiscovery,
    TransportTopicEvent,
)
from mama_spark.mama.discovery.discovery import Sources
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import (
    DEFAULT_FIELDS,
    OFFLINE,
    decode_source,
    encode_source,
)
from mama_spark.testing.waiting import until

from tests.support.mama.mama_discovery import TTL, DiscoveryRecorder, MamaDiscoverySetup, as_bytes, record
from tests.support.mama.mama_harness import CallbackRecorder, a_message


@pytest.mark.spec("SD-21", "SD-24")
def test_without_an_image_in_time_there_is_an_error_once_and_the_image_later(place: MamaDiscoverySetup) -> None:
    place.announce(record())
    place.registry.up = False
    ear = DiscoveryRecorder()
    SourceDiscovery.create(ear.callbacks(), None, place.transport(), image_timeout=0.1)
    (error,) = ear.wait(1)
    assert error.startswith("no image of the sources within 0.1 s: ")
    place.registry.up = True
    assert ear.wait(3)[1:] == [record(), "end of the image"]
    place.registry.up = False
    assert ear.wait(4)[3].startswith("no answer within 0.1 s: "), "an outage later is said as well"
    place.registry.up = True
    place.announce(record("later", 1))
    assert ear.wait(5)[4:] == [record("later", 1)]


def test_what_the_user_must_change_is_said_at_once(place: MamaDiscoverySetup, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: object) -> None:
        raise ConfigError("no permission to read MAMA_SOURCES")

    monkeypatch.setattr(MemoryDiscovery, "open", forbidden)
    ear = DiscoveryRecorder()
    SourceDiscovery.create(ear.callbacks(), None, place.transport())
    assert ear.wait(1) == ["no permission to read MAMA_SOURCES"]


@pytest.mark.parametrize("payload", [b"", b"\xff" * 20, encode(a_message())])
def test_a_record_that_cannot_be_read_is_an_error_and_no_crash(place: MamaDiscoverySetup, payload: bytes) -> None:
    place.source.announce(SourceKey("bad", 1), payload, TTL)
    place.announce(record())
    ear = DiscoveryRecorder()
    SourceDiscovery.create(ear.callbacks(), None, place.transport())
    heard = ear.wait(3)
    assert sum(isinstance(h, str) and "'bad' cannot be read" in h for h in heard) == 1
    assert record() in heard


def test_a_collision_is_reported_and_the_record_is_told(place: MamaDiscoverySetup) -> None:
    msg = encode_source(record())
    msg.add_i32("PublisherTopic", 10002, 5)
    place.source.announce(SourceKey("desk", 7), encode(msg), TTL)
    ear = DiscoveryRecorder()
    SourceDiscovery.create(ear.callbacks(), None, place.transport())
    heard = ear.wait(3)
    assert "PublisherTopic[10002] has the fid of SourceID" in heard[0]
    assert heard[1].key == ("desk", 7)


def test_lost_changes_are_said_and_made_good_by_a_new_image(place: MamaDiscoverySetup) -> None:
    ear = DiscoveryRecorder()
    stays, goes = record("stays", 1), record("goes", 2)
    for made in (stays, goes):
        place.announce(made)
    discovery = SourceDiscovery.create(ear.callbacks(), None, place.transport())
    ear.wait(3)
    discovery._loop.remove(discovery)  # it sleeps while the log forgets
    place.announce(record("new", 3))
    place.source.withdraw(SourceKey("goes", 2), as_bytes(record("goes", 2, state=OFFLINE)))
    place.registry.lose(len(place.registry._log))
    discovery._loop.add(discovery)
    lost, *rest = ear.wait(6)[3:]
    assert lost.endswith("were lost; asking for the image again")
    assert sorted(rest, key=str) == sorted([record("new", 3), record("goes", 2, state=OFFLINE)], key=str)


def test_a_source_that_is_missing_in_a_new_image_is_told_as_offline() -> None:
    sources = Sources(DEFAULT_FIELDS)
    recorder = DiscoveryEvent(DiscoveryEventKind.RECORD, 0, "log", None, SourceKey("desk", 7), as_bytes(record()))
    assert len(list(sources.image([recorder]))) == 1
    assert list(sources.image([recorder])) == []
    (gone,) = sources.image([])
    assert isinstance(gone, MamaMsg)
    assert decode_source(gone).record == record(state=OFFLINE, data_state="SUSPECT")
    assert list(sources.image([])) == []


@pytest.mark.spec("PE-17")
def test_readers_that_come_and_go_are_topic_events(place: MamaDiscoverySetup) -> None:
    """SUBSCRIBED and UNSUBSCRIBED"""
    transport, recorder, ear = place.transport(), CallbackRecorder(), DiscoveryRecorder()
    transport.set_transport_topic_callback(recorder.on_topic)
    SourceDiscovery.create(ear.callbacks(), None, transport)
    ear.wait(1)
    place.registry.reader("t.x", True, "consumer c")
    place.registry.reader("t.x", False, "consumer c")
    until(lambda: len(recorder.topics) == 2)
    assert recorder.topics == [(TransportTopicEvent.SUBSCRIBED, "t.x", "consumer c"),
                           (TransportTopicEvent.UNSUBSCRIBED, "t.x", "consumer c")]  # fmt: skip
