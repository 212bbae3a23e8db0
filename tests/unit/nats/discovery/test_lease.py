"""How long a renewal of a source lives, and over what it is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.nats.discovery.layout import LIVE, REPLACED_MARKER, TTL, WARN, DiscoveryLayout
from mama_spark.nats.discovery.lease import Lease, LeaseKeeper
from mama_spark.nats.settings import NatsSettings

from tests.support.tables import each

KEY = SourceKey("s", 7)


class MemoryStreamClient:
    """Keeps what is stored; the next number is 42."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, bytes, dict[str, str]]] = []

    async def publish(
        self, subject: str, payload: bytes, headers: dict[str, str], patience: float | None = None
    ) -> int:
        self.stored.append((subject, payload, headers))
        return 42


def renewed(part: str, ttl: float, last: int, **more: Any) -> tuple[dict[str, str], Lease]:
    """Headers of one renewal."""
    stream_client, one = (
        MemoryStreamClient(),
        Lease(KEY, b"record", ttl, last_sequences={part: last} if last else {}),
    )

    class Here(LeaseKeeper):
        async def stream_client(self) -> Any:
            return stream_client

    async def run() -> None:
        await Here(NatsSettings(), DiscoveryLayout(), None)._store_renewal(one, part, **more)  # type: ignore[arg-type]

    asyncio.run(run())
    ((subject, payload, headers),) = stream_client.stored
    assert (subject, payload) == (DiscoveryLayout().source_subject(KEY, part), b"")
    return headers, one


@each(("ttl", "warn", "live"), [(10.0, "5000ms", "10000ms"), (3.0, "1500ms", "3000ms"), (1.0, "1000ms", "1500ms")])
def test_a_source_is_suspect_at_half_its_time_and_offline_when_it_is_over(ttl: float, warn: str, live: str) -> None:
    assert renewed(WARN, ttl, 5)[0][TTL] == warn
    assert renewed(LIVE, ttl, 5)[0][TTL] == live


@pytest.mark.parametrize("last", [0, 5])
def test_a_renewal_is_stored_only_over_the_one_before_it(last: int) -> None:
    headers, one = renewed(LIVE, 10.0, last)
    assert headers["Nats-Expected-Last-Subject-Sequence"] == str(last)
    assert one.last_sequences[LIVE] == 42


def test_a_renewal_tells_the_marker_that_it_replaces() -> None:
    assert REPLACED_MARKER not in renewed(WARN, 10.0, 5)[0]
    assert renewed(WARN, 10.0, 5, marker=4)[0][REPLACED_MARKER] == "4"
