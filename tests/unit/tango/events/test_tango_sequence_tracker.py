"""Counters of events: gaps, restarts and duplicates (TG-46)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.tango.events import sequence_tracker
from mama_spark.tango.events.event_codec import usual_call
from mama_spark.tango.events.sequence_tracker import WRAP, SequenceGap, SequenceRestart, SequenceResult, SequenceTracker
from mama_spark.tango.types import EventType

from tests.support.tables import each
from tests.support.vectors import vectors

VECTORS = vectors("tango")
SCENARIOS = [pytest.param(v, id=v["name"]) for v in VECTORS if v["kind"] == "scenario" and "events" in v["input"]]


def see(counters: SequenceTracker, ctr: int, data: bytes, topic: str = "t") -> SequenceResult:
    return counters.track(topic, ctr, usual_call(ctr), data)


def told(events: list[tuple[int, str]]) -> list[str]:
    counters, lines = SequenceTracker(), []
    for ctr, data in events:
        seen = see(counters, ctr, data.encode())
        if isinstance(seen.marker, SequenceGap):
            lines.append(f"gap from {seen.marker.first} to {seen.marker.last} count {seen.marker.size}")
        elif seen.marker is not None:
            lines.append("restart")
        if seen.deliver:
            lines.append(f"event {data}")
    return lines


@each("vector", SCENARIOS)
def test_recorded_conversations(vector: dict[str, Any]) -> None:
    assert told(vector["input"]["events"]) == vector["decoded"]["expected"]


@pytest.mark.spec("TG-46")
@each(
    ("last", "ctr", "expected"),
    [
        (5, 6, None), (WRAP - 1, 0, None), (5, 7, SequenceGap(6, 6)), (1, WRAP - 1, SequenceGap(2, WRAP - 2)),
        (5, 5, SequenceRestart(5, 5)), (5, 1, SequenceRestart(5, 1)), (WRAP - 1, 1, SequenceRestart(WRAP - 1, 1)),
    ],
)  # fmt: skip
def test_two_counters_are_consecutive_or_a_gap_or_a_restart(
    last: int, ctr: int, expected: SequenceGap | SequenceRestart | None
) -> None:
    assert sequence_tracker.discontinuity(last, ctr) == expected
    assert (expected is None) is (sequence_tracker.next_counter(last) == ctr)


@each(
    ("events", "delivered"),
    [
        pytest.param([(WRAP - 2, "a"), (WRAP - 1, "b"), (0, "c"), (1, "d")], "abcd", id="it wraps without a gap"),
        pytest.param([(3, "a"), (3, "b"), (4, "c")], "abc", id="other data with an equal counter"),
        pytest.param([(3, "a"), (3, "a"), (3, "a"), (4, "a")], "aa", id="a third copy"),
    ],
)
def test_what_is_delivered(events: list[tuple[int, str]], delivered: str) -> None:
    assert told(events) == [f"event {data}" for data in delivered]


def test_an_error_and_a_value_with_one_counter_are_two_events() -> None:
    counters = SequenceTracker()
    assert counters.track("t", 3, usual_call(3), b"x").deliver
    assert counters.track("t", 3, usual_call(3, True), b"x").deliver


def test_large_data_is_compared_and_not_kept() -> None:
    counters = SequenceTracker()
    big = bytes(10_000)
    assert see(counters, 1, big).deliver
    assert not see(counters, 1, bytes(10_000)).deliver
    assert see(counters, 1, big[:-1] + b"\1").deliver
    assert all(len(part) < 5000 for _, *parts in counters._last.values() for part in parts)


@each("ctr", [0, 1, 6, 7, 9])
def test_a_server_that_is_known_to_be_new_makes_a_restart_of_any_counter(ctr: int) -> None:
    counters = SequenceTracker()
    see(counters, 6, b"x")
    counters.mark_restarted("t")
    counters.mark_restarted("t")
    counters.mark_restarted("unknown")
    assert see(counters, ctr, b"x") == SequenceResult(True, SequenceRestart(6, ctr))
    assert see(counters, ctr + 1, b"y") == SequenceResult(True)
    assert see(counters, ctr + 3, b"z") == SequenceResult(True, SequenceGap(ctr + 2, ctr + 2))


def test_topics_are_counted_apart_and_forgotten_apart() -> None:
    counters = SequenceTracker()
    for topic in ("a", "b"):
        assert see(counters, 5, b"x", topic) == SequenceResult(True)
    counters.forget("a")
    counters.forget("unknown")
    assert see(counters, 9, b"y", "a") == SequenceResult(True)
    assert see(counters, 9, b"y", "b") == SequenceResult(True, SequenceGap(6, 8))
    assert see(counters, 2, b"z", "b") == SequenceResult(True, SequenceRestart(9, 2))


@given(st.sets(st.integers(1, 200), min_size=1), st.data())
def test_events_and_gaps_together_are_all_events(came: set[int], data: st.DataObject) -> None:
    """Each counter from the first to the last event is delivered or in exactly one gap; duplicates change nothing."""
    counters = SequenceTracker()
    numbers = sorted(came)
    doubled = data.draw(st.sets(st.sampled_from(numbers)))
    found: list[int] = []
    for n in numbers:
        for _ in range(2 if n in doubled else 1):
            seen = see(counters, n, b"data %d" % n)
            if isinstance(seen.marker, SequenceGap):
                found += range(seen.marker.first, seen.marker.last + 1)
            if seen.deliver:
                found.append(n)
    assert found == list(range(numbers[0], numbers[-1] + 1))


def test_counters_of_data_ready_and_zero_are_not_compared() -> None:
    assert [event for event in EventType if not sequence_tracker.is_counted_type(event)] == [EventType.DATA_READY]
    assert b"tango://h:1/d/m/1/a.data_ready".endswith(sequence_tracker.UNCOUNTED_TOPIC_ENDS)
    assert not b"tango://h:1/d/m/1/data_ready.change".endswith(sequence_tracker.UNCOUNTED_TOPIC_ENDS)
    assert [sequence_tracker.is_counted(ctr) for ctr in (0, 1, WRAP - 1)] == [False, True, True]
