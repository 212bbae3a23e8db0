"""Offsets of readers of discovery that is kept in one log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Bounds
from mama_spark.discovery.log_offsets import LogOffset, WrittenSnapshot, broken, next_offset, parse_offset, same_log

from tests.support.tables import each

IMAGE = WrittenSnapshot("t", 8, 21, 23, 20)


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
    place, told = LogOffset("log", 1, WrittenSnapshot("t", 8, 1, 1, 1), 0), 0
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
