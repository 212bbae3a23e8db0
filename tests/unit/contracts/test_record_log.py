"""What became of a log since a position in it was saved."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.record_log import Bounds, Continuity, Records, continuity

from tests.support.tables import each


@each(
    ("next_sequence", "bounds", "expected"),
    [
        (1, Bounds(1, 0, "a"), Continuity.UNBROKEN),
        (5, Bounds(1, 4, "a"), Continuity.UNBROKEN),
        (5, Bounds(5, 4, "a"), Continuity.UNBROKEN),
        (5, Bounds(5, 9, "a"), Continuity.UNBROKEN),
        (5, Bounds(6, 9, "a"), Continuity.REMOVED),
        (5, Bounds(6, 5, "a"), Continuity.REMOVED),
        (5, Bounds(1, 3, "a"), Continuity.SHORTER),
        (5, Bounds(1, 0, "a"), Continuity.SHORTER),
        (5, Bounds(1, 3, "b"), Continuity.RECREATED),
        (5, Bounds(1, 9, "b"), Continuity.RECREATED),
        (5, Bounds(6, 9, "b"), Continuity.RECREATED),
    ],
)
def test_a_position_and_a_log(next_sequence: int, bounds: Bounds, expected: Continuity) -> None:
    assert continuity(next_sequence, "a", bounds) is expected


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_reading_goes_on_where_the_next_record_is_there_or_is_the_next_to_come(first: int, n: int, at: int) -> None:
    there = range(first, first + n)
    state = continuity(at, "a", Bounds(first, first + n - 1, "a"))
    assert (state is Continuity.UNBROKEN) is (at in there or at == there.stop)
    assert (state is Continuity.REMOVED) is (at < there.start)
    assert (state is Continuity.SHORTER) is (at > there.stop)


def test_some_of_the_records_keep_their_numbers_topics_and_faults() -> None:
    numbers = np.arange(4)
    whole = Records(numbers, numbers * 10, pa.array([*"abcd"]), pa.array([b"0", b"1", b"2", b"3"]), None, {2: "why"})
    for some in (whole.take(np.array([1, 2])), whole.slice(1, 3)):
        assert (some.sequences.tolist(), some.times.tolist()) == ([1, 2], [10, 20])
        assert (some.topics.to_pylist(), some.payloads.to_pylist(), some.faults) == (
            ["b", "c"],
            [b"1", b"2"],
            {1: "why"},
        )
