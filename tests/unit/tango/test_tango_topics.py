"""Topics of events and heartbeats (TG-20, TG-31, TG-35, TG-36), and endpoints (TG-08, TG-32). cppTango
catch2_internal_utils: topics taken apart, and their prefixes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.tango import topics
from mama_spark.tango.topics import BadEventTopic, check_endpoint, event_topic, is_multicast, parse, read_topic
from mama_spark.tango.types import EventType

from tests.support.tables import each
from tests.support.vectors import vectors

VECTORS = vectors("tango")
TOPICS = [one for v in VECTORS if v["kind"] == "topic" for one in v["input"]]
WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-+.", min_size=1, max_size=8)


@each("one", TOPICS)
def test_recorded_topics_are_taken_apart_and_put_together(one: dict[str, Any]) -> None:
    found = parse(one["topic"])
    event = "heartbeat" if found.event is None else found.event.wire_name
    assert one["parts"] == {
        "tango_host": found.tango_host, "device": found.device, "attribute": found.attribute, "dbase": found.dbase,
        "event": event, "idl": found.idl,
    }  # fmt: skip
    assert str(found) == one["topic"]
    assert read_topic(found.encode()) == found


@given(WORD, WORD, WORD, WORD, WORD, st.sampled_from(EventType), st.booleans(), st.sampled_from([3, 4, 5, 6]))
def test_built_topics_parse_to_the_same_topic(
    host: str, a: str, b: str, c: str, attribute: str, event: EventType, dbase: bool, idl: int
) -> None:
    found = event_topic(f"{host}:1", f"{a}/{b}/{c}", attribute, event, dbase, idl)
    assert parse(str(found)) == found
    assert (found.tango_host, found.device, found.event, found.dbase) == (f"{host}:1", f"{a}/{b}/{c}", event, dbase)
    assert found.attribute == (None if event is EventType.INTERFACE_CHANGE else attribute)


def test_idl_stands_in_the_topics_of_five_events_for_clients_and_devices_of_idl_5_and_6() -> None:
    told = {e.wire_name for e in EventType if ".idl5_" in str(event_topic("h:1", "a/b/c", "d", e))}
    assert told == {"change", "periodic", "archive", "user_event", "attr_conf"}
    assert event_topic("h:1", "a/b/c", "d", EventType.CHANGE, idl=6).idl == 5
    assert event_topic("h:1", "a/b/c", "d", EventType.CHANGE, idl=4).idl is None


def test_topics_are_in_lower_case_whatever_the_names_are() -> None:
    found = event_topic("HOST:1", "Test/Pub/1", "Scal", EventType.CHANGE, dbase=False)
    assert found.encode() == b"tango://host:1/test/pub/1/scal#dbase=no.idl5_change"
    assert parse("TANGO://Host:1/Test/Pub/1/Scal.CHANGE") == topics.Topic(
        "host:1", "test/pub/1", "scal", EventType.CHANGE
    )


@each(
    "text",
    [
        "", ".", "tango://", "tango://.change", "tango:///a/b/c/d.change", "http://h:1/a/b/c/d.change",
        "tango://h:1/a/b/c/d", "tango://h:1/a/b/c/d.", "tango://h:1/a/b/c/d.idl5_", "tango://h:1/a/b/c/d.idl5_alarm",
        "tango://h:1/a/b/c/d.idl6_change", "tango://h:1/a/b/c/d.idl5_idl5_change", "tango://h:1/a/b/c.change",
        "tango://h:1/a/b/c/d/e.change", "tango://h:1/a//c/d.change", "tango://h:1/a/b/c/d.intr_change",
        "tango://h:1/a/b/c/d.heartbeat", "tango://h:1/a/b/c d/e.change", "tango://h:1/a/b/c/d#dbase=yes.change",
        "tango://h:1/a/b/c/d#dbase=no#dbase=no.change", "tango://h:1/a/b/c/d\0.change", "tango://h:1/a/b/c/.change",
        "tango://h:1/a/b/c/#dbase=no.change", "tango://h:1/a/b/c/d:e.change", "tango://h:1/a/b->p/c/d.change",
        "tango://h 1:1/a/b/c/d.change", "tango://h:1/a/b/é/d.change",
    ],
)  # fmt: skip
def test_invalid_topics_are_refused(text: str) -> None:
    with pytest.raises(BadEventTopic):
        parse(text)
    with pytest.raises(BadEventTopic):
        read_topic(text.encode())


def test_a_name_that_cannot_stand_in_a_topic_makes_none() -> None:
    for device, attribute in (("a/b", "d"), ("a/b/c", "d/e"), ("a/b/c", None), ("a/b/c", "d#e"), ("a b/c/d", "e")):
        with pytest.raises(BadEventTopic):
            event_topic("h:1", device, attribute, EventType.CHANGE)


@given(st.binary(max_size=80) | st.binary(max_size=60).map(lambda tail: b"tango://h:1/a/b/c" + tail))
def test_any_bytes_are_a_topic_or_an_error(frame: bytes) -> None:
    try:
        found = read_topic(frame)
    except BadEventTopic:
        return
    assert read_topic(found.encode()) == found


def test_long_topics_are_refused_and_few_are_remembered() -> None:
    with pytest.raises(BadEventTopic, match="bytes"):
        read_topic(b"tango://h:1/a/b/c/" + b"d" * 10_000 + b".change")
    assert topics._parse_known.cache_parameters()["maxsize"] == 16384


@pytest.mark.spec("TG-31", "TG-36")
@pytest.mark.parametrize("suffix", ["", "#dbase=no"])
def test_heartbeat_topics_have_both_spellings_that_of_the_server_first(suffix: str) -> None:
    """Servers without a database send the channel without ``#dbase=no``, and heartbeats with it."""
    spellings = topics.heartbeat_topics(f"tango://VM:11001/dserver/DS/inst{suffix}")
    assert spellings[0] == f"tango://vm:11001/dserver/ds/inst{suffix}.heartbeat"
    assert set(spellings) == {f"tango://vm:11001/dserver/ds/inst{s}.heartbeat" for s in ("", "#dbase=no")}
    assert {parse(text).dbase for text in spellings} == {True, False}


@pytest.mark.spec("TG-08")
@each(
    ("endpoint", "found"),
    [
        ("tcp://127.0.0.1:37515", ("127.0.0.1", 37515)),
        ("tcp://some-host.example:1", ("some-host.example", 1)),
        ("tcp://[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_endpoints_have_a_host_and_a_port(endpoint: str, found: tuple[str, int]) -> None:
    assert check_endpoint(endpoint) == found
    assert not is_multicast(endpoint)


@each(
    "endpoint",
    ["", "tcp://", "tcp://h", "tcp://h:0", "tcp://h:65536", "tcp://h:1/x", "ipc:///tmp/x", "tcp://:1", "tcp://a b:1"],
)
def test_other_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(topics.BadEndpoint) as caught:
        check_endpoint(endpoint)
    assert not isinstance(caught.value, topics.MulticastRefused)


@pytest.mark.spec("TG-32")
@each("endpoint", ["epgm://226.20.21.22:2222", "pgm://eth0;226.1.1.1:5555", "EPGM://x:1"])
def test_multicast_is_refused_by_name(endpoint: str) -> None:
    assert is_multicast(endpoint)
    with pytest.raises(topics.MulticastRefused, match="multicast"):
        check_endpoint(endpoint)
