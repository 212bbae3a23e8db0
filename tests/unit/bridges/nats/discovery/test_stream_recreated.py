"""A stream of discovery that was deleted and made again is noticed however far it has grown since."""

from __future__ import annotations

import pytest
from mama_spark.bridges.nats.discovery.offsets import At, Gone, Made, Span, between

MADE = Made("s", "e", "a")


@pytest.mark.parametrize("last", [3, 100, 5_000])
def test_events_made_again_are_a_gap_and_then_all_that_the_stream_holds(last: int) -> None:
    start = At(100, (100, "t"), 9, MADE)
    end = At(last, (last, "u"), 9, Made("s", "e2", "a"))
    assert between(start, end) == [Gone("events", 100), Span("events", 0, last)]


@pytest.mark.parametrize("last", [3, 9, 5_000])
def test_advisories_made_again_are_a_gap_and_then_all_that_the_stream_holds(last: int) -> None:
    start = At(100, (100, "t"), 9, MADE)
    end = At(100, (100, "t"), last, Made("s", "e", "a2"))
    assert between(start, end) == [Gone("advisories", 9), Span("advisories", 0, last)]
