"""Source discovery on a Malamute broker: :class:`~mama_spark.contracts.bridge.DiscoveryBridge` over the broker's own
stream.

Needs our broker, with its event stream stored (see :mod:`.codec`). Readers do not subscribe: they fetch by sequence,
and leave nothing behind but saved images.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ClientClosed
from mama_spark.contracts.record_log import Bounds
from mama_spark.discovery import lease_keeper
from mama_spark.discovery.lease_keeper import Announced, LeaseKeeper
from mama_spark.discovery.log_discovery import LogDiscovery, Present
from mama_spark.discovery.log_offsets import WrittenSnapshot
from mama_spark.discovery.source_expiry import check_ttl
from mama_spark.malamute.protocol.extensions import Extension

from .client import DiscoveryClient, DiscoverySettings
from .codec import EVENT, DiscoveryMessage
from .lease import MalamuteLeases


class MalamuteDiscovery(LogDiscovery):
    """Discovery below one topic of a Malamute broker."""

    where = "Malamute"

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings, self.codec = settings, settings.codec
        self._client: DiscoveryClient | None = None

    def __repr__(self) -> str:
        return f"<MalamuteDiscovery {self.codec.events!r}, {'closed' if self._client is None else repr(self._client)}>"

    def open(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`.

        :raises ConfigError: the broker keeps no discovery (NOT_IMPLEMENTED), or refuses us
        """
        client = DiscoveryClient(self.settings)
        client.open()
        self._client = client

    def close(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`. Announced sources are renewed for a while."""
        client, self._client = self._client, None
        lease_keeper.release(self)
        if client is not None:
            client.close()

    def _require_client(self) -> DiscoveryClient:
        if self._client is None:
            raise ClientClosed("discovery is not open")
        return self._client

    # --- announcing ------------------------------------------------------------------------------------------------

    @property
    def leases(self) -> LeaseKeeper:
        """The leases of this process at this broker."""
        return lease_keeper.lease_keeper(self.settings, lambda: MalamuteLeases(self.settings))

    def create_streams(self) -> None:
        """Nothing is missing here."""

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        check_ttl(ttl)
        self._require_client()
        ttl = max(1, round(ttl * 1000)) / 1000  # as it is encoded
        self.leases.announce(self, Announced(source, record, ttl))

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        self._require_client()
        self.leases.withdraw(source, record)

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        subject = self.codec.subject(EVENT, source)
        messages = [
            DiscoveryMessage(subject, event, Extension(message_id=id_.encode()))
            for event, id_ in zip(events, ids, strict=True)
        ]
        self._require_client().store(messages)

    # --- reading ---------------------------------------------------------------------------------------------------

    @property
    def _log_name(self) -> str:
        return self.codec.events

    def _bounds(self) -> Bounds:
        return self._require_client().bounds()

    def _now(self) -> int:
        # Time of day: stamps events of its own.
        return time.time_ns() // 1000

    def _present(self) -> Present:
        found = self._require_client().current()
        end = DiscoveryEvent(DiscoveryEventKind.IMAGE_END, self._now(), self.codec.events)
        return Present(found.identity, found.last, [*self.codec.image(found.messages), end])

    def _save(self, token: str, chunks: list[bytes]) -> tuple[int, int]:
        subject = self.codec.snapshot_subject(token)
        messages = [
            DiscoveryMessage(subject, chunk, Extension(message_id=b"%s-%d" % (token.encode(), i)))
            for i, chunk in enumerate(chunks)
        ]
        runs = self._require_client().store(messages)
        return runs[0].first, runs[-1].first

    def _saved(self, snapshot: WrittenSnapshot) -> list[bytes]:
        subject = self.codec.snapshot_subject(snapshot.token)
        pages = self._require_client().fetch(snapshot.first - 1, snapshot.last, [subject])
        return [one.content for page in pages for one in page.messages]

    def _events(self, identity: str, first: int, last: int) -> Iterator[list[DiscoveryEvent]]:
        expected = first
        for page in self._require_client().fetch(first - 1, last):
            if page.identity != identity:
                break  # created again meanwhile: the old messages are gone
            events: list[DiscoveryEvent] = []
            for message in page.messages:
                if message.sequence > expected:
                    events.append(self._gap(expected, message.sequence - 1, at=message.time))
                expected = message.sequence + 1
                event = self.codec.event_of(message)
                if event is not None:
                    events.append(event)
            if events:
                yield events
        if expected <= last:
            yield [self._gap(expected, last)]
