"""Discovery on NATS: :class:`~mama_spark.bridge.DiscoveryBridge` over three streams (see :mod:`.layout`).

Readers use direct gets only, and leave nothing behind but marks and images in the stream of events.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from mama_spark.bridge import DiscoveryEvent, Position, SourceKey
from mama_spark.errors import ClientClosed, ConfigError, MamaError, Unavailable

from ..connection.connection import Connection
from ..connection.pool import POOL
from ..jetstream.streams import StreamCache, check_jetstream
from ..settings import NatsSettings
from .event_publisher import EventPublisher
from .layout import DiscoveryLayout
from .lease import LeaseKeeper, lease_keeper
from .offsets import IMAGE
from .reader import DiscoveryReader
from .stream_client import StreamClient
from .streams import check_version, make

T = TypeVar("T")

_holders = itertools.count(1)


class NatsDiscovery:
    """A place of discovery on NATS.

    :param settings: of the connection; a call goes on for ``retry_deadline`` seconds while nobody answers
    :param board: the names of subjects and streams
    """

    def __init__(self, settings: NatsSettings, board: DiscoveryLayout | None = None) -> None:
        self.settings, self.board = settings, board or DiscoveryLayout()
        self._link: Connection | None = None
        self._reader: DiscoveryReader | None = None
        self._teller: EventPublisher | None = None
        self._announcer: LeaseKeeper | None = None
        self._holder = next(_holders)
        self._clock = 0.0

    def __repr__(self) -> str:
        return f"<NatsDiscovery {self.board.topic!r}, {'closed' if self._link is None else repr(self._link)}>"

    def open(self) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`.

        :raises ConfigError: the server is too old, a permission is missing, or a stream that somebody made cannot serve
        """
        link = POOL.lease(self.settings)
        try:
            check_version(link.client.connected_server_version)
            shelf = StreamClient(link, self.settings.retry_deadline, self.settings.connect_timeout)
            self._run(link, self._prepare(link, shelf), "opening discovery")
        except BaseException:
            POOL.give_back(self.settings, link)
            raise
        self._link, self._reader = link, DiscoveryReader(shelf, self.board)

    async def _prepare(self, link: Connection, shelf: StreamClient) -> None:
        """Look at the streams, once a minute and connection: each question makes an advisory that is kept."""
        question = f"discovery at {self.board}"
        found = link.remember(question)
        if found is None:
            await check_jetstream(link, StreamCache(), self.settings.connect_timeout)
            found = (await make(shelf, self.board)).clock
            link.note(question, found)
        self._clock = found

    def _run(self, link: Connection, work: Coroutine[Any, Any, T], what: str) -> T:
        """Calls end by themselves when patience ends; this is for those that do not."""
        return link.loop.run(work, 20 * self.settings.retry_deadline + 60, what)

    def _open(self) -> tuple[Connection, DiscoveryReader]:
        if self._link is None or self._reader is None:
            raise ClientClosed("discovery is not open")
        if not self._link.loop.alive:
            raise ClientClosed("discovery was opened in another process, or its loop has ended: open another")
        return self._link, self._reader

    # --- who announces ---------------------------------------------------------------------------------------------

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`. Nothing expires sooner than after a second: with a ``ttl``
        below 2 s both verdicts come later."""
        if ttl <= 0:
            raise ConfigError(f"the time to live of a source must be positive, got {ttl:g}")
        link, _ = self._open()
        keeper = self._keeper()
        self._run(link, keeper.announce(self._holder, source, record, ttl), f"announcing {source.name!r}")

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`. The record is written first, then the renewals are removed:
        whoever finds none looks at the record."""
        link, _ = self._open()
        self._run(link, self._keeper().withdraw(source, record), f"withdrawing {source.name!r}")

    def _keeper(self) -> LeaseKeeper:
        found = lease_keeper(self.settings, self.board)
        found.clock = self._clock
        self._announcer = found
        return found

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`. Order holds but for what the server refuses in
        the middle and takes later."""
        self._open()
        if self._teller is None:
            self._teller = EventPublisher(self.settings)
        try:
            self._teller.tell(self.board.event_subject(source), events, ids)
        except Unavailable:
            self._teller.close()  # a later call begins with another connection
            self._teller = None
            raise

    # --- who reads -------------------------------------------------------------------------------------------------

    def image(self) -> list[DiscoveryEvent]:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        link, reader = self._open()
        return self._run(link, reader.image(), "reading the image")[0]

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`. Logs are named as the streams of events and advisories;
        -1 is the latest, -2 the earliest; a log that is not named begins with its latest."""
        if where == "image":
            return dict(IMAGE)
        link, reader = self._open()
        return self._run(link, reader.initial_offset(where), "finding where to begin")

    def latest_offset(self, start: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`. Renewals alone move no position, but every ten minutes."""
        link, reader = self._open()
        return self._run(link, reader.latest_offset(start, limit, until), "finding the newest position")

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        link, reader = self._open()
        changes = reader.read(start, end)
        try:
            while (found := self._run(link, _next(changes), "reading changes")) is not None:
                yield found
        finally:
            if link.loop.alive:
                with contextlib.suppress(MamaError):
                    self._run(link, _end(changes), "ending a read")

    def close(self) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`. What is announced stays warm for a while."""
        link, self._link, self._reader = self._link, None, None
        if self._announcer is not None and self._announcer.loop.alive:
            with contextlib.suppress(MamaError):
                self._announcer.loop.soon(self._announcer.release, self._holder)
        if self._teller is not None and link is not None and link.loop.alive:
            self._teller.close()
        self._announcer = self._teller = None
        if link is not None:
            POOL.give_back(self.settings, link)


async def _next(changes: AsyncIterator[list[DiscoveryEvent]]) -> list[DiscoveryEvent] | None:
    return await anext(changes, None)


async def _end(changes: AsyncIterator[list[DiscoveryEvent]]) -> None:
    await changes.aclose()  # type: ignore[attr-defined]
