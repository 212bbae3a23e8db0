"""Discovery inside the process: a registry of announced sources. For tests, and for users without a broker.

``memory://name`` names a :class:`MemorySources`, shared by all :class:`MemoryDiscovery` of this name in the process.
The registry keeps one numbered log of changes, and the images saved for readers. Its clock can be moved forward:
expired sources are then added to the log, with the time of their expiry.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.record_log import Bounds
from mama_spark.discovery.image_codec import blocks
from mama_spark.discovery.log_discovery import LogDiscovery, LogOffset, Present, SavedImage
from mama_spark.discovery.source_expiry import check_ttl, expiries

from .broker import OfOneName


@dataclass(slots=True)
class _AnnouncedSource:
    record: DiscoveryEvent
    ttl: float
    renewers: set[int] = field(default_factory=set)  # ids of bridges
    renewed: float = 0.0  # epoch seconds; not used while there are renewers
    expiry: DiscoveryEvent | None = None  # SUSPECT or OFFLINE
    withdrawn: bool = False


class MemorySources(OfOneName):
    """The registry of one name. Thread-safe."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.identity = uuid4().hex
        self.up = True  #: False: all calls of bridges fail
        # Time of day: read once, where its clock begins.
        self._ahead = time.time() - time.monotonic()
        self._log: list[DiscoveryEvent] = []
        self._first = 1  # sequence of the oldest change that is kept
        self._ids: set[str] = set()
        self._sources: dict[SourceKey, _AnnouncedSource] = {}
        self.images: dict[str, list[bytes]] = {}
        self._lock = threading.RLock()

    def advance(self, seconds: float) -> None:
        """Move the clock forward; sources without renewers may expire."""
        with self._lock:
            self._ahead += seconds
            self._expire()

    def lose(self, n: int) -> None:
        with self._lock:
            self._first = min(self._first + n, self._next)

    def reader(self, topic: str, came: bool, info: str) -> None:
        with self._lock:
            self._expire()
            kind = DiscoveryEventKind.SUBSCRIBED if came else DiscoveryEventKind.UNSUBSCRIBED
            self._append(DiscoveryEvent(kind, self.at(self.now), self.origin, self._next, topic=topic, info=info))

    @property
    def now(self) -> float:
        """Seconds since the epoch by the registry's clock, which nobody sets."""
        return time.monotonic() + self._ahead

    @property
    def origin(self) -> str:
        return f"memory://{self.name}"

    @property
    def _next(self) -> int:
        return len(self._log) + 1

    def _append(self, change: DiscoveryEvent) -> DiscoveryEvent:
        self._log.append(change)
        return change

    def _append_new(
        self, kind: DiscoveryEventKind, at: float, source: SourceKey, payload: bytes | None = None
    ) -> DiscoveryEvent:
        return self._append(DiscoveryEvent(kind, self.at(at), self.origin, self._next, source, payload))

    def at(self, seconds: float) -> int:
        return int(seconds * 1e6)

    def _expire(self) -> None:
        """Log the sources that turned SUSPECT or OFFLINE since the last call, in order of time."""
        due: list[tuple[float, SourceKey, DiscoveryEventKind]] = []
        for key, entry in self._sources.items():
            if entry.renewers or entry.withdrawn:
                continue
            state = entry.expiry.kind if entry.expiry else None
            due += [(at, key, kind) for at, kind in expiries(entry.renewed, entry.ttl, state)]
        now = self.now
        for at, key, kind in sorted(due, key=lambda d: d[0]):
            if at <= now:
                self._sources[key].expiry = self._append_new(kind, at, key)

    def _announce(self, renewer: int, source: SourceKey, record: bytes, ttl: float) -> None:
        with self._lock:
            self._expire()
            old = self._sources.get(source)
            if old is None or old.withdrawn or old.expiry is not None or old.record.payload != record:
                renewers = old.renewers if old else set()
                change = self._append_new(DiscoveryEventKind.RECORD, self.now, source, record)
                old = self._sources[source] = _AnnouncedSource(change, ttl, renewers)
            old.ttl = ttl
            old.renewers.add(renewer)

    def _withdraw(self, source: SourceKey, record: bytes) -> None:
        with self._lock:
            self._expire()
            old = self._sources.get(source)
            if old is None or not old.withdrawn or old.record.payload != record:
                change = self._append_new(DiscoveryEventKind.RECORD, self.now, source, record)
                self._sources[source] = _AnnouncedSource(change, 0.0, withdrawn=True)

    def _stop_renewing(self, renewer: int) -> None:
        with self._lock:
            self._expire()
            for entry in self._sources.values():
                if renewer in entry.renewers:
                    entry.renewers.remove(renewer)
                    entry.renewed = self.now

    def _publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        with self._lock:
            self._expire()
            for event, id_ in zip(events, ids, strict=True):
                if id_ not in self._ids:
                    self._ids.add(id_)
                    self._append_new(DiscoveryEventKind.EVENT, self.now, source, event)

    def present(self) -> Present:
        with self._lock:
            self._expire()
            changes = [c for entry in self._sources.values() for c in (entry.record, entry.expiry) if c is not None]
            end = DiscoveryEvent(DiscoveryEventKind.IMAGE_END, self.at(self.now), self.origin)
            return Present(self.identity, len(self._log), [*(replace(c, sequence=None) for c in changes), end])

    def bounds(self) -> Bounds:
        with self._lock:
            self._expire()
            return Bounds(self._first, len(self._log), self.identity)

    def events(self, first: int, last: int) -> tuple[int, list[DiscoveryEvent]]:
        """Sequence of the oldest change that is kept, and the kept changes from ``first`` to ``last``."""
        with self._lock:
            return self._first, self._log[max(first, self._first) - 1 : last]


class MemoryDiscovery(LogDiscovery):
    """A connection to a :class:`MemorySources`, which renews its announcements until :meth:`close`."""

    where = "memory"

    def __init__(self, name: str) -> None:
        self.registry = MemorySources.get(name)
        self._open = False

    def open(self) -> None:
        if not self.registry.up:
            raise Unavailable(f"memory://{self.registry.name} is down")
        self._open = True

    def create_streams(self) -> None:
        """Do nothing: there are no streams."""

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        check_ttl(ttl)
        self._require_open()._announce(id(self), source, record, ttl)

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        self._require_open()._withdraw(source, record)

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        self._require_open()._publish_events(source, events, ids)

    @property
    def _log_name(self) -> str:
        return self.registry.origin

    def _now(self) -> int:
        return self.registry.at(self.registry.now)

    def _bounds(self, read: LogOffset | None = None) -> Bounds:
        return self._require_open().bounds()

    def _present(self) -> Present:
        return self._require_open().present()

    def _save(self, token: str, chunks: list[bytes]) -> tuple[int, int]:
        self._require_open().images[token] = chunks
        return 0, 0

    def _saved(self, image: SavedImage) -> list[bytes]:
        return self._require_open().images[image.token]

    def _events(self, identity: str, first: int, last: int) -> Iterator[list[DiscoveryEvent]]:
        kept, events = self._require_open().events(first, last)
        if first < kept:
            yield [self._gap(first, min(last, kept - 1))]
        yield from blocks(events)

    def close(self) -> None:
        self._open = False
        self.registry._stop_renewing(id(self))

    def _require_open(self) -> MemorySources:
        if not self._open or not self.registry.up:
            raise Unavailable(f"memory://{self.registry.name} is {'closed' if self.registry.up else 'down'}")
        return self.registry
