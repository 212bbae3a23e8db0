"""The specification's publisher: its defaults, and what its listener is told."""

from __future__ import annotations

from itertools import pairwise

import pytest
from mama_spark.publisher.api import Flight
from mama_spark.publisher.managed.managed_publisher import ManagedPublisher

from tests.support.publisher_harness import (
    PublisherHarness,
    RecordingListener,
    ack_of,
)


def test_listener_that_raises_is_counted_and_changes_nothing(memory_harness: PublisherHarness) -> None:
    class Broken(RecordingListener):
        def acked(self, flight: Flight) -> None:
            raise RuntimeError("no")

    with memory_harness.publisher(listener=Broken()) as publisher:
        futures = [publisher.publish_async(memory_harness.topic, b"") for _ in range(3)]
    assert publisher.listener_errors == 3
    assert all(ack_of(f).result(0) for f in futures)


@pytest.mark.spec("MP-03-MP-09")
def test_defaults_are_those_of_the_specification(harness: PublisherHarness) -> None:
    one, other = ManagedPublisher(harness.target()), ManagedPublisher(harness.target())
    policy = one.window.policy
    assert (policy.max_in_flight, policy.refill_allowed_at, policy.wait_timeout, policy.retry) == (50, 0, 5.0, None)
    assert (one.poll_time, one.hold_pause_time) == (0.1, 0.1)
    assert one.id_prefix != other.id_prefix


@pytest.mark.spec("MP-33")
def test_flights_are_told_in_the_order_of_their_events(memory_harness: PublisherHarness) -> None:
    """Published comes before what settles the flight, and messages go in the order in which they came."""
    with memory_harness.publisher(max_in_flight=7) as publisher:
        for _ in range(60):
            publisher.publish_async(memory_harness.topic, b"")
    published = [int(id_.split("-")[1]) for event, id_ in memory_harness.listener.heard if event == "published"]
    assert all(a < b for a, b in pairwise(published))
    assert all(memory_harness.listener.events(f"p-{i}") == ["published", "acked"] for i in range(1, 61))
