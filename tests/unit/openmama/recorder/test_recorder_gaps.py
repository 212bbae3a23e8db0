"""Which messages are missing: by topic, sender and number, and what a full log rejected until it takes gap records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.openmama.recorder.gaps import GapTracker, RefusedMessages
from mama_spark.openmama.wire.records import MamaGapCause, MamaRecord, MamaRecordKind

from tests.support.tables import each
from tests.support.tiers import examples

pytestmark = pytest.mark.spec("OW29")
LAST = 2**32 - 1
IBM, MSFT = "OM.IBM", "OM.MSFT"


@each(
    ("steps", "missing"),
    [
        # a call of the tracker and its arguments behind topic and sender; the gap that the last one finds
        ([("update", IBM, 1, 5), ("update", MSFT, 1, 9)], None),  # of its topic alone
        ([("update", IBM, 1, 5), ("update", IBM, 2, 100)], None),  # and of its sender
        ([("update", IBM, 1, 5), ("update", IBM, 1, 8, 3)], None),  # stands for three
        ([("update", IBM, 1, 5), ("update", IBM, 1, 9, 3)], (6, 6)),
        ([*(("update", IBM, 1, n) for n in (5, 5, 1, 2)), ("update", IBM, 1, 4)], (3, 3)),  # a duplicate, a restart
        ([("update", IBM, 1, LAST), ("update", IBM, 1, 1)], None),
        ([("update", IBM, 1, LAST - 1), ("update", IBM, 1, 2)], (LAST, 1)),
        ([("update", IBM, 1, 5), ("update", IBM, 1, 5, 0)], None),
        ([("update", IBM, 1, 5), ("update", IBM, 1, 8, 0)], (6, 8)),
        ([("update", IBM, 1, 8, 0), ("update", IBM, 1, 9)], None),
        ([("restore", IBM, 1, 10), ("update", IBM, 1, 13)], (11, 12)),  # what an earlier recorder had
    ],
)
def test_the_last_message_shows_what_is_missing(steps: list[tuple[Any, ...]], missing: tuple[int, int] | None) -> None:
    tracker = GapTracker()
    found = [getattr(tracker, call)(*arguments) for call, *arguments in steps]
    assert found == [None] * (len(steps) - 1) + [missing]


def test_topics_that_are_silent_longest_are_forgotten() -> None:
    tracker = GapTracker(most=2)
    for topic in ("a", "b", "a", "c"):
        tracker.update(topic, 0, 1)
    assert len(tracker) == 2
    assert tracker.update("b", 0, 100) is None
    assert tracker.update("c", 0, 3) == (2, 2)


@examples(200)
@given(st.integers(1, LAST - 2000), st.sets(st.integers(1, 500)))
def test_gaps_are_exactly_the_numbers_that_did_not_come(first: int, left_out: set[int]) -> None:
    tracker, missing = GapTracker(), set()
    for step in [n for n in range(600) if n not in left_out]:
        gap = tracker.update("t", 0, first + step)
        missing |= set(range(gap.first, gap.last + 1)) if gap else set()
    assert missing == {first + n for n in left_out}


def gap(first: int, last: int, topic: str = "mama.A", cause: MamaGapCause = MamaGapCause.REFUSED) -> MamaRecord:
    return MamaRecord(MamaRecordKind.GAP, topic, 7, cause=cause, sender=5, first=first, last=last)


def taken(refused: RefusedMessages) -> list[tuple[str, int, int, int]]:
    return [(one.topic, one.cause, one.first, one.last) for one in refused.take(8)]


def test_numbers_that_follow_each_other_are_one_gap() -> None:
    refused = RefusedMessages()
    refused.add([gap(n, n) for n in range(1, 1001)])
    assert len(refused) == 1
    refused.add([gap(1002, 1003), gap(1001, 1001), gap(1, 1, "mama.B"), gap(1004, 1009, cause=MamaGapCause.WAY)])
    assert taken(refused) == [("mama.A", 3, 1, 1003), ("mama.B", 3, 1, 1), ("mama.A", 1, 1004, 1009)]
    assert not len(refused)


def test_a_gap_record_that_was_rejected_is_put_before_what_followed() -> None:
    refused = RefusedMessages()
    refused.add([gap(11, 20)])
    refused.add([gap(1, 10)])
    assert taken(refused) == [("mama.A", 3, 1, 20)]


def test_numbers_of_a_publisher_that_counted_anew_stay_apart_and_those_without_numbers_do_not() -> None:
    refused = RefusedMessages()
    refused.add([gap(1, 1), gap(2, 2), gap(1, 1), gap(2, 2), *[gap(0, 0, "mama.B")] * 100])
    assert taken(refused) == [("mama.A", 3, 1, 2), ("mama.A", 3, 1, 2), ("mama.B", 3, 0, 0)]
