"""Subjects, records, images and positions of discovery on NATS: without a server."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.discovery.image_codec import pack, unpack
from mama_spark.nats import discovery_bridge
from mama_spark.nats.discovery import consumer_advisories as adv
from mama_spark.nats.discovery import offsets
from mama_spark.nats.discovery.events import event_of, image_of
from mama_spark.nats.discovery.layout import (
    LIVE,
    REC,
    RENEWAL,
    SOURCE_TTL,
    WARN,
    WITHDRAWN,
    BadSubject,
    DiscoveryLayout,
    as_token,
    from_token,
)
from mama_spark.nats.discovery.offsets import (
    DiscoveryOffset,
    ImageRange,
    RecordRange,
    StoredImage,
    StreamCreationTimes,
    StreamRecreated,
    steps_between,
)
from mama_spark.nats.discovery.streams import check_version
from mama_spark.nats.protocol.direct_get import SOURCED, StoredMessage, headers_of, micros, stored
from mama_spark.nats.protocol.headers import MARKER_REASON
from mama_spark.options import DiscoveryOptions

from tests.support.tables import each

BOARD = DiscoveryLayout()
DESK = SourceKey("a desk.*", 7)
TIME = "2026-11-21T07:12:16.814605524Z"
NOW = micros(TIME) + 60_000_000
KEYS = st.builds(SourceKey, st.text(max_size=20), st.none() | st.integers(0, 2**64 - 1))
TEXT = st.text(max_size=40)
BRANCHES = st.sampled_from(["source", "event", "mark", "x"])
SUBJECTS = st.one_of(
    TEXT,
    st.builds(lambda *tokens: ".".join((BOARD.topic, *tokens)), BRANCHES, TEXT, TEXT),
    st.builds(BOARD.source_subject, KEYS, st.sampled_from([REC, WARN, LIVE])),
    st.builds(BOARD.event_subject, KEYS),
)  # fmt: skip
HEADERS = st.dictionaries(
    st.sampled_from([MARKER_REASON, RENEWAL, SOURCED, WITHDRAWN, SOURCE_TTL]),
    st.sampled_from(["MaxAge", "1", "S 4 > >", ""]) | TEXT,
)
RECORDS = st.builds(
    StoredMessage, st.integers(1, 2**62), st.just(TIME) | TEXT, SUBJECTS, st.binary(max_size=50), HEADERS
)


def record(subject: str, sequence: int = 1, payload: bytes = b"", **headers: str) -> StoredMessage:
    return StoredMessage(sequence, TIME, subject, payload, {name.replace("_", "-"): v for name, v in headers.items()})


def of(part: str, sequence: int, **headers: str) -> StoredMessage:
    return record(BOARD.source_subject(DESK, part), sequence, b"r" if part == REC else b"", **headers)


@given(st.text())
def test_any_name_is_one_token_and_comes_back(name: str) -> None:
    token = as_token(name)
    assert token.isascii()
    assert not set(token) & set(" .*>\r\n\t")
    assert from_token(token) == name


@each("token", ["", "a b", "=4", "=41", "=ff", "=FF", "ü", "a=", "=C3"])
def test_no_second_spelling_of_a_name_is_taken(token: str) -> None:
    with pytest.raises(BadSubject):
        from_token(token)


@given(KEYS, st.sampled_from([REC, WARN, LIVE]))
def test_a_source_is_found_from_its_subjects(source: SourceKey, part: str) -> None:
    assert BOARD.source_of(BOARD.source_subject(source, part)) == (source, part)
    assert BOARD.source_of_event(BOARD.event_subject(source)) == source


@each("number", ["", "07", "-1", "18446744073709551616", "x", "--"])
def test_an_id_that_is_no_u64_is_refused(number: str) -> None:
    with pytest.raises(BadSubject):
        BOARD.source_of(f"{BOARD.topic}.source.a.{number}.rec")


@given(RECORDS, st.integers(0, 10))
def test_any_record_gives_a_change_or_nothing_and_a_reason_where_it_cannot_be_read(
    found: StoredMessage, skip: int
) -> None:
    change = event_of(BOARD, found, skip)
    assert change is None or change.source is not None or change.info
    if change is not None and change.kind in (DiscoveryEventKind.RECORD, DiscoveryEventKind.EVENT):
        assert change.payload == found.payload


@given(st.lists(RECORDS, max_size=30))
def test_any_records_make_an_image(records: list[StoredMessage]) -> None:
    image = image_of(BOARD, records, NOW)
    assert {c.kind for c in image.changes} <= {
        DiscoveryEventKind.RECORD,
        DiscoveryEventKind.SUSPECT,
        DiscoveryEventKind.OFFLINE,
    }
    assert unpack(pack(image.changes, 100)) == image.changes


@given(
    st.binary(max_size=200) | st.text().map(str.encode),
    st.sampled_from([adv.AUDITS, adv.CREATED + "S.c", "x"]),
)
def test_any_bytes_are_an_advisory_or_none(payload: bytes, subject: str) -> None:
    found = StoredMessage(1, TIME, subject, payload)
    adv.consumer_event(found)
    assert adv.reader(found) is None


JSON = st.recursive(
    st.none() | st.integers(0, 9) | st.text(max_size=5),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.sampled_from(["config", "name", "response"]), c, max_size=3),
    max_leaves=5,
)


@given(JSON, JSON)
def test_any_json_is_an_advisory_or_none(audit: object, answer: object) -> None:
    for found in ({"response": orjson.dumps(answer).decode()}, {"response": answer, "client": audit}, [audit]):
        payload = orjson.dumps([found, "consumer_create_response"] if isinstance(found, list) else found)
        marked = payload.replace(b"{", b'{"type":"consumer_create_response",', 1).replace(b",}", b"}")
        assert adv.reader(StoredMessage(1, TIME, adv.AUDITS, marked)) is None


@pytest.mark.parametrize("wrong", [{"num_pending": "many"}, {"delivered": {"consumer_seq": "x"}}, {"config": 1}])
def test_an_audit_with_a_wrong_value_is_none(wrong: dict[str, object]) -> None:
    answer = {"stream_name": "S", "name": "c", "config": {}} | wrong
    audit = orjson.dumps({"type": "consumer_create_response", "response": orjson.dumps(answer).decode()})
    assert adv.reader(StoredMessage(1, TIME, adv.AUDITS, audit)) is None


def test_an_audit_tells_what_a_reader_filters() -> None:
    answer = {"type": "io.nats.jetstream.api.v1.consumer_create_response", "stream_name": "S", "name": "c",
              "created": "1970-01-01T00:00:00.0000075Z", "config": {"filter_subjects": ["a.*", "b"]}}  # fmt: skip
    audit = {"client": {"user": "u", "kind": "Client"}, "response": orjson.dumps(answer).decode()}
    found = adv.reader(StoredMessage(1, TIME, adv.AUDITS, orjson.dumps(audit)))
    assert found == adv.AdvisoryReader("S", "c", 7, ("a.*", "b"), {"user": "u", "kind": "Client"}, False)
    one = adv.consumer_event(
        StoredMessage(2, TIME, adv.DELETED + "S.c", b'{"timestamp": "1970-01-01T00:00:00.000009Z"}')
    )
    assert one == adv.ConsumerEvent("S", "c", True, 9)
    changes = adv.events_of(StoredMessage(2, TIME, adv.DELETED + "S.c"), one, found, "A", ())
    assert [(c.kind, c.topic) for c in changes] == [
        (DiscoveryEventKind.UNSUBSCRIBED, "a.*"),
        (DiscoveryEventKind.UNSUBSCRIBED, "b"),
    ]
    assert json.loads(changes[0].info or "") == {"stream": "S", "consumer": "c", "client": {"user": "u"}}


@given(st.lists(st.tuples(*[st.integers(1, 1000)] * 3), min_size=1, max_size=6), st.data())
def test_each_consumer_of_one_name_finds_its_own_audit_or_none(
    lives: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Whatever order audits come in, and whichever have not come yet."""
    now, deleted = 0, None
    image_read: list[tuple[adv.ConsumerEvent, adv.ConsumerEvent | None, adv.AdvisoryReader]] = []
    for before, making, lasting in lives:
        generations = now + before
        audit = adv.AdvisoryReader("S", "c", generations, (f"t.{generations}",), {}, False)
        image_read.append((adv.ConsumerEvent("S", "c", False, generations + making), deleted, audit))
        now = generations + making + lasting
        deleted = adv.ConsumerEvent("S", "c", True, now)
    others = [
        adv.AdvisoryReader("S", "d", 5, (), {}, False),
        adv.AdvisoryReader("T", "c", 5, (), {}, False),
    ]
    at = data.draw(st.integers(0, len(image_read) - 1))
    consumer_event, before_it, own = image_read[at]
    there = data.draw(st.permutations([audit for _, _, audit in image_read] + others))
    assert adv.find_reader(consumer_event, before_it, there) == own
    assert adv.find_reader(consumer_event, before_it, [audit for audit in there if audit != own]) is None


@each("name", ["mama-abc", "JS_SRC_x", "JS_MIRROR_x"])
def test_readers_of_ours_and_of_the_server_are_left_out(name: str) -> None:
    assert adv.consumer_event(StoredMessage(1, TIME, f"{adv.CREATED}S.{name}")) is None


@given(st.binary(max_size=300))
def test_any_header_block_is_read(block: bytes) -> None:
    stored(headers_of(block), b"")


def test_what_a_direct_get_adds_to_the_headers_is_taken_out() -> None:
    block = b"NATS/1.0\r\nA: b\r\nNats-Sequence: 17\r\nNats-Time-Stamp: %b\r\nNats-Subject: s.t\r\n\r\n" % TIME.encode()
    assert stored(headers_of(block), b"\x00") == StoredMessage(17, TIME, "s.t", b"\x00", {"A": "b"})


@each(
    ("time", "expected"),
    [(TIME, int(datetime(2026, 11, 21, 7, 12, 16, tzinfo=UTC).timestamp()) * 10**6 + 814605), ("", 0), ("2026", 0),
     ("2026-11-21T07:12:16", 0), ("1970-01-01T00:00:00.000001Z", 1)],
)  # fmt: skip
def test_times_are_microseconds(time: str, expected: int) -> None:
    assert micros(time) == expected


@each(
    ("found", "kind"),
    [
        (of(REC, 1), DiscoveryEventKind.RECORD),
        (of(REC, 1, Mama_Renewal="1"), None),
        (of(REC, 1, Nats_Marker_Reason="MaxAge"), None),
        (of(WARN, 1), None),
        (of(WARN, 1, Nats_Marker_Reason="MaxAge"), DiscoveryEventKind.SUSPECT),
        (of(WARN, 1, Nats_Marker_Reason="Purge"), None),
        (of(LIVE, 1), None),
        (of(LIVE, 1, Nats_Marker_Reason="MaxAge"), DiscoveryEventKind.OFFLINE),
        (record(BOARD.event_subject(DESK)), DiscoveryEventKind.EVENT),
        (record(BOARD.mark_subject), None),
        (record(BOARD.image_subject("x")), None),
    ],
)
def test_renewals_are_no_changes_and_markers_are(found: StoredMessage, kind: DiscoveryEventKind | None) -> None:
    change = event_of(BOARD, found)
    assert (None if change is None else change.kind) == kind
    assert change is None or change.source == DESK


def test_what_an_image_has_told_is_not_told_again() -> None:
    image_read = of(REC, 90, Nats_Stream_Source="MAMA_SOURCES 4 > > subject")
    assert event_of(BOARD, image_read, 4) is None
    assert event_of(BOARD, image_read, 3) is not None
    event = StoredMessage(91, TIME, BOARD.event_subject(DESK), b"e", {SOURCED: "MAMA_SOURCES 4 > >"})
    assert event_of(BOARD, event, 4) is not None, "only what was sourced is in the image"


MAX = {"Nats_Marker_Reason": "MaxAge"}


@each(
    ("parts", "kinds"),
    [
        ([of(REC, 1)], "record"),  # a foreign one, without a TTL
        ([of(REC, 1, Mama_Source_Ttl="2"), of(WARN, 2), of(LIVE, 3)], "record"),
        ([of(REC, 1, Mama_Source_Ttl="2")], "record offline"),
        ([of(REC, 1, Mama_Source_Ttl="2"), of(WARN, 5, **MAX), of(LIVE, 3)], "record suspect"),
        ([of(REC, 1, Mama_Source_Ttl="2"), of(WARN, 5, **MAX), of(LIVE, 6, **MAX)], "record offline"),
        ([of(REC, 7, Mama_Source_Ttl="2"), of(WARN, 5, **MAX), of(LIVE, 6, **MAX)], "record"),  # coming back
        ([of(REC, 7, Mama_Withdrawn="1"), of(LIVE, 8, **MAX)], "record"),
        ([of(REC, 9, **MAX), of(LIVE, 6, **MAX)], ""),
        ([of(WARN, 1), of(LIVE, 2)], ""),
    ],
)
def test_the_image_says_what_became_of_each_source(parts: list[StoredMessage], kinds: str) -> None:
    assert " ".join(c.kind.value for c in image_of(BOARD, parts, NOW).changes) == kinds


def test_a_source_whose_renewal_was_not_seen_is_asked_about() -> None:
    parts = [of(REC, 1, Mama_Source_Ttl="2")]
    assert image_of(BOARD, parts, NOW).unconfirmed == [DESK]
    for image in (image_of(BOARD, parts, NOW, [DESK]), image_of(BOARD, parts, micros(TIME) + 1_000_000)):
        assert [c.kind for c in image.changes] == [DiscoveryEventKind.RECORD]
        assert not image.unconfirmed


NUMBERS = st.integers(0, 2**62)
CHANGES = st.builds(
    DiscoveryEvent,
    st.sampled_from(DiscoveryEventKind),
    NUMBERS,
    TEXT,
    st.none() | NUMBERS,
    st.none() | KEYS,
    st.none() | st.binary(max_size=100),
    st.none() | TEXT,
    st.none() | TEXT,
)


@given(st.lists(CHANGES, max_size=20), st.integers(1, 500))
def test_an_image_comes_back_from_its_messages(changes: list[DiscoveryEvent], chunk: int) -> None:
    chunks = pack(changes, chunk)
    assert max(map(len, chunks)) <= chunk
    assert unpack(chunks) == changes


# --- positions ---------------------------------------------------------------------------------------------------

MADE = StreamCreationTimes("s1", "e1", "a1")
IMAGE = StoredImage("t", 5, 40, (100, TIME), 9, 101, 103, 7)
HERE = DiscoveryOffset(100, (100, TIME), 9, MADE, IMAGE, 5)


@each("position", [HERE, DiscoveryOffset(3, (2, ""), 0, MADE), DiscoveryOffset.in_image(IMAGE, MADE, 2)])
def test_a_position_comes_back_from_json(position: DiscoveryOffset) -> None:
    assert offsets.parse_offset(json.loads(json.dumps(position.as_json()))) == position


@given(st.dictionaries(st.sampled_from(["events", "mark", "advisories", "made", "image", "told"]),
                       st.none() | st.integers() | st.text() | st.lists(st.integers() | st.text())))  # fmt: skip
def test_a_position_that_is_none_of_ours_is_refused(position: dict[str, object]) -> None:
    if set(position) >= {"events", "mark", "advisories", "made"}:
        with contextlib.suppress(ConfigError):
            offsets.parse_offset(position)
    else:
        with pytest.raises(ConfigError, match="no position"):
            offsets.parse_offset(position)


LATER = DiscoveryOffset(150, (150, "t2"), 12, MADE, IMAGE, 5)
FOLLOWED = [RecordRange("events", 100, 150, (100, TIME), 40), RecordRange("advisories", 9, 12, (9, ""))]
FIRST, WHOLE = DiscoveryOffset.in_image(IMAGE, MADE, 2), DiscoveryOffset.in_image(IMAGE, MADE, 5)
EVENTS_AGAIN, SOURCES_AGAIN = replace(MADE, events="e2"), replace(MADE, sources="s2")
AFTER_EVENTS = StoredImage("t2", 3, 60, (20, "t2"), 9, 21, 21, 8)
AFTER_SOURCES = StoredImage("t2", 3, 60, (120, "t2"), 9, 121, 121, 8)
PLAIN = DiscoveryOffset(100, (100, "t"), 9, MADE)


@each(
    ("start", "end", "steps"),
    [
        (HERE, LATER, FOLLOWED),
        (HERE, HERE, []),
        (None, FIRST, [ImageRange(IMAGE, 0, 2)]),
        (FIRST, WHOLE, [ImageRange(IMAGE, 2, 5)]),
        (None, WHOLE, [ImageRange(IMAGE, 0, 5)]),
        (None, LATER, [ImageRange(IMAGE, 0, 5), *FOLLOWED]),
        # made again: a gap, what the stream holds, and an image
        (HERE, DiscoveryOffset.in_image(AFTER_EVENTS, EVENTS_AGAIN, 3),
         [StreamRecreated("events", 100), RecordRange("events", 0, 20, None, 60), ImageRange(AFTER_EVENTS, 0, 3)]),
        (HERE, DiscoveryOffset.in_image(AFTER_SOURCES, SOURCES_AGAIN, 3),
         [RecordRange("events", 100, 120, (100, TIME), 40), StreamRecreated("sources", 40),
          ImageRange(AFTER_SOURCES, 0, 3)]),
        # restored from an older copy: a gap and an image
        *((start, DiscoveryOffset.in_image(AFTER_EVENTS, MADE, 3),
           [StreamRecreated("events", 100), ImageRange(AFTER_EVENTS, 0, 3)]) for start in (HERE, PLAIN)),
        # however far it has grown since
        *((PLAIN, DiscoveryOffset(last, (last, "u"), 9, EVENTS_AGAIN),
           [StreamRecreated("events", 100), RecordRange("events", 0, last)]) for last in (3, 100, 5_000)),
        *((PLAIN, replace(PLAIN, advisories=last, generations=replace(MADE, advisories="a2")),
           [StreamRecreated("advisories", 9), RecordRange("advisories", 0, last)]) for last in (3, 9, 5_000)),
    ],
)  # fmt: skip
def test_between_two_positions_lie_the_changes(
    start: DiscoveryOffset | None, end: DiscoveryOffset, steps: list[offsets.Step]
) -> None:
    assert steps_between(start, end) == steps


# --- streams -----------------------------------------------------------------------------------------------------


def test_streams_made_by_us_have_no_fault() -> None:
    for config in BOARD.streams():
        assert BOARD.faults(config) == ([], [])


@each(
    ("stream", "change", "word"),
    [
        (0, {"allow_msg_ttl": False}, "allow_msg_ttl"),
        (0, {"subject_delete_marker_ttl": 0}, "subject_delete_marker_ttl"),
        (0, {"max_msgs_per_subject": -1}, "max_msgs_per_subject"),
        (0, {"allow_direct": False}, "allow_direct"),
        (1, {"allow_msg_ttl": False}, "allow_msg_ttl"),
        (1, {"sources": []}, "MAMA_SOURCES"),
        (1, {"subject_delete_marker_ttl": 5}, "subject_delete_marker_ttl"),
        (2, {"allow_direct": False}, "allow_direct"),
    ],
)
def test_a_stream_that_cannot_serve_is_told_by_its_setting(stream: int, change: dict[str, object], word: str) -> None:
    wrong, _ = BOARD.faults({**BOARD.streams()[stream], **change})
    assert any(word in text for text in wrong)


@pytest.mark.parametrize("change", [{"max_msgs_per_subject": 5}, {"duplicate_window": 0}])
def test_a_stream_that_serves_badly_is_a_warning(change: dict[str, object]) -> None:
    wrong, doubtful = BOARD.faults({**BOARD.streams()[1], **change})
    assert not wrong
    assert next(iter(change)) in doubtful[0]


def test_a_server_that_is_too_old_is_told_by_its_version() -> None:
    for version in ("2.11.0", "<nats server v2.15.1>", "3.0.0-beta"):
        check_version(version)
    for version in ("2.10.29", "<nats server v2.9.0>", "", "new"):
        with pytest.raises(ConfigError, match=r"2\.11"):
            check_version(version)


@pytest.mark.parametrize(("given", "stream"), [({}, "MAMA_ADVISORIES"), ({"advisories": "false"}, None)], ids=str)
def test_readers_that_come_and_go_are_left_out_where_the_option_says_so(
    given: dict[str, str], stream: str | None
) -> None:
    assert discovery_bridge(DiscoveryOptions.parse({"url": "nats://h", **given})).layout.advisories == stream
