"""How long a renewal of a source lives, and over what it is stored."""

from __future__ import annotations

from typing import Any

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.contracts.errors import Unavailable
from mama_spark.discovery.lease_keeper import Announced
from mama_spark.nats.connection import socket_connection
from mama_spark.nats.discovery.layout import LIVE, REPLACED_MARKER, WARN, DiscoveryLayout
from mama_spark.nats.discovery.lease import NatsLeases
from mama_spark.nats.protocol.headers import TTL
from mama_spark.nats.settings import NatsSettings

from tests.support.tables import each

KEY = SourceKey("s", 7)


def test_a_connection_that_lacked_file_descriptors_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its subscription it would get no answer."""

    def lacks(*_: object) -> None:
        raise Unavailable("too many open files")

    monkeypatch.setattr(socket_connection, "require_file_descriptors", lacks)
    leases = NatsLeases(NatsSettings(), DiscoveryLayout(), 0.0)
    for _ in range(2):
        with pytest.raises(Unavailable):
            leases._connect()


def renewed(part: str, ttl: float, last: int, **more: Any) -> tuple[dict[str, str], NatsLeases]:
    """Headers of one renewal, which gets the sequence 42."""
    stored: list[tuple[str, bytes, dict[str, str]]] = []

    class Client:
        def publish(self, subject: str, payload: bytes, headers: dict[str, str], timeout: float | None) -> int:
            stored.append((subject, payload, headers))
            return 42

    leases = NatsLeases(NatsSettings(), DiscoveryLayout(), 0.0)
    leases._api = Client()  # type: ignore[assignment]
    leases.last_sequences = {(KEY, part): last} if last else {}
    leases._store_renewal(Announced(KEY, b"record", ttl), part, **more)
    ((subject, payload, headers),) = stored
    assert (subject, payload) == (leases.layout.source_subject(KEY, part), b"")
    return headers, leases


@each(("ttl", "warn", "live"), [(10.0, "5000ms", "10000ms"), (3.0, "1500ms", "3000ms"), (1.0, "1000ms", "1500ms")])
def test_a_source_is_suspect_at_half_its_time_and_offline_when_it_is_over(ttl: float, warn: str, live: str) -> None:
    assert renewed(WARN, ttl, 5)[0][TTL] == warn
    assert renewed(LIVE, ttl, 5)[0][TTL] == live


@pytest.mark.parametrize("last", [0, 5])
def test_a_renewal_is_stored_only_over_the_one_before_it(last: int) -> None:
    headers, leases = renewed(LIVE, 10.0, last)
    assert headers["Nats-Expected-Last-Subject-Sequence"] == str(last)
    assert leases.last_sequences[KEY, LIVE] == 42


def test_a_renewal_tells_the_marker_that_it_replaces() -> None:
    assert REPLACED_MARKER not in renewed(WARN, 10.0, 5)[0]
    assert renewed(WARN, 10.0, 5, marker=4)[0][REPLACED_MARKER] == "4"
