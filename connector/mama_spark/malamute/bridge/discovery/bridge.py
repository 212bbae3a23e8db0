"""Source discovery on our broker, in its stored event stream (:mod:`.codec`). Readers fetch by sequence instead of
subscribing, and leave nothing behind but saved images."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ClientClosed
from mama_spark.contracts.record_log import Bounds
from mama_spark.discovery import lease_keeper
from mama_spark.discovery.lease_keeper import Announced, LeaseKeeper, LeaseWithdrawn
from mama_spark.discovery.log_discovery import LogDiscovery, LogOffset, Present, SavedImage
from mama_spark.discovery.source_expiry import check_ttl, renew_every, state_by_marker
from mama_spark.malamute.protocol.extensions import Extension, StoreOutcome

from .client import DiscoveryClient, DiscoverySettings
from .codec import EVENT, REC, WARN, WITHDRAWN, DiscoveryMessage, StoredRecord


class MalamuteLeases:
    """The two subjects of each source: :class:`~mama_spark.discovery.lease_keeper.LeaseStore`.

    *How processes agree.* The answer to a renewal says whether the source record still has its time to live. If not,
    the source was reported OFFLINE or withdrawn; the current message of its subject tells which. The id of a
    record is derived from the sequence it replaces, so concurrent writers store one copy, and readers see a source come
    back once.
    """

    def __init__(self, settings: DiscoverySettings) -> None:
        self.codec, self._client = settings.codec, DiscoveryClient(settings)

    @property
    def client(self) -> DiscoveryClient:
        """The open client; over another connection if the thread of the last one has ended."""
        if self._client.is_open and self._client.connection.fatal is not None:
            self._client.close()
        if not self._client.is_open:
            self._client.open()
        return self._client

    def close(self) -> None:
        self._client.close()

    def stands(self, one: Announced) -> bool:
        return _stands(one, self._current(one.source)) and self._renew(one)

    def wait_until_readable(self, source: SourceKey) -> None:
        """Do nothing: readers find what the broker has acknowledged."""

    def announce(self, one: Announced) -> None:
        self._announce(one, self._current(one.source))

    def _announce(self, one: Announced, parts: dict[str, StoredRecord]) -> None:
        # The record goes last: a process that sees it sees all, and one that looks before makes the same id of it. The
        # other way round, a process that looks in between would write the record again.
        messages = [
            self.codec.warn(one.source, one.ttl, _sequence(parts.get(WARN))),
            self.codec.record(*one, _sequence(parts.get(REC))),
        ]
        if _stands(one, parts) and self._renew(one):
            return
        runs = self.client.store(messages)
        if any(run.outcome is StoreOutcome.DUPLICATE for run in runs) and not self._renew(one):
            # written before, and so long ago that no message tells of its end any more
            headers = [Extension(headers=message.extension.headers) for message in messages]
            self.client.store([m._replace(extension=e) for m, e in zip(messages, headers, strict=True)])

    def renew(self, one: Announced) -> bool:
        return self._renew(one, renew_every(one.ttl))

    def _renew(self, one: Announced, timeout: float | None = None) -> bool:
        renewals = [self.codec.renewal(part, one.source) for part in (REC, WARN)]
        runs = self.client.put(renewals, timeout)
        return all(run.outcome is StoreOutcome.DUPLICATE for run in runs)

    def recover(self, one: Announced) -> DiscoveryEventKind:
        parts = self._current(one.source)
        rec = parts.get(REC)
        if rec is not None and WITHDRAWN in rec.headers:
            raise LeaseWithdrawn
        offline = rec is None or not rec.has_ttl
        if rec is not None and not offline:
            one = one._replace(record=rec.content)  # another process may have written another one
        self._announce(one, parts)
        return state_by_marker(half=not offline)

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        parts = self._current(source)
        rec, warn = parts.get(REC), parts.get(WARN)
        if rec is not None and WITHDRAWN in rec.headers and rec.content == record:
            return
        withdrawals = [self.codec.withdrawal(REC, source, record, _sequence(rec))]
        if warn is not None and warn.has_ttl:
            withdrawals.append(self.codec.withdrawal(WARN, source, b"", warn.sequence))
        self.client.store(withdrawals)

    def _current(self, source: SourceKey) -> dict[str, StoredRecord]:
        subjects = [self.codec.subject(part, source) for part in (REC, WARN)]
        found = {one.subject: one for one in self.client.current(subjects).messages}
        return {part: found[s] for part, s in zip((REC, WARN), subjects, strict=True) if s in found}


def _stands(one: Announced, parts: dict[str, StoredRecord]) -> bool:
    rec, warn = parts.get(REC), parts.get(WARN)
    return rec is not None and (rec.content, rec.ttl) == (one.record, one.ttl) and warn is not None and warn.has_ttl


def _sequence(found: StoredRecord | None) -> int:
    return 0 if found is None else found.sequence


class MalamuteDiscovery(LogDiscovery):
    """Discovery below one topic of a Malamute broker."""

    where = "Malamute"

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings, self.codec = settings, settings.codec
        self._client = DiscoveryClient(settings)

    def open(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`.

        :raises ConfigError: the broker keeps no discovery (NOT_IMPLEMENTED), or refuses us
        """
        self._client.open()

    def close(self) -> None:
        """Announced sources are renewed for a while."""
        lease_keeper.release(self)
        self._client.close()

    def _check_open(self) -> None:
        if not self._client.is_open:
            raise ClientClosed("discovery is not open")

    @property
    def leases(self) -> LeaseKeeper:
        return lease_keeper.lease_keeper(self.settings, lambda: MalamuteLeases(self.settings))

    def create_streams(self) -> None:
        """Do nothing: no stream is missing here."""

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        check_ttl(ttl)
        self._check_open()
        ttl = max(1, round(ttl * 1000)) / 1000  # as it is encoded
        self.leases.announce(self, Announced(source, record, ttl))

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        self._check_open()
        self.leases.withdraw(source, record)

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        subject = self.codec.subject(EVENT, source)
        messages = [
            DiscoveryMessage(subject, event, Extension(message_id=id_.encode()))
            for event, id_ in zip(events, ids, strict=True)
        ]
        self._client.store(messages)

    @property
    def _log_name(self) -> str:
        return self.codec.events

    def _bounds(self, read: LogOffset | None = None) -> Bounds:
        return self._client.bounds(self.codec.events.encode())

    def _now(self) -> int:
        # Time of day: stamps events of its own.
        return time.time_ns() // 1000

    def _present(self) -> Present:
        found = self._client.current()
        end = DiscoveryEvent(DiscoveryEventKind.IMAGE_END, self._now(), self.codec.events)
        return Present(found.identity, found.last, [*self.codec.image(found.messages), end])

    def _save(self, token: str, chunks: list[bytes]) -> tuple[int, int]:
        subject = self.codec.image_subject(token)
        messages = [
            DiscoveryMessage(subject, chunk, Extension(message_id=b"%s-%d" % (token.encode(), i)))
            for i, chunk in enumerate(chunks)
        ]
        runs = self._client.store(messages)
        return runs[0].first, runs[-1].first

    def _saved(self, image: SavedImage) -> list[bytes]:
        subject = self.codec.image_subject(image.token)
        pages = self._client.fetch(image.first - 1, image.last, [subject])
        return [one.content for page in pages for one in page.messages]

    def _events(self, identity: str, first: int, last: int) -> Iterator[list[DiscoveryEvent]]:
        expected = first
        for page in self._client.fetch(first - 1, last):
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
