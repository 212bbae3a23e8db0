"""A stream of discovery that was deleted and made again is noticed however far it has grown since."""

from __future__ import annotations

from mama_spark.nats.discovery.offsets import (
    DiscoveryOffset,
    RecordRange,
    StreamCreationTimes,
    StreamRecreated,
    steps_between,
)

from tests.support.tables import each

MADE = StreamCreationTimes("s", "e", "a")


@each("last", [3, 100, 5_000])
def test_events_made_again_are_a_gap_and_then_all_that_the_stream_holds(last: int) -> None:
    start = DiscoveryOffset(100, (100, "t"), 9, MADE)
    end = DiscoveryOffset(last, (last, "u"), 9, StreamCreationTimes("s", "e2", "a"))
    assert steps_between(start, end) == [StreamRecreated("events", 100), RecordRange("events", 0, last)]


@each("last", [3, 9, 5_000])
def test_advisories_made_again_are_a_gap_and_then_all_that_the_stream_holds(last: int) -> None:
    start = DiscoveryOffset(100, (100, "t"), 9, MADE)
    end = DiscoveryOffset(100, (100, "t"), last, StreamCreationTimes("s", "e", "a2"))
    assert steps_between(start, end) == [StreamRecreated("advisories", 9), RecordRange("advisories", 0, last)]
