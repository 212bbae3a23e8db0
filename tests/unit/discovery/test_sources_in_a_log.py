"""Sources in a log: their expiry, offsets of their readers, and the image as messages."""

from __future__ import annotations

import json
import sys
from types import FrameType

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Bounds
from mama_spark.discovery import image_codec
from mama_spark.discovery.log_discovery import LogOffset, SavedImage, broken, next_offset, parse_offset, same_log
from mama_spark.discovery.source_expiry import (
    check_ttl,
    expires_after,
    expiries,
    offline_after,
    offline_by_absence,
    renew_every,
    state_by_marker,
    state_by_markers,
    suspect_after,
)

from tests.support.tables import each

SUSPECT, OFFLINE = DiscoveryEventKind.SUSPECT, DiscoveryEventKind.OFFLINE
ONE, TWO, THREE = (SourceKey("s", number) for number in (1, 2, 3))


@given(st.floats(1e-3, 1e6))
def test_a_renewal_may_be_late_once_before_anything_is_said(ttl: float) -> None:
    assert 0 < renew_every(ttl) < suspect_after(ttl) < offline_after(ttl) == ttl
    assert suspect_after(ttl) == ttl / 2


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_a_source_that_nobody_renews_is_suspect_and_then_offline(renewed: float, ttl: float) -> None:
    both = expiries(renewed, ttl, None)
    assert both == [(renewed + ttl / 2, SUSPECT), (renewed + ttl, OFFLINE)]
    assert expiries(renewed, ttl, SUSPECT) == both[1:]
    assert expiries(renewed, ttl, OFFLINE) == []
    assert [(renewed + expires_after(ttl, state), state) for state in (SUSPECT, OFFLINE)] == both


_MARKER = st.none() | st.integers(1, 20)


@given(st.integers(1, 20), _MARKER, _MARKER)
def test_a_marker_counts_until_the_record_is_written_again(record: int, warn: int | None, live: int | None) -> None:
    expected = OFFLINE if (live or 0) > record else SUSPECT if (warn or 0) > record else None
    assert state_by_markers(record, warn, live) is expected


def test_the_marker_of_half_the_time_to_live_means_suspect() -> None:
    assert (state_by_marker(half=True), state_by_marker(half=False)) == (SUSPECT, OFFLINE)


def test_what_is_known_and_not_in_the_image_is_offline() -> None:
    image = [DiscoveryEvent(DiscoveryEventKind.RECORD, 0, "log", 1, ONE), DiscoveryEvent(SUSPECT, 0, "log", 2, ONE)]
    end = DiscoveryEvent(DiscoveryEventKind.IMAGE_END, 0, "log", 3)
    assert offline_by_absence([ONE, TWO, THREE], [*image, end]) == {TWO, THREE}
    assert offline_by_absence([], image) == set()
    assert offline_by_absence([ONE], [end]) == {ONE}


@each("ttl", [0.0, -1.0, float("nan")])
def test_a_time_to_live_is_positive(ttl: float) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        check_ttl(ttl)
    check_ttl(0.001)


# --- Offsets of readers of discovery that is kept in one log ----------------------------------------------------------

IMAGE = SavedImage("t", 8, 21, 23, 20)


@each("place", [LogOffset("log", 5), LogOffset("log", 20, IMAGE, 3), LogOffset("log", 20, IMAGE, 8)])
@pytest.mark.parametrize("key", ["log", "identity"])
def test_offsets_survive_json(place: LogOffset, key: str) -> None:
    assert parse_offset(json.loads(json.dumps(place.as_json(key))), "here", key) == place
    assert parse_offset(json.loads(json.dumps({"begin": "image"})), "here", key) is None


@each("wrong", [{}, {"log": "x"}, {"log": "x", "next": "y"}, {"events": 5}, {"log": "x", "next": 1, "image": [1]}])
def test_what_is_no_offset_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="no offset of discovery on Malamute"):
        parse_offset(wrong, "Malamute")


@given(st.integers(1, 40), st.integers(1, 12), st.none() | st.integers(1, 60))
def test_steps_of_any_size_lead_to_the_same_end_and_never_beyond_the_goal(
    last: int, most: int, goal: int | None
) -> None:
    until = None if goal is None else LogOffset("log", goal)
    place, told = LogOffset("log", 1, SavedImage("t", 8, 1, 1, 1), 0), 0
    for _ in range(100):
        further = next_offset(place, 1, last, most, until)
        told += further.delivered - place.delivered if further.image else further.next - place.next
        if further == place:
            break
        place = further
    end = last + 1 if goal is None else min(last + 1, goal)
    assert place.next == max(1, end)
    assert told == 8 + max(1, end) - 1


def test_another_log_is_one_of_another_identity_or_one_that_ends_before_what_was_read() -> None:
    assert same_log(LogOffset("a", 5), Bounds(1, 4, "a"))
    assert not same_log(LogOffset("a", 5), Bounds(1, 9, "b"))
    assert not same_log(LogOffset("a", 5), Bounds(1, 3, "a"))


@each(
    ("start", "end", "lost"),
    [
        (LogOffset("a", 5), LogOffset("a", 9), False),
        (LogOffset("a", 20, IMAGE, 3), LogOffset("a", 20, IMAGE, 8), False),
        (LogOffset("a", 20, IMAGE, 8), LogOffset("a", 25), False),
        (LogOffset("a", 5), LogOffset("b", 9), True),
        (LogOffset("a", 5), LogOffset("a", 4), True),
        (LogOffset("a", 5), LogOffset("a", 20, IMAGE), True),
    ],
)
def test_a_reader_that_began_again_has_lost_its_place(start: LogOffset, end: LogOffset, lost: bool) -> None:
    assert broken(start, end) is lost


# --- Stored images of discovery: what is written is read again, and what is no image is refused -----------------------

EVENTS = [DiscoveryEvent(DiscoveryEventKind.IMAGE_END, at, "log", at) for at in range(1, 40)]


def test_parts_hold_all_events_in_order() -> None:
    parts = image_codec.pack(EVENTS, 200)
    assert len(parts) > 1
    assert all(len(part) <= 200 for part in parts)
    assert image_codec.unpack(parts) == EVENTS
    with pytest.raises(ValueError):  # noqa: PT011 pyarrow's own, whatever it says
        image_codec.unpack(parts[:-1])


def test_some_of_the_events_are_read_without_making_the_others() -> None:
    """Readers with ``maxOffsetsPerTrigger`` come once for each portion."""
    parts, made = image_codec.pack(EVENTS, 200), 0

    def count(frame: FrameType, what: str, _: object) -> None:
        nonlocal made
        made += what == "call" and frame.f_code is DiscoveryEvent.__init__.__code__

    sys.setprofile(count)
    try:
        found = image_codec.unpack(parts, 10, 13)
    finally:
        sys.setprofile(None)
    assert (found, made) == (EVENTS[10:13], 3)
    assert image_codec.unpack(parts, 36) == EVENTS[36:]
    assert image_codec.unpack(parts, 36, 100) == EVENTS[36:]


def test_a_schema_without_a_batch_is_an_empty_image() -> None:
    (part,) = image_codec.pack(EVENTS, 1 << 20)
    schema = pa.ipc.open_stream(part).schema.serialize()
    image_codec._check_size(schema)


def test_a_message_that_is_no_record_batch_is_refused() -> None:
    (part,) = image_codec.pack(EVENTS, 1 << 20)
    schema = pa.ipc.open_stream(part).schema.serialize().to_pybytes()
    with pytest.raises(ValueError, match="no record batch of an image"):
        image_codec._check_size(pa.py_buffer(schema + schema))
