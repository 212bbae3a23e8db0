"""Publishers over both kinds of target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.publisher_harness import MemoryPublisherHarness, NatsPublisherHarness, PublisherHarness


@pytest.fixture
def memory_harness() -> Iterator[PublisherHarness]:
    """For rules that do not touch the middleware."""
    with MemoryPublisherHarness() as harness:
        yield harness


@pytest.fixture(params=["memory", "nats"])
def harness(request: pytest.FixtureRequest) -> Iterator[PublisherHarness]:
    in_memory = request.param == "memory"
    with (
        MemoryPublisherHarness() if in_memory else NatsPublisherHarness(request.getfixturevalue("nats_server")) as made
    ):
        yield made
