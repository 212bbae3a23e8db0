"""Discovery on NATS: :class:`~mama_spark.contracts.bridge.DiscoveryBridge` over three streams (see :mod:`.layout`).

Readers use direct gets only, write only marks and images to the stream of events, and create no stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from mama_spark.contracts.bridge import DiscoveryEvent, Position, SourceKey
from mama_spark.contracts.errors import ClientClosed, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.discovery import lease_keeper
from mama_spark.discovery.lease_keeper import Announced, LeaseKeeper
from mama_spark.discovery.log_discovery import IMAGE
from mama_spark.discovery.source_expiry import check_ttl

from ..connection.pool import POOL
from ..connection.socket_connection import SocketConnection
from ..jetstream.client import JetStream
from ..jetstream.streams import StreamCache, check_jetstream
from ..read.append import Appender
from ..settings import NatsSettings
from .layout import DiscoveryLayout
from .lease import NatsLeases
from .offsets import ABSENT
from .reader import DiscoveryReader
from .streams import check_version, ensure_streams, find_streams

_MAX_IN_FLIGHT = 4096  #: events


class NatsDiscovery:
    """A :class:`~mama_spark.contracts.bridge.DiscoveryBridge`; its calls are retried for ``retry_deadline`` seconds."""

    def __init__(self, settings: NatsSettings, layout: DiscoveryLayout | None = None) -> None:
        self.settings, self.layout = settings, layout or DiscoveryLayout()
        self._connection: SocketConnection | None = None
        self._reader: DiscoveryReader | None = None
        self._event_publisher: Appender | None = None
        self._clock_offset = 0.0

    def __repr__(self) -> str:
        return (
            f"<NatsDiscovery {self.layout.topic!r}, {'closed' if self._connection is None else repr(self._connection)}>"
        )

    def open(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`. ConfigError: the server is too old, a permission
        is missing, or an existing stream has unusable settings."""
        connection = POOL.checkout(self.settings)
        try:
            check_version(connection.info.version)
            api = JetStream(lambda: connection, self.settings.retry_deadline, self.settings.connect_timeout)
            self._find_streams(connection, api)
        except BaseException:
            POOL.give_back(self.settings, connection)
            raise
        self._connection, self._reader = connection, DiscoveryReader(api, self.layout, self._clock_offset)

    def _find_streams(self, connection: SocketConnection, api: JetStream) -> None:
        """Look for the streams, once a minute per connection, because each request makes an advisory that is stored."""
        found = connection.cached(self._question)
        if found is None:
            check_jetstream(api, StreamCache())
            streams = find_streams(api, self.layout, check=True)
            found = streams.clock_offset
            if streams.complete and streams.generations.advisories != ABSENT:
                connection.cache(self._question, found)
        self._clock_offset = found

    def create_streams(self) -> None:
        """Create missing streams, as announcements do by themselves.
        ConfigError: a permission is missing, or another stream takes the subjects."""
        connection, reader = self._require_open()
        made = ensure_streams(reader.api, self.layout)
        connection.cache(self._question, made.clock_offset)
        self._clock_offset = made.clock_offset

    @property
    def _question(self) -> str:
        """Cache key of the fact, on a connection, that all streams exist."""
        return f"discovery at {self.layout}"

    def _ensure_streams(self) -> None:
        """Call :meth:`create_streams`, unless all existed within the last minute and none was deleted meanwhile."""
        connection, _ = self._require_open()
        if connection.cached(self._question) is None or not self._exist():
            self.create_streams()

    def _exist(self) -> bool:
        """Whether the streams exist, by direct gets, which make no advisories."""
        _, reader = self._require_open()
        for stream in (self.layout.sources, self.layout.events):
            try:
                if not reader.api.serves_direct_gets(stream):
                    return False
            except Unavailable:  # the next call retries, and reports the error
                return True
        return True

    def _require_open(self) -> tuple[SocketConnection, DiscoveryReader]:
        if self._connection is None or self._reader is None:
            raise ClientClosed("discovery is not open")
        if self._connection.closed:
            raise ClientClosed("discovery was opened in another process: open another")
        return self._connection, self._reader

    # --- announcing ------------------------------------------------------------------------------------------------

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """Announce a source. With a ``ttl`` below 2 s, SUSPECT and OFFLINE come later: nothing expires within 1 s."""
        check_ttl(ttl)
        self._ensure_streams()
        self.leases.announce(self, Announced(source, record, ttl))

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """Write the record, then remove the renewals: a reader that finds no renewal reads the record."""
        self._ensure_streams()
        self.leases.withdraw(source, record)

    @property
    def leases(self) -> LeaseKeeper:
        place = (self.settings.connection_key, self.layout)
        return lease_keeper.lease_keeper(place, lambda: NatsLeases(self.settings, self.layout, self._clock_offset))

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """Publish in order, except for events that the server rejects first and accepts later."""
        self._ensure_streams()
        if self._event_publisher is None:
            self._event_publisher = Appender(
                self.settings, self.settings.retry_deadline, dedup=True, in_flight=_MAX_IN_FLIGHT
            )
        try:
            self._publish(self._event_publisher, self.layout.event_subject(source), events, ids)
        except Unavailable:
            self._event_publisher.close()  # a later call opens another connection
            self._event_publisher = None
            raise

    def _publish(self, publisher: Appender, subject: str, events: Sequence[bytes], ids: Sequence[str]) -> None:
        until = time.monotonic() + self.settings.retry_deadline
        for first in range(0, len(events), _MAX_IN_FLIGHT):
            rows = slice(first, first + _MAX_IN_FLIGHT)
            payloads = pa.array(events[rows], pa.binary())
            topics = pa.DictionaryArray.from_arrays(np.zeros(len(payloads), np.int32), pa.array([subject]))
            messages = MessageBatch(topics, payloads, ids=pa.array(ids[rows], pa.string()))
            publisher.sender.store(messages, until - time.monotonic())

    # --- reading ----------------------------------------------------------------------------------------------------

    def image(self) -> list[DiscoveryEvent]:
        return self._require_open()[1].images.take()[0]

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        """Log names are the streams of events and advisories; -1 = latest, -2 = earliest; logs without a name begin at
        the latest."""
        if where == "image":
            return dict(IMAGE)
        return self._require_open()[1].initial_offset(where)

    def latest_offset(self, start: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """As the contract; renewals alone advance the offset only every ten minutes."""
        return self._require_open()[1].latest_offset(start, limit, until)

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        yield from self._require_open()[1].read(start, end)

    def close(self) -> None:
        """Close; announced sources are renewed for some more time."""
        connection, self._connection, self._reader = self._connection, None, None
        lease_keeper.release(self)
        if self._event_publisher is not None and connection is not None and not connection.closed:
            self._event_publisher.close()
        self._event_publisher = None
        if connection is not None:
            POOL.give_back(self.settings, connection)
