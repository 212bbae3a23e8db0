"""Source discovery of a transport: image, changes, errors, properties."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.discovery import lease_keeper
from mama_spark.mama import (
    MAMA_SOURCE_DISCOVERY_TOPIC,
    BridgePublisher,
    Inbox,
    MamaMsg,
    Publisher,
    Queue,
    SourceDiscovery,
    SourceDiscoveryCallbacks,
    SourceFields,
    SourceRecord,
    Status,
    StatusError,
    Transport,
    TransportTopicEvent,
)
from mama_spark.mama.discovery.source_messages import Sources
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import DEFAULT_FIELDS, OFFLINE, decode_source, encode_source
from mama_spark.mama.properties import Properties, TransportProperties
from mama_spark.memory.discovery import MemoryDiscovery
from mama_spark.nats import NatsSettings
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import until

from tests.support.mama.mama_discovery import TTL, DiscoveryRecorder, MamaDiscoverySetup, as_bytes, record
from tests.support.mama.mama_harness import CallbackRecorder, MemoryMamaHarness, a_message


@pytest.fixture
def place() -> Iterator[MamaDiscoverySetup]:
    made = MamaDiscoverySetup()
    yield made
    made.close()


# --- source discovery: the image, its end, and changes; on which queue they come --------------------------------------


@pytest.mark.spec("SD-01", "SD-02", "SD-04-SD-12", "SD-14", "SD-16", "SD-17", "SD-25", "SD-26", "SD-30", "SD-31")
def test_the_image_is_a_message_a_source_and_then_its_end_and_then_changes(place: MamaDiscoverySetup) -> None:
    """With full support"""
    desk, twin = record(capabilities={"Region": "EU"}), record(number=8, state="NEW_WORD", data_dict=None)
    nameless = record(number=None)
    for made in (desk, twin, nameless):
        place.announce(made)
    ear = place.listen()
    assert sorted(ear.wait(4)[:3], key=str) == sorted([desk, twin, nameless], key=str)
    assert ear.heard[3] == "end of the image"
    changed = record(data_dict="UNKNOWN")
    place.announce(changed)
    place.announce(changed)
    place.announce(record("other", 1))
    assert ear.wait(6)[4:] == [changed, record("other", 1)]


@pytest.mark.spec("SD-08", "SD-09", "SD-14")
def test_a_vanished_source_is_never_silence(place: MamaDiscoverySetup) -> None:
    """SUSPECT and OFFLINE come with the last known record"""
    known = record(capabilities={"Region": "EU"})
    announcer, ear = place.dying(known), place.listen()
    ear.wait(2)
    announcer.close()
    place.registry.advance(TTL)
    suspect = record(data_state="SUSPECT", capabilities={"Region": "EU"})
    offline = record(state=OFFLINE, data_state="SUSPECT", capabilities={"Region": "EU"})
    assert ear.wait(4)[2:] == [suspect, offline]
    place.announce(known)
    assert ear.wait(5)[4:] == [known], "and it is told when it is back"
    place.source.withdraw(SourceKey(*known.key), as_bytes(record(state=OFFLINE)))
    assert ear.wait(6)[5:] == [record(state=OFFLINE)]


@pytest.mark.spec("SD-04")
def test_in_the_image_a_suspect_source_is_one_message(place: MamaDiscoverySetup) -> None:
    place.dying(record()).close()
    place.registry.advance(TTL * 0.6)
    ear = place.listen()
    assert ear.wait(2) == [record(data_state="SUSPECT"), "end of the image"]


@pytest.mark.spec("SD-19-SD-23")
def test_messages_wait_for_a_message_callback(place: MamaDiscoverySetup) -> None:
    """Created without callbacks, which are set later, with the closure"""
    place.announce(record())
    ear, discovery = DiscoveryRecorder(), SourceDiscovery.create(None, None, place.transport())
    until(lambda: len(discovery._pending) == 2)
    discovery.set_closure("mine")
    discovery.set_error_callback(ear.on_error)
    discovery.set_msg_callback(ear.on_msg)
    assert ear.wait(1) == [record()]
    assert ear.closures == ["mine"]
    discovery.destroy()
    discovery.destroy()
    for call in (discovery.set_msg_callback, discovery.set_error_callback, discovery.set_closure):
        with pytest.raises(StatusError, match="NULL_ARG"):
            call(None)
    place.announce(record("later", 1))
    assert ear.heard == [record()]


@pytest.mark.spec("SD-16")
def test_callbacks_come_on_the_queue_and_a_full_one_loses_nothing(place: MamaDiscoverySetup) -> None:
    """No more is read than the queue and the waiting room take"""
    queue, ear = Queue("sources", max_events=3), DiscoveryRecorder()
    for i in range(10):
        place.announce(record(f"s{i}", i))
    discovery = SourceDiscovery.create(ear.callbacks(), queue, place.transport())
    until(lambda: queue.get_event_count() == 3)
    assert ear.heard == []
    while len(ear.heard) < 11:
        queue.dispatch(0.05)
    assert [r.name for r in ear.heard[:10]] == [f"s{i}" for i in range(10)]
    assert ear.threads == {threading.current_thread().name}
    with pytest.raises(StatusError, match="QUEUE_OPEN_OBJECTS"):
        queue.destroy()
    discovery.destroy()
    queue.destroy()


def test_a_callback_may_destroy_its_own_discovery(place: MamaDiscoverySetup) -> None:
    for i in range(5):
        place.announce(record(f"s{i}", i))
    ear = DiscoveryRecorder()

    def once(discovery: SourceDiscovery, msg: MamaMsg, closure: Any) -> None:
        ear.on_msg(discovery, msg, closure)
        discovery.destroy()

    discovery = SourceDiscovery.create(SourceDiscoveryCallbacks(on_msg=once), None, place.transport())
    ear.wait(1)
    until(lambda: discovery not in discovery._loop._readers)
    assert len(ear.heard) == 1


def test_several_discoveries_on_one_transport_each_see_everything(place: MamaDiscoverySetup) -> None:
    transport = place.transport()
    ears = [place.listen(transport) for _ in range(2)]
    place.announce(record())
    for ear in ears:
        assert record() in ear.wait(2)


# --- source discovery: images that do not come, records that cannot be read, collisions and losses --------------------


@pytest.mark.spec("SD-21", "SD-24")
def test_without_an_image_in_time_there_is_an_error_once_and_the_image_later(place: MamaDiscoverySetup) -> None:
    place.announce(record())
    place.registry.up = False
    ear = place.listen(image_timeout=0.1)
    (error,) = ear.wait(1)
    assert error.startswith("no image of the sources within 0.1 s: ")
    place.registry.up = True
    assert ear.wait(3)[1:] == [record(), "end of the image"]
    place.registry.up = False
    assert ear.wait(4)[3].startswith("no answer within 0.1 s: "), "an outage later is said as well"
    place.registry.up = True
    place.announce(record("later", 1))
    assert ear.wait(5)[4:] == [record("later", 1)]


def test_records_that_cannot_be_read_and_collisions_are_errors_and_the_others_are_told(
    place: MamaDiscoverySetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    msg = encode_source(record())
    msg.add(FieldType.I32, "PublisherTopic", 10002, 5)
    place.source.announce(SourceKey("desk", 7), encode(msg), TTL)
    for number, payload in enumerate((b"", encode(a_message()))):
        place.source.announce(SourceKey("bad", number), payload, TTL)
    heard = place.listen().wait(5)
    errors = [one for one in heard[:-1] if isinstance(one, str)]
    assert sum("'bad' cannot be read" in error for error in errors) == 2
    assert sum("PublisherTopic[10002] has the fid of SourceID" in error for error in errors) == 1
    assert [one.key for one in heard if isinstance(one, SourceRecord)] == [("desk", 7)]

    def forbidden(self: object) -> None:
        raise ConfigError("no permission to read MAMA_SOURCES")

    monkeypatch.setattr(MemoryDiscovery, "open", forbidden)
    assert place.listen().wait(1) == ["no permission to read MAMA_SOURCES"], "what the user must change, at once"


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
    transport, recorder = place.transport(), CallbackRecorder()
    transport.set_transport_topic_callback(recorder.on_topic)
    place.listen(transport).wait(1)
    place.registry.reader("t.x", True, "consumer c")
    place.registry.reader("t.x", False, "consumer c")
    until(lambda: len(recorder.topics) == 2)
    assert recorder.topics == [(TransportTopicEvent.SUBSCRIBED, "t.x", "consumer c"),
                           (TransportTopicEvent.UNSUBSCRIBED, "t.x", "consumer c")]  # fmt: skip


# --- source discovery: which transports have it, and how they are set up (SD-30) --------------------------------------


def not_implemented(transport: Transport, key: str) -> None:
    with pytest.raises(StatusError) as error:
        SourceDiscovery.create(None, None, transport)
    assert error.value.status is Status.NOT_IMPLEMENTED
    assert key in str(error.value)


@pytest.mark.spec("SD-18", "SD-31")
def test_a_bridge_without_discovery_says_not_implemented_and_names_the_property(place: MamaDiscoverySetup) -> None:
    """The default bridge is shown not to support it"""
    not_implemented(place.transport(discovery=False), "mama.memory.transport.disc.sourcediscovery.supported")
    with pytest.raises(StatusError, match="INVALID_ARG"):
        SourceDiscovery.create(None, None, None)


@pytest.mark.spec("SD-49", "SD-50")
@pytest.mark.parametrize(("value", "supported"), [("true", True), ("Y", True), ("false", False), (None, False)])
def test_the_property_of_the_transport_decides(place: MamaDiscoverySetup, value: str | None, supported: bool) -> None:
    """Missing is false for a transport of a properties file"""
    key = "mama.memory.transport.disc.sourcediscovery.supported"
    text = "mama.memory.transport.disc.url=memory://x\n" + (f"{key}={value}\n" if value is not None else "")
    properties = TransportProperties(Properties.parse(text, os.environ), "memory", "disc")
    transport = place.transport(properties=properties)
    if supported:
        ear = place.listen(transport)
        assert ear.wait(1) == ["end of the image"]
    else:
        not_implemented(transport, key)


@pytest.mark.spec("SD-13", "SD-49")
def test_a_transport_is_made_as_a_properties_file_describes_it(
    place: MamaDiscoverySetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its path, and along WOMBAT_PATH"""
    place.announce(record())
    (tmp_path / "mama.properties").write_text(
        f"mama.memory.transport.disc.url=memory://{place.name}\n"
        "mama.memory.transport.disc.sourcediscovery.supported=true\n"
        f"mama.memory.transport.plain.url=memory://{place.name}\n"
        "mama.sourcediscovery.sourcedatadict.name=Dictionary\n"
    )
    with Transport.from_properties("disc", "memory", str(tmp_path / "mama.properties")) as transport:
        ear = DiscoveryRecorder(transport.fields)
        SourceDiscovery.create(ear.callbacks(), None, transport)
        assert [h.key for h in ear.wait(3) if isinstance(h, SourceRecord)] == [("desk", 7)]
        assert transport.fields.sourcedatadict.name == "Dictionary"
    monkeypatch.setenv("WOMBAT_PATH", str(tmp_path))
    with Transport.from_properties("plain", "memory", destroy_timeout=1.0) as transport:
        not_implemented(transport, "mama.memory.transport.plain.sourcediscovery.supported is not true")
        Publisher.create(transport, "S", "t").send(a_message())
    with pytest.raises(ConfigError, match="transport=other"):
        Transport.from_properties("other", "memory")


@pytest.mark.spec("SD-13", "SD-35-SD-48")
def test_names_and_fids_of_the_fields_come_from_the_properties(place: MamaDiscoverySetup) -> None:
    text = "mama.sourcediscovery.source.name=Who\nmama.sourcediscovery.source.fid=20001\n"
    fields = SourceFields.from_properties(Properties.parse(text, os.environ))
    announcer = MemoryDiscovery(place.name)
    announcer.open()
    announcer.announce(SourceKey("desk", 7), as_bytes(record(), fields), TTL)
    ear = DiscoveryRecorder(fields)
    SourceDiscovery.create(ear.callbacks(), None, place.transport(fields=fields))
    assert ear.wait(2)[0] == record()
    announcer.close()
    place.registry.advance(TTL)
    assert ear.wait(4)[3] == record(state=OFFLINE, data_state="SUSPECT"), "made by us with the same fields"


@pytest.mark.spec("SD-15", "SD-17", "SD-50")
def test_a_request_on_the_discovery_topic_is_answered_with_the_image(place: MamaDiscoverySetup) -> None:
    """The way of the specification, by send_from_inbox"""
    place.announce(record())
    place.source.announce(SourceKey("bad", 1), b"", TTL)
    transport, found, errors = place.transport(), list[SourceRecord](), list[str]()
    inbox = Inbox.create(
        transport, None, lambda msg, _: found.append(decode_source(msg).record),
        lambda status, info, _: errors.append(status.name),
    )  # fmt: skip
    publisher = Publisher.create(transport, MAMA_SOURCE_DISCOVERY_TOPIC)
    publisher.send_from_inbox(inbox, a_message())
    until(lambda: found and errors)
    assert (found, errors) == ([record()], ["WRONG_FIELD_TYPE"])
    bridge = BridgePublisher.create(transport, MAMA_SOURCE_DISCOVERY_TOPIC, None, None, publisher)
    bridge.send_from_inbox_by_index(0, inbox, b"")  # the bridge itself knows the topic
    until(lambda: (len(found), len(errors)) == (2, 2))
    place.registry.up = False
    publisher.send_from_inbox(inbox, a_message())
    until(lambda: errors[2:] == ["PLATFORM"])
    without = place.transport(discovery=False)
    with pytest.raises(StatusError, match="NOT_IMPLEMENTED"):
        Publisher.create(without, MAMA_SOURCE_DISCOVERY_TOPIC).send_from_inbox(
            Inbox.create(without, None, lambda *_: None), a_message()
        )


def test_an_error_that_nobody_foresaw_ends_neither_requests_nor_readers(
    place: MamaDiscoverySetup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.announce(record())
    transport, found, errors = place.transport(), list[SourceRecord](), list[str]()
    inbox = Inbox.create(
        transport, None, lambda msg, _: found.append(decode_source(msg).record), lambda _, info, __: errors.append(info)
    )
    publisher = Publisher.create(transport, MAMA_SOURCE_DISCOVERY_TOPIC)
    with monkeypatch.context() as broken:
        broken.setattr(MemoryDiscovery, "image", lambda self: vars(self)["no such thing"])
        publisher.send_from_inbox(inbox, a_message())
        until(lambda: errors == ["KeyError: 'no such thing'"])
    assert "source discovery" in caplog.text
    publisher.send_from_inbox(inbox, a_message())
    until(lambda: found == [record()])
    ear = place.listen(transport)
    assert ear.wait(2) == [record(), "end of the image"]


def test_a_question_that_nobody_answers_does_not_keep_a_transport(
    place: MamaDiscoverySetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer, closed = threading.Event(), threading.Event(), threading.Event()

    def image(self: MemoryDiscovery) -> list[DiscoveryEvent]:
        asked.set()
        answer.wait()
        return []

    monkeypatch.setattr(MemoryDiscovery, "image", image)
    monkeypatch.setattr(MemoryDiscovery, "close", lambda self: closed.set())
    transport, ear = place.transport(destroy_timeout=0.1), DiscoveryRecorder()
    SourceDiscovery.create(ear.callbacks(), None, transport)
    assert asked.wait(60)
    transport.destroy()
    assert not answer.is_set(), "it did not wait for the answer"
    answer.set()
    assert closed.wait(60), "and what was open is closed all the same"
    assert ear.heard == []


@pytest.mark.spec("SD-29")
def test_a_destroyed_transport_has_no_discovery_and_ends_the_one_it_had(place: MamaDiscoverySetup) -> None:
    """Nothing else changes"""
    transport, ear = place.transport(), DiscoveryRecorder()
    discovery = SourceDiscovery.create(ear.callbacks(), None, transport)
    ear.wait(1)
    transport.destroy()
    assert "destroyed" in repr(discovery)
    with pytest.raises(StatusError, match="INVALID_ARG"):
        SourceDiscovery.create(None, None, transport)


def test_a_transport_made_of_a_url_follows_its_bridge(memory: MemoryMamaHarness, place: MamaDiscoverySetup) -> None:
    """Section 2 of the specification's gaps: no properties file, so that the bridge's own capability counts"""
    place.announce(record())
    with Transport.create("pub", f"memory://{place.name}") as transport:
        assert place.listen(transport).wait(2) == [record(), "end of the image"]
    not_implemented(memory.transport(), "mama.memory.transport.pub.sourcediscovery.supported")


# --- over a real server -----------------------------------------------------------------------------------------------


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
    ear, first, second = DiscoveryRecorder(), record(), record(number=8)
    there = NatsDiscovery(NatsSettings((nats_server.url,), name="a reader"))
    with Transport.create("disc", nats_server.url, there) as transport:
        SourceDiscovery.create(ear.callbacks(), None, transport)
        source.announce(SourceKey("desk", 7), as_bytes(first), 60.0)
        until(lambda: records(ear) == [first])
        assert there._connection is not None
        there._connection.close()
        source.announce(SourceKey("desk", 8), as_bytes(second), 60.0)
        until(lambda: records(ear) == [first, second])
