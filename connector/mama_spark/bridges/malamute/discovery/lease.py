"""Keeps sources alive from this process: one set of renewals a source, however many bridges announce it.

A thread with a connection of its own renews for as long as somebody announces and a while longer (a stream of
micro-batches opens a bridge each); it ends with the process. A fork begins with none.

**How processes agree.** A renewal is answered: it found what runs, or nothing. Then the source had been given up, or
has ended; what stands there tells which. Whoever writes a record says which number of its subject it replaces, as its
id: so it is stored once however many processes want to say the same, and readers see a source come back once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from mama_spark.bridge import SourceKey
from mama_spark.bridges.connection_pool import IDLE
from mama_spark.errors import MamaError
from mama_spark.malamute.protocol.extensions import Extension, StoreOutcome
from mama_spark.source_expiry import offline_after, renew_every, suspect_after

from .client import DiscoveryClient, DiscoverySettings
from .codec import REC, WARN, WITHDRAWN, SourceWithdrawn, StoredRecord

LOG = logging.getLogger("mama_spark.malamute.discovery")


@dataclass(slots=True, eq=False)
class _Renewal:
    """One source that this process keeps alive.

    :ivar holders: bridges that announce it now
    :ivar idle_since: monotonic; when the last one let go
    :ivar due: monotonic; when it is to be renewed
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
    """All sources that this process announces at one place of discovery. Thread-safe."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings, self.words = settings, settings.words
        self.sources: dict[SourceKey, _Renewal] = {}
        self._talk: DiscoveryClient | None = None
        self._thread: threading.Thread | None = None
        self._talking = threading.Lock()  # whoever asks the broker and acts on the answer
        self._changed = threading.Condition()  # for what is above but the talk

    def announce(self, holder: int, source: SourceKey, record: bytes, ttl: float) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`; returns when it is stored."""
        ttl = max(1, round(ttl * 1000)) / 1000  # as it is written
        with self._call():
            self._begin(source, record, ttl)
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
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        with self._changed:
            self.sources.pop(source, None)
        with self._call():
            parts = self._standing(source)
            rec, warn = parts.get(REC), parts.get(WARN)
            if rec is not None and WITHDRAWN in rec.headers and rec.content == record:
                return
            ending = [self.words.ended(REC, source, record, _number(rec))]
            if warn is not None and warn.runs:
                ending.append(self.words.ended(WARN, source, b"", warn.sequence))
            self._talk_now().store(ending)

    def release(self, holder: int) -> None:
        """A bridge was closed: its sources stay warm for a while."""
        with self._changed:
            for one in self.sources.values():
                if holder in one.holders:
                    one.holders.discard(holder)
                    one.idle_since = time.monotonic()

    def stop(self) -> None:
        """Renew nothing any more, as if the process had ended."""
        with self._changed:
            self.sources.clear()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(self.settings.patience + 10.0)

    # --- the connection --------------------------------------------------------------------------------------------

    def _talk_now(self) -> DiscoveryClient:
        """The connection of this announcer; with ``_talking`` held."""
        if self._talk is None:
            talk = DiscoveryClient(self.settings)
            talk.open()
            self._talk = talk
        return self._talk

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """Something of the caller's that needs the connection; given up behind it if nothing is renewed."""
        try:
            with self._talking:
                yield
        finally:
            if self._thread is None and not self.sources:
                self._hang_up()

    def _hang_up(self) -> None:
        with self._talking:
            talk, self._talk = self._talk, None
            if talk is not None:
                talk.close()

    # --- one source ------------------------------------------------------------------------------------------------

    def _standing(self, source: SourceKey) -> dict[str, StoredRecord]:
        """What stands at the subjects of a source, by part."""
        subjects = [self.words.subject(part, source) for part in (REC, WARN)]
        found = {one.subject: one for one in self._talk_now().standing(subjects).messages}
        return {part: found[s] for part, s in zip((REC, WARN), subjects, strict=True) if s in found}

    def _begin(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """Take a source up: renew what stands there if it is what we say, else say it."""
        parts = self._standing(source)
        rec, warn = parts.get(REC), parts.get(WARN)
        says = [self.words.record(source, record, ttl, _number(rec)), self.words.warn(source, ttl, _number(warn))]
        stands = rec is not None and (rec.content, rec.ttl) == (record, ttl) and warn is not None and warn.runs
        if stands and self._renew(source):
            return
        runs = self._talk_now().store(says)
        if any(run.outcome is StoreOutcome.DUPLICATE for run in runs) and not self._renew(source):
            # said before, and so long ago that nothing tells of its end any more
            headers = [Extension(headers=message.extension.headers) for message in says]
            self._talk_now().store([m._replace(extension=e) for m, e in zip(says, headers, strict=True)])

    def _renew(self, source: SourceKey, patience: float | None = None) -> bool:
        """False: at least one of the two did not run any more."""
        runs = self._talk_now().put([self.words.renewal(part, source) for part in (REC, WARN)], patience)
        return all(run.outcome is StoreOutcome.DUPLICATE for run in runs)

    def _come_back(self, one: _Renewal) -> None:
        """Something does not run any more: the source has ended, or was given up.

        :raises Withdrawn: it has ended
        """
        parts = self._standing(one.source)
        rec = parts.get(REC)
        if rec is not None and WITHDRAWN in rec.headers:
            raise SourceWithdrawn
        gone = rec is None or not rec.runs
        LOG.warning(
            "source %s had been called %s, because nobody renewed it for %g s: it is announced again. The usual reason "
            "is a sourceTtl (%g s) that is shorter than the trigger interval",
            *(one.source.name, "OFFLINE" if gone else "SUSPECT"),
            *(offline_after(one.ttl) if gone else suspect_after(one.ttl), one.ttl),
        )
        record = one.record if rec is None or gone else rec.content  # perhaps another process has written another one
        self._begin(one.source, record, one.ttl)

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
                self._keep(one)
        self._hang_up()

    def _keep(self, one: _Renewal) -> None:
        one.due = time.monotonic() + renew_every(one.ttl)
        try:
            with self._talking:
                if self.sources.get(one.source) is one and not self._renew(one.source, renew_every(one.ttl)):
                    self._come_back(one)
        except SourceWithdrawn:
            LOG.info("source %s has been withdrawn: it is not renewed any more", one.source.name)
            with self._changed:
                if self.sources.get(one.source) is one:
                    del self.sources[one.source]
        except MamaError as e:
            LOG.warning("source %s could not be renewed, trying again: %s", one.source.name, e)
            if not e.retryable or self._talk is None:
                self._hang_up()  # for good, perhaps: begin with another connection


def _number(found: StoredRecord | None) -> int:
    return 0 if found is None else found.sequence


_announcers: dict[DiscoverySettings, RenewalKeeper] = {}
_lock = threading.Lock()


def renewal_keeper(settings: DiscoverySettings) -> RenewalKeeper:
    """The one of this process for this place of discovery."""
    with _lock:
        return _announcers.setdefault(settings, RenewalKeeper(settings))


def clear() -> None:
    """Let this process announce nothing any more."""
    with _lock:
        found = list(_announcers.values())
        _announcers.clear()
    for one in found:
        with contextlib.suppress(MamaError):
            one.stop()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _announcers.clear()


os.register_at_fork(after_in_child=_after_fork)
