"""Which messages are missing, by topic, sender and number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.openmama.recorder.gaps import GapTracker

from tests.support.tiers import examples

pytestmark = pytest.mark.spec("OW29")
LAST = 2**32 - 1


def after(*numbers: int) -> GapTracker:
    """Of these numbers none tells of a gap."""
    tracker = GapTracker()
    assert [tracker.update("OM.IBM", 1, number) for number in numbers] == [None] * len(numbers)
    return tracker


def test_consecutive_numbers_have_no_gap() -> None:
    assert after(*range(5, 50)).update("OM.IBM", 1, 51) == (50, 50)


def test_a_skipped_number_is_a_gap_of_its_topic_and_sender_alone() -> None:
    tracker = after(5)
    assert tracker.update("OM.IBM", 1, 9) == (6, 8)
    assert tracker.update("OM.MSFT", 1, 9) is None
    assert tracker.update("OM.IBM", 2, 100) is None
    assert tracker.update("OM.IBM", 1, 10) is None


def test_a_conflated_message_stands_for_several() -> None:
    assert after(5).update("OM.IBM", 1, 8, stands_for=3) is None
    assert after(5).update("OM.IBM", 1, 9, stands_for=3) == (6, 6)


def test_an_equal_number_is_a_duplicate_and_a_lower_one_a_restart() -> None:
    assert after(5, 5, 1, 2).update("OM.IBM", 1, 4) == (3, 3)


def test_number_zero_is_not_counted() -> None:
    assert len(after(0, 0)) == 0


def test_after_the_highest_number_comes_one() -> None:
    assert after(LAST).update("OM.IBM", 1, 1) is None
    assert after(LAST - 1).update("OM.IBM", 1, 2) == (LAST, 1)


def test_an_image_has_the_number_of_the_last_update() -> None:
    tracker = after(5)
    assert tracker.image("OM.IBM", 1, 5) is None
    assert tracker.image("OM.IBM", 1, 8) == (6, 8)
    assert tracker.update("OM.IBM", 1, 9) is None
    assert tracker.image("OM.IBM", 1, 0) is None


def test_what_an_earlier_recorder_had_shows_what_was_missed() -> None:
    tracker = GapTracker()
    tracker.restore("OM.IBM", 1, 10)
    assert tracker.update("OM.IBM", 1, 13) == (11, 12)


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
