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

from tests.support.discovery_follower import Follower


class Watcher:
    """A reader of discovery that sees everything from the beginning.

    :ivar name: of the only source that it looks at; None: of all
    """

    name: str | None = None

    def __init__(self, server: NatsServer) -> None:
        self._bridge = NatsDiscovery(NatsSettings((server.url,)), DiscoveryLayout())

    def __enter__(self) -> Watcher:
        self._bridge.open()
        self._told = Follower(self._bridge, self._bridge.initial_offset("earliest"), readers=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._bridge.close()

    def changes(self) -> list[DiscoveryEvent]:
        self._told.step()
        return self._of_source()

    def _of_source(self) -> list[DiscoveryEvent]:
        return [c for c in self._told.found if self.name is None or (c.source and c.source.name == self.name)]

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
            for c in self._of_source()
            if c.kind in life
        ]

    def events(self) -> list[EventRecord]:
        told = [c.payload for c in self.changes() if c.kind is DiscoveryEventKind.EVENT]
        return [decode_event(decode(p)) for p in told if p is not None]


def _records(told: Iterable[DiscoveryEvent]) -> list[SourceRecord]:
    payloads = [c.payload for c in told if c.kind is DiscoveryEventKind.RECORD]
    return [decode_source(decode(p)).record for p in payloads if p is not None]
