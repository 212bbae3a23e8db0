"""What discovery says on a Malamute broker, and what that means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.bridge.discovery.codec import (
    EVENT,
    REC,
    WARN,
    DiscoveryCodec,
    DiscoveryMessage,
    StoredRecord,
    stored,
)
from mama_spark.malamute.broker.event_records import broker_event
from mama_spark.malamute.broker.session.broker_events import BrokerEvent
from mama_spark.malamute.protocol.commands import StreamDeliver, encode
from mama_spark.mama.messages.event_records import decode_event
from mama_spark.mama.messages.omnm import decode

from tests.support.tables import each

CODEC = DiscoveryCodec()
DESK = SourceKey("desk", 7)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
keys = st.builds(SourceKey, names, st.none() | st.integers(0, 2**64 - 1))


def as_stored(message: DiscoveryMessage, sequence: int = 1) -> StoredRecord:
    return StoredRecord(sequence, 5, message.subject, message.content, dict(message.extension.headers))


def marker(part: str, source: SourceKey, sequence: int) -> StoredRecord:
    return StoredRecord(sequence, 9, CODEC.subject(part, source), b"", {b"Mama-Marker": b"MaxAge"})


# --- subjects --------------------------------------------------------------------------------------------------------


@given(st.sampled_from([REC, WARN, EVENT]), keys)
def test_every_source_has_subjects_of_its_own(part: str, source: SourceKey) -> None:
    assert CODEC.parse(CODEC.subject(part, source)) == (part, source)


@each("name", ["x" * 255, "ü" * 120, "\0", "\ud800"])
def test_a_name_that_is_no_subject_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match="the name of a source"):
        CODEC.subject(REC, SourceKey(name, 1))


@each("rest", ["rec.7", "rec.x.desk", "rec.07.desk", "rec.18446744073709551616.d", "other.7.d", "rec"])
def test_other_subjects_are_nobodys(rest: str) -> None:
    assert CODEC.parse(f"_MAMA_SOURCE_DISCOVERY.{rest}") is None


def test_the_topic_must_not_be_taken_for_what_the_broker_says() -> None:
    with pytest.raises(ConfigError, match="discoveryTopic must begin with _"):
        DiscoveryCodec(topic="SUBSCRIBED")


def test_the_same_said_in_place_of_the_same_has_one_id() -> None:
    """So whichever process says it, it is stored once."""
    one = CODEC.record(DESK, b"r", 30.0, 5)
    assert CODEC.record(DESK, b"r", 30.0, 5) == one
    others = [CODEC.record(DESK, b"s", 30.0, 5), CODEC.record(DESK, b"r", 31.0, 5), CODEC.record(DESK, b"r", 30.0, 6),
              CODEC.record(SourceKey("desk", 8), b"r", 30.0, 5), CODEC.warn(DESK, 60.0, 5)]  # fmt: skip
    assert len({m.extension.message_id for m in (one, *others)}) == 6


# --- changes ---------------------------------------------------------------------------------------------------------


def test_records_markers_and_events_are_changes_and_the_rest_is_none() -> None:
    cases = [
        (as_stored(CODEC.record(DESK, b"r", 3.0, 0)), DiscoveryEventKind.RECORD),
        (as_stored(CODEC.withdrawal(REC, DESK, b"off", 1)), DiscoveryEventKind.RECORD),
        (marker(REC, DESK, 3), DiscoveryEventKind.OFFLINE),
        (marker(WARN, DESK, 3), DiscoveryEventKind.SUSPECT),
        (StoredRecord(1, 5, CODEC.subject(EVENT, DESK), b"e", {}), DiscoveryEventKind.EVENT),
        (as_stored(CODEC.warn(DESK, 3.0, 0)), None),
        (as_stored(CODEC.withdrawal(WARN, DESK, b"", 1)), None),
        (StoredRecord(1, 5, CODEC.image_subject("t"), b"i", {}), None),
        (StoredRecord(1, 5, "_else", b"", {}), None),
    ]
    for one, kind in cases:
        change = CODEC.event_of(one)
        assert (change and change.kind) == kind
        assert change is None or change.source == DESK


@pytest.mark.spec("PE-17")
def test_readers_that_come_and_go_are_topic_events() -> None:
    event = BrokerEvent("SUBSCRIBED", b"r\xff", b"prices", b"^eu", 5)
    one = StoredRecord(3, 5, event.subject.decode(), b"raw", dict(event.headers))
    told = DiscoveryEvent(DiscoveryEventKind.SUBSCRIBED, 5, "_MAMA_EVENTS", 3, payload=b"raw", topic="prices",
                  info="client r\\xff reads ^eu")  # fmt: skip
    assert CODEC.event_of(one) == told
    assert len(event._replace(stream=b"s" * 255).subject) == 255, "as long as a subject may be"
    gone = BrokerEvent("GONE", b"", b"", b"close", 5)
    change = CODEC.event_of(StoredRecord(3, 5, "GONE.", b"raw", dict(gone.headers)))
    assert change == DiscoveryEvent(DiscoveryEventKind.EVENT, 5, "_MAMA_EVENTS", 3, payload=b"raw")


@given(st.lists(st.binary(max_size=80), max_size=3), st.text(max_size=60), st.dictionaries(st.binary(), st.binary()))
def test_any_bytes_give_a_change_or_nothing(frames: list[bytes], subject: str, headers: dict[bytes, bytes]) -> None:
    stored(frames)
    one = StoredRecord(1, 5, subject, b"", headers)
    CODEC.event_of(one)
    CODEC.event_of(one._replace(subject=f"{CODEC.topic}.rec.7.{subject}"))


def test_a_message_without_a_number_is_none_of_a_stored_stream() -> None:
    assert stored(encode(StreamDeliver(b"s", b"", b"x", [b""]))) is None


# --- the image -------------------------------------------------------------------------------------------------------


def test_the_image_is_what_runs_with_what_the_broker_says_of_it() -> None:
    fine, doubtful, back, silent, ended = (
        SourceKey(name, 1) for name in ("fine", "doubtful", "back", "silent", "ended")
    )
    standing = [
        as_stored(CODEC.record(doubtful, b"d", 3.0, 0), 2),
        marker(WARN, doubtful, 9),
        as_stored(CODEC.record(fine, b"f", 3.0, 0), 4),
        as_stored(CODEC.warn(fine, 3.0, 0), 5),
        marker(WARN, back, 6),
        as_stored(CODEC.record(back, b"b", 3.0, 0), 7),
        marker(REC, silent, 8),
        as_stored(CODEC.withdrawal(REC, ended, b"off", 0), 3),
        StoredRecord(10, 5, "_something.else", b"", {}),
    ]
    assert not StoredRecord(1, 5, "x", b"", {b"Mama-Ttl": b"soon"}).has_ttl
    told = [(c.kind, c.source, c.payload, c.origin) for c in CODEC.image(standing)]
    assert told == [
        (DiscoveryEventKind.RECORD, doubtful, b"d", "MAMA_SOURCES"),
        (DiscoveryEventKind.SUSPECT, doubtful, None, "MAMA_SOURCES"),
        (DiscoveryEventKind.RECORD, fine, b"f", "MAMA_SOURCES"),
        (DiscoveryEventKind.RECORD, back, b"b", "MAMA_SOURCES"),
    ]


# --- what the broker says, in OpenMAMA's words -----------------------------------------------------------------------


@pytest.mark.spec("PE-17")
@each(
    ("said", "told"),
    [
        (("SUBSCRIBED", b"r", b"s", b"^a"), ("SUBSCRIBED", "s", None, None, "client r reads ^a")),
        (("UNSUBSCRIBED", b"", b"s", b""), ("UNSUBSCRIBED", "s", None, None, "a client without address")),
        (("WRITING", b"w", b"s", b""), ("PUBLISH_CREATE", "s", None, None, "client w")),
        (("STOPPED", b"w", b"s", b""), ("PUBLISH_DESTROY", "s", None, None, "client w")),
        (("STREAM_LOST", b"", b"s", b"disk"), ("PUBLISH_ERROR", "s", "PLATFORM", 2, "disk")),
        (("REFUSED", b"\xff", b"s", b"no"), ("REFUSED", "s", "INVALID_ARG", 4, "client \\xff was refused: no")),
        (("GONE", b"r", b"", b"close"), ("GONE", None, None, None, "client r went: close")),
        (("EVENTS_LOST", b"", b"", b"12"), ("EVENTS_LOST", None, None, 12, "12")),
    ],
)  # fmt: skip
def test_the_broker_says_it_in_words_of_openmama(
    said: tuple[str, bytes, bytes, bytes], told: tuple[str | int | None, ...]
) -> None:
    record = decode_event(decode(broker_event(*said, 1_700_000_000_000_001)))
    assert (record.kind, record.at_us) == ("topic", 1_700_000_000_000_001)
    assert (record.event, record.topic, record.status, record.code, record.info) == told


@given(st.sampled_from(["SUBSCRIBED", "GONE", "EVENTS_LOST", "NEW_KIND"]), *(st.binary(max_size=255) for _ in range(3)))
def test_whatever_clients_are_called_the_event_can_be_said(kind: str, client: bytes, stream: bytes, why: bytes) -> None:
    assert decode_event(decode(broker_event(kind, client, stream, why, 1))).kind == "topic"
