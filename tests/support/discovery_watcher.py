"""A reader of discovery, for tests of what announces itself."""

from __future__ import annotations

from collections.abc import Iterable

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind
from mama_spark.mama.messages.event_records import EventRecord, decode_event
from mama_spark.mama.messages.omnm import decode
from mama_spark.mama.messages.source_records import SourceRecord, decode_source
from mama_spark.nats import NatsSettings
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.discovery.layout import DiscoveryLayout
from mama_spark.nats.server.nats_server import NatsServer


class Watcher:
    """A reader of discovery that sees everything from the beginning.

    :ivar name: of the only source that it looks at; None: of all
    """

    name: str | None = None

    def __init__(self, server: NatsServer) -> None:
        self._bridge = NatsDiscovery(NatsSettings((server.url,)), DiscoveryLayout())

    def __enter__(self) -> Watcher:
        self._bridge.open()
        self._start = self._at = self._bridge.initial_offset("earliest")
        self._seen: list[DiscoveryEvent] = []
        return self

    def __exit__(self, *_: object) -> None:
        self._bridge.close()

    def changes(self) -> list[DiscoveryEvent]:
        end = self._bridge.latest_offset(self._at)
        if end != self._at:
            found = [c for block in self._bridge.read(self._at, end) for c in block]
            self._seen += [c for c in found if self.name is None or (c.source and c.source.name == self.name)]
            self._at = end
        return self._seen

    def records(self) -> list[SourceRecord]:
        """What sources said of themselves."""
        return _records(self.changes())

    def image(self) -> list[SourceRecord]:
        """What sources say of themselves now."""
        return _records(self._bridge.image())

    def states(self) -> list[str | None]:
        """What became of the only source: as it says, and as the server says."""
        said = iter(self.records())
        life = (DiscoveryEventKind.RECORD, DiscoveryEventKind.SUSPECT, DiscoveryEventKind.OFFLINE)
        return [
            next(said).state if c.kind is DiscoveryEventKind.RECORD else f"server: {c.kind.name}"
            for c in self._seen
            if c.kind in life
        ]

    def events(self) -> list[EventRecord]:
        told = [c.payload for c in self.changes() if c.kind is DiscoveryEventKind.EVENT]
        return [decode_event(decode(p)) for p in told if p is not None]


def _records(told: Iterable[DiscoveryEvent]) -> list[SourceRecord]:
    payloads = [c.payload for c in told if c.kind is DiscoveryEventKind.RECORD]
    return [decode_source(decode(p)).record for p in payloads if p is not None]
