"""Leases of sources on a Malamute broker: :class:`~mama_spark.discovery.lease_keeper.LeaseStore`.

*How processes agree.* The answer to a renewal says whether the source record still has its time to live. If not, the
source was reported OFFLINE, or it was withdrawn; the current message of its subject tells which. A process that writes
a record gives it an id made from the sequence that it replaces: so it is stored once however many processes write it,
and readers see a source come back once.
"""

from __future__ import annotations

from mama_spark.contracts.bridge import DiscoveryEventKind, SourceKey
from mama_spark.discovery.lease_keeper import Announced, LeaseWithdrawn
from mama_spark.discovery.source_expiry import renew_every, state_by_marker
from mama_spark.malamute.protocol.extensions import Extension, StoreOutcome

from .client import DiscoveryClient, DiscoverySettings
from .codec import REC, WARN, WITHDRAWN, StoredRecord


class MalamuteLeases:
    """The two subjects of each source."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings, self.codec = settings, settings.codec
        self.client: DiscoveryClient | None = None

    def _require_client(self) -> DiscoveryClient:
        if self.client is None:
            client = DiscoveryClient(self.settings)
            client.open()
            self.client = client
        return self.client

    def close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.close()

    def stands(self, one: Announced) -> bool:
        return _stands(one, self._current(one.source)) and self._renew(one)

    def wait_until_readable(self, source: SourceKey) -> None:
        """Nothing: readers find what the broker has acknowledged."""

    def announce(self, one: Announced) -> None:
        self._announce(one, self._current(one.source))

    def _announce(self, one: Announced, parts: dict[str, StoredRecord]) -> None:
        # The record goes last: whoever sees it sees all, and who looks before it makes the same id of it. The other way
        # round, a process that looks in between would write the record again.
        messages = [
            self.codec.warn(one.source, one.ttl, _sequence(parts.get(WARN))),
            self.codec.record(*one, _sequence(parts.get(REC))),
        ]
        if _stands(one, parts) and self._renew(one):
            return
        runs = self._require_client().store(messages)
        if any(run.outcome is StoreOutcome.DUPLICATE for run in runs) and not self._renew(one):
            # written before, and so long ago that no message tells of its end any more
            headers = [Extension(headers=message.extension.headers) for message in messages]
            self._require_client().store([m._replace(extension=e) for m, e in zip(messages, headers, strict=True)])

    def renew(self, one: Announced) -> bool:
        return self._renew(one, renew_every(one.ttl))

    def _renew(self, one: Announced, timeout: float | None = None) -> bool:
        renewals = [self.codec.renewal(part, one.source) for part in (REC, WARN)]
        runs = self._require_client().put(renewals, timeout)
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
        self._require_client().store(withdrawals)

    def _current(self, source: SourceKey) -> dict[str, StoredRecord]:
        """The current messages of a source's subjects, by part."""
        subjects = [self.codec.subject(part, source) for part in (REC, WARN)]
        found = {one.subject: one for one in self._require_client().current(subjects).messages}
        return {part: found[s] for part, s in zip((REC, WARN), subjects, strict=True) if s in found}


def _stands(one: Announced, parts: dict[str, StoredRecord]) -> bool:
    rec, warn = parts.get(REC), parts.get(WARN)
    return rec is not None and (rec.content, rec.ttl) == (one.record, one.ttl) and warn is not None and warn.has_ttl


def _sequence(found: StoredRecord | None) -> int:
    return 0 if found is None else found.sequence
