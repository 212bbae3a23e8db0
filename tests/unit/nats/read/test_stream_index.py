"""What is missing in a stream, and the end of a range that may have so many messages that match."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.nats.read.stream_index import match_range, merge_ranges, missing_ranges

from tests.support.tiers import examples


@examples(300)
@given(
    matching=st.sets(st.integers(1, 500), max_size=300),
    limit=st.integers(1, 100),
    after=st.integers(0, 499),
    arriving=st.integers(0, 3),
)
def test_no_range_has_more_than_its_limit_and_each_goes_on(
    matching: set[int], limit: int, after: int, arriving: int
) -> None:
    """While records arrive, too."""
    stored, asked = set(matching), 0

    def count(behind: int) -> int:
        nonlocal asked
        asked += 1
        stored.update(range(501 + arriving * (asked - 1), 501 + arriving * asked))
        return sum(sequence > behind for sequence in stored)

    found = match_range(limit, after, 500, count)
    last = found.last
    assert after < last <= 500
    taken = sum(after < sequence <= last for sequence in stored)
    assert taken <= limit
    if not arriving:
        rest = sum(last < sequence <= 500 for sequence in stored)
        assert taken >= 0.9 * limit - 1 or not rest
        assert found.matching == taken or last == after + 1


@examples(60)
@given(st.sets(st.integers(5, 40)), st.integers(5, 40), st.integers(5, 40))
def test_holes_and_ranges_are_what_sets_say(there: set[int], one: int, other: int) -> None:
    low, high = sorted((one, other))
    present = np.array(sorted(n for n in there if low <= n <= high), np.int64)
    gone = sorted(set(range(low, high + 1)) - there)
    found = missing_ranges(np.array_split(present, 3), low, high)
    assert [n for a, b in found for n in range(a, b + 1)] == gone
    assert merge_ranges([(n, n) for n in gone]) == found
