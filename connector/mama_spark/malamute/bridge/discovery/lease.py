"""Renews the announced sources of this process: one renewal per source, however many bridges announce it.

A thread with its own connection renews while a bridge announces the source and a while longer (a stream of
micro-batches opens a bridge each); it ends with the process. A forked process begins with none.

*How processes agree.* The answer to a renewal says whether the source record still has its time to live. If not, the
source was reported OFFLINE, or it was withdrawn; the current message of its subject tells which. A process that writes
a record gives it an id made from the sequence that it replaces: so it is stored once however many processes write it,
and readers see a source come back once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from mama_spark.contracts.bridge import SourceKey
from mama_spark.contracts.connection_pool import IDLE
from mama_spark.contracts.errors import MamaError
from mama_spark.discovery.source_expiry import expires_after, renew_every, state_by_marker
from mama_spark.malamute.protocol.extensions import Extension, StoreOutcome

from .client import DiscoveryClient, DiscoverySettings
from .codec import REC, WARN, WITHDRAWN, SourceWithdrawn, StoredRecord

log = logging.getLogger("mama_spark.malamute.discovery")


@dataclass(slots=True, eq=False)
class _Renewal:
    """One source that this process renews.

    :ivar holders: bridges that announce it now
    :ivar idle_since: monotonic time when the last one was closed
    :ivar due: monotonic time of the next renewal
    """

    source: SourceKey
    record: bytes
    ttl: float
    due: float
    holders: set[int] = field(default_factory=set)
    idle_since: float = 0.0

    def expired(self, now: float) -> bool:
        return not self.holders and now - self.idle_since > IDLE


class RenewalKeeper:
    """All sources that this process announces with the same settings. Thread-safe."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings, self.codec = settings, settings.codec
        self.sources: dict[SourceKey, _Renewal] = {}
        self._client: DiscoveryClient | None = None
        self._thread: threading.Thread | None = None
        self._requests = threading.Lock()  # held from a request to what follows from its answer
        self._changed = threading.Condition()  # guards everything but the client

    def announce(self, holder: int, source: SourceKey, record: bytes, ttl: float) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`; returns when it is stored."""
        ttl = max(1, round(ttl * 1000)) / 1000  # as it is encoded
        with self._using_client():
            self._start(source, record, ttl)
        now = time.monotonic()
        with self._changed:
            one = self.sources.get(source)
            if one is None or (one.record, one.ttl) != (record, ttl):
                holders = set() if one is None else one.holders
                one = self.sources[source] = _Renewal(source, record, ttl, now + renew_every(ttl), holders)
            one.holders.add(holder)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mama-malamute-announcer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        with self._changed:
            self.sources.pop(source, None)
        with self._using_client():
            parts = self._current(source)
            rec, warn = parts.get(REC), parts.get(WARN)
            if rec is not None and WITHDRAWN in rec.headers and rec.content == record:
                return
            withdrawals = [self.codec.withdrawal(REC, source, record, _sequence(rec))]
            if warn is not None and warn.has_ttl:
                withdrawals.append(self.codec.withdrawal(WARN, source, b"", warn.sequence))
            self._require_client().store(withdrawals)

    def release(self, holder: int) -> None:
        """A bridge was closed: its sources are renewed for a while."""
        with self._changed:
            for one in self.sources.values():
                if holder in one.holders:
                    one.holders.discard(holder)
                    one.idle_since = time.monotonic()

    def stop(self) -> None:
        """Renew no source any more, as if the process had ended."""
        with self._changed:
            self.sources.clear()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(self.settings.outage_timeout + 10.0)

    # --- the connection --------------------------------------------------------------------------------------------

    def _require_client(self) -> DiscoveryClient:
        """The connection; call it with ``_requests`` held."""
        if self._client is None:
            client = DiscoveryClient(self.settings)
            client.open()
            self._client = client
        return self._client

    @contextlib.contextmanager
    def _using_client(self) -> Iterator[None]:
        """Hold the connection for a caller; close it afterwards if no source is renewed."""
        try:
            with self._requests:
                yield
        finally:
            if self._thread is None and not self.sources:
                self._disconnect()

    def _disconnect(self) -> None:
        with self._requests:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    # --- one source ------------------------------------------------------------------------------------------------

    def _current(self, source: SourceKey) -> dict[str, StoredRecord]:
        """The current messages of a source's subjects, by part."""
        subjects = [self.codec.subject(part, source) for part in (REC, WARN)]
        found = {one.subject: one for one in self._require_client().current(subjects).messages}
        return {part: found[s] for part, s in zip((REC, WARN), subjects, strict=True) if s in found}

    def _start(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """Renew the source if its current record is the same, else write the record."""
        parts = self._current(source)
        rec, warn = parts.get(REC), parts.get(WARN)
        # The record goes last: whoever sees it sees all, and who looks before it makes the same id of it. The other way
        # round, a process that looks in between would write the record again.
        messages = [
            self.codec.warn(source, ttl, _sequence(warn)),
            self.codec.record(source, record, ttl, _sequence(rec)),
        ]
        unchanged = rec is not None and (rec.content, rec.ttl) == (record, ttl) and warn is not None and warn.has_ttl
        if unchanged and self._renew(source):
            return
        runs = self._require_client().store(messages)
        if any(run.outcome is StoreOutcome.DUPLICATE for run in runs) and not self._renew(source):
            # written before, and so long ago that no message tells of its end any more
            headers = [Extension(headers=message.extension.headers) for message in messages]
            self._require_client().store([m._replace(extension=e) for m, e in zip(messages, headers, strict=True)])

    def _renew(self, source: SourceKey, timeout: float | None = None) -> bool:
        """Renew both subjects; False: the time to live of one has passed."""
        runs = self._require_client().put([self.codec.renewal(part, source) for part in (REC, WARN)], timeout)
        return all(run.outcome is StoreOutcome.DUPLICATE for run in runs)

    def _recover(self, one: _Renewal) -> None:
        """A time to live has passed: announce the source again, unless it was withdrawn.

        :raises SourceWithdrawn: it was
        """
        parts = self._current(one.source)
        rec = parts.get(REC)
        if rec is not None and WITHDRAWN in rec.headers:
            raise SourceWithdrawn
        offline = rec is None or not rec.has_ttl
        state = state_by_marker(half=not offline)
        log.warning(
            "source %s was reported %s, because nobody renewed it for %g s: it is announced again. The usual reason "
            "is a sourceTtl (%g s) that is shorter than the trigger interval",
            *(one.source.name, state.name, expires_after(one.ttl, state), one.ttl),
        )
        record = one.record if rec is None or offline else rec.content  # another process may have written another one
        self._start(one.source, record, one.ttl)

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                for one in [one for one in self.sources.values() if one.expired(now)]:
                    del self.sources[one.source]
                if not self.sources:
                    self._thread = None
                    break
                due = [one for one in self.sources.values() if one.due <= now]
                if not due:
                    self._changed.wait(max(0.001, min(one.due for one in self.sources.values()) - now))
                    continue
            for one in due:
                self._renew_one(one)
        self._disconnect()

    def _renew_one(self, one: _Renewal) -> None:
        one.due = time.monotonic() + renew_every(one.ttl)
        try:
            with self._requests:
                if self.sources.get(one.source) is one and not self._renew(one.source, renew_every(one.ttl)):
                    self._recover(one)
        except SourceWithdrawn:
            log.info("source %s has been withdrawn: it is not renewed any more", one.source.name)
            with self._changed:
                if self.sources.get(one.source) is one:
                    del self.sources[one.source]
        except MamaError as e:
            log.warning("source %s could not be renewed, trying again: %s", one.source.name, e)
            if not e.retryable or self._client is None:
                self._disconnect()  # the next renewal begins with another connection


def _sequence(found: StoredRecord | None) -> int:
    return 0 if found is None else found.sequence


_keepers: dict[DiscoverySettings, RenewalKeeper] = {}
_lock = threading.Lock()


def renewal_keeper(settings: DiscoverySettings) -> RenewalKeeper:
    """The one of this process for these settings."""
    with _lock:
        return _keepers.setdefault(settings, RenewalKeeper(settings))


def clear() -> None:
    """Stop all renewals of this process."""
    with _lock:
        found = list(_keepers.values())
        _keepers.clear()
    for one in found:
        with contextlib.suppress(MamaError):
            one.stop()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _keepers.clear()


os.register_at_fork(after_in_child=_after_fork)
