"""Source discovery: which transports have it, and how they are set up (SD-30)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from mama_spark.bridge import DiscoveryEvent, EventStyle, SourceKey
from mama_spark.bridges.memory.discovery import MemoryDiscovery
from mama_spark.errors import ConfigError
from mama_spark.mama import (
    MAMA_SOURCE_DISCOVERY_TOPIC,
    BridgePublisher,
    Inbox,
    Publisher,
    SourceDiscovery,
    SourceFields,
    SourceRecord,
    Status,
    StatusError,
    Transport,
)
from mama_spark.mama.messages.source_records import (
    OFFLINE,
    decode_source,
)
from mama_spark.mama.properties import Properties, TransportProperties
from mama_spark.testing.waiting import until

from tests.support.mama.mama_discovery import TTL, DiscoveryRecorder, MamaDiscoverySetup, as_bytes, record
from tests.support.mama.mama_harness import MemoryMamaHarness, a_message


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
        ear = DiscoveryRecorder()
        SourceDiscovery.create(ear.callbacks(), None, transport)
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
    place.registry.up = False
    publisher.send_from_inbox(inbox, a_message())
    until(lambda: errors[1:] == ["PLATFORM"])
    without = place.transport(discovery=False)
    with pytest.raises(StatusError, match="NOT_IMPLEMENTED"):
        Publisher.create(without, MAMA_SOURCE_DISCOVERY_TOPIC).send_from_inbox(
            Inbox.create(without, None, lambda *_: None), a_message()
        )


@pytest.mark.spec("SD-50")
def test_the_bridge_itself_knows_the_discovery_topic(place: MamaDiscoverySetup) -> None:
    """By sendFromInboxByIndex"""
    place.announce(record())
    transport, found = place.transport(), list[SourceRecord]()
    inbox = Inbox.create(transport, None, lambda msg, _: found.append(decode_source(msg).record))
    parent = Publisher.create(transport, "x")
    bridge = BridgePublisher.create(transport, MAMA_SOURCE_DISCOVERY_TOPIC, None, None, parent)
    bridge.send_from_inbox_by_index(0, inbox, b"")
    until(lambda: found == [record()])


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
    ear = DiscoveryRecorder()
    SourceDiscovery.create(ear.callbacks(), None, transport)
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


def test_a_transport_made_of_a_url_follows_its_bridge(place: MamaDiscoverySetup) -> None:
    """Section 2 of the specification's gaps: no properties file, so that the bridge's own capability counts"""
    place.announce(record())
    transport, ear = Transport.create("pub", f"memory://{place.name}"), DiscoveryRecorder()
    SourceDiscovery.create(ear.callbacks(), None, transport)
    assert ear.wait(2) == [record(), "end of the image"]
    transport.destroy()
    on = MemoryMamaHarness(EventStyle.PUBLISHER)
    not_implemented(on.transport(), "mama.memory.transport.pub.sourcediscovery.supported")
    on.close()
