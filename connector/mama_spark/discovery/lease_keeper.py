"""Renews the leases of the sources that this process announces: one a source, for any number of bridges.

A thread renews over a connection of its own while a bridge announces the source and for some time after (each
micro-batch of a stream opens a bridge). Renewals end with the process; a forked process has none. The middleware's
:class:`LeaseStore` says how a lease is stored, and how processes agree on one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ..contracts.bridge import DiscoveryEventKind, SourceKey
from ..contracts.connection_pool import IDLE
from ..contracts.errors import MamaError
from .source_expiry import expires_after, renew_every

LOG = logging.getLogger("mama_spark.discovery")
_END_TIMEOUT = 10.0  #: seconds that a renewal under way may take when renewals end


class LeaseWithdrawn(MamaError):
    """The source was withdrawn, by this process or another."""


class Announced(NamedTuple):
    """An announced source; ``ttl`` in seconds."""

    source: SourceKey
    record: bytes
    ttl: float


class LeaseStore(Protocol):
    """The leases of a middleware. Connects when it is called; called by one thread at a time, but for
    :meth:`wait_until_readable`, during which others may be renewed."""

    def stands(self, one: Announced) -> bool:
        """Whether what this store has announced is stored as it was, neither changed nor withdrawn."""

    def announce(self, one: Announced) -> None:
        """Renew the source, and write its record unless the same stands there."""

    def renew(self, one: Announced) -> bool:
        """Renew the source; False: it has expired, or was withdrawn."""

    def recover(self, one: Announced) -> DiscoveryEventKind | None:
        """Announce a source that has expired again, with the record that another process has written since, if any.

        :return: SUSPECT or OFFLINE, as readers have seen it; None: another process has announced it again
        :raises LeaseWithdrawn: the source was withdrawn
        """

    def wait_until_readable(self, source: SourceKey) -> None:
        """Wait a while until readers find what was announced."""

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""

    def close(self) -> None:
        """Disconnect; never raises."""


@dataclass(slots=True, eq=False)
class Lease:
    """One source that this process renews: ``holders`` are the bridges that announce it now, the last of which released
    it at ``idle_since``. Times are monotonic seconds."""

    announced: Announced
    due: float
    holders: set[object] = field(default_factory=set)
    idle_since: float = 0.0


class LeaseKeeper:
    """All leases of this process in one store. Thread-safe."""

    def __init__(self, store: LeaseStore) -> None:
        self.store = store
        self.sources: dict[SourceKey, Lease] = {}
        self._thread: threading.Thread | None = None
        self._requests = threading.Lock()  # held from a request to what follows from its answer; guards the store
        self._changed = threading.Condition()  # guards the rest

    def announce(self, holder: object, one: Announced) -> None:
        """Returns when it is stored."""
        with self._exclusive():
            lease = self.sources.get(one.source)
            if lease is None or lease.announced != one or not self.store.stands(one):
                self.store.announce(one)
                holders = set() if lease is None else lease.holders
                lease = Lease(one, time.monotonic() + renew_every(one.ttl), holders)
            with self._changed:
                lease.holders.add(holder)
                self.sources[one.source] = lease
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="mama-announcer", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
        self.store.wait_until_readable(one.source)

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        with self._exclusive():
            with self._changed:
                self.sources.pop(source, None)
                self._changed.notify_all()
            self.store.withdraw(source, record)

    def release(self, holder: object) -> None:
        with self._changed:
            for lease in self.sources.values():
                if holder in lease.holders:
                    lease.holders.discard(holder)
                    lease.idle_since = time.monotonic()

    def stop(self) -> None:
        """Renew no source any more, as if the process had ended."""
        with self._changed:
            self.sources.clear()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(_END_TIMEOUT)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Have the store alone, and disconnect it afterwards if no source is renewed."""
        with self._requests:
            try:
                yield
            finally:
                if not self.sources:
                    self.store.close()

    def _run(self) -> None:
        while due := self._next_due():
            for lease in due:
                self._renew_one(lease)
        with self._exclusive():
            pass

    def _next_due(self) -> list[Lease]:
        """Wait for leases to be renewed; empty: there are none any more, and the thread ends."""
        with self._changed:
            while True:
                now = time.monotonic()
                for lease in [one for one in self.sources.values() if not one.holders and now - one.idle_since > IDLE]:
                    del self.sources[lease.announced.source]
                if not self.sources:
                    self._thread = None
                    return []
                due = [lease for lease in self.sources.values() if lease.due <= now]
                if due:
                    return due
                self._changed.wait(max(0.001, min(lease.due for lease in self.sources.values()) - now))

    def _renew_one(self, lease: Lease) -> None:
        one = lease.announced
        lease.due = time.monotonic() + renew_every(one.ttl)
        try:
            with self._requests:
                if self.sources.get(one.source) is lease and not self.store.renew(one):
                    self._recover(one)
            self.store.wait_until_readable(one.source)
        except LeaseWithdrawn:
            LOG.info("source %s has been withdrawn: it is not renewed any more", one.source.name)
            with self._changed:
                if self.sources.get(one.source) is lease:
                    del self.sources[one.source]
        except MamaError as e:
            LOG.warning("source %s could not be renewed, trying again: %s", one.source.name, e)
            if not e.retryable:
                with self._requests:
                    self.store.close()  # the next renewal begins with another connection
        except Exception:
            LOG.exception("source %s could not be renewed, trying again", one.source.name)

    def _recover(self, one: Announced) -> None:
        state = self.store.recover(one)
        if state is not None:
            LOG.warning(
                "source %s had been called %s, because nobody renewed it for %g s: it is announced again. The usual "
                "reason is a sourceTtl (%g s) that is shorter than the trigger interval",
                *(one.source.name, state.name, expires_after(one.ttl, state), one.ttl),
            )


_keepers: dict[Hashable, LeaseKeeper] = {}
_lock = threading.Lock()


def lease_keeper(place: Hashable, make: Callable[[], LeaseStore]) -> LeaseKeeper:
    """The keeper of this process for sources announced at one place. ``place`` names the store in this process;
    ``make`` makes it, called once a place."""
    with _lock:
        if place not in _keepers:
            _keepers[place] = LeaseKeeper(make())
        return _keepers[place]


def release(holder: object) -> None:
    """A bridge was closed: what it announced anywhere is renewed for some more time."""
    with _lock:
        found = list(_keepers.values())
    for keeper in found:
        keeper.release(holder)


def clear() -> None:
    """End all renewals of this process."""
    with _lock:
        found = list(_keepers.values())
        _keepers.clear()
    for keeper in found:
        keeper.stop()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _keepers.clear()


os.register_at_fork(after_in_child=_after_fork)
