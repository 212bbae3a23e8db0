"""Publishers over both kinds of target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.publisher_harness import (
    MemoryPublisherHarness,
    NatsPublisherHarness,
    PublisherHarness,
)


@pytest.fixture
def memory_harness() -> Iterator[PublisherHarness]:
    """For rules that do not touch the middleware."""
    harness = MemoryPublisherHarness()
    yield harness
    harness.close()


@pytest.fixture(params=["memory", "nats"])
def harness(request: pytest.FixtureRequest) -> Iterator[PublisherHarness]:
    harness: PublisherHarness = (
        MemoryPublisherHarness()
        if request.param == "memory"
        else NatsPublisherHarness(request.getfixturevalue("nats_server"))
    )
    yield harness
    harness.close()
