"""Keeps sources alive from this process: one set of renewals a source, however many bridges announce it.

Renewals run on the loop of the connections, over a connection of their own, for as long as somebody announces and a
while longer (a stream of micro-batches opens a bridge each); they end with the process. A fork begins with none.

**How processes agree.** A renewal carries the number of the one before it (``Nats-Expected-Last-Subject-Sequence``).
When it is refused, the subject holds the renewal of another process (fine), a marker of the server (the source had been
given up), or nothing (withdrawn). A record is written, with the same kind of expectation, where other bytes stand or
where it is older than such a marker: so it is written once, whichever process is the first, and readers see the source
come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass, field

from ...bridge import SourceKey
from ...errors import ExpectationFailed, MamaError, Unavailable
from . import loop as loops
from .board import LIVE, MARKER, REC, RENEWAL, SOURCE_TTL, TTL, WARN, WITHDRAWN, Board
from .changes import Stored
from .discovery_streams import make
from .link import Link
from .pool import IDLE
from .settings import NatsSettings
from .shelf import Shelf

LOG = logging.getLogger("mama_spark.nats.discovery")

_Key = tuple[object, ...]
_LEAST = 1.0
_ARRIVAL = 5.0  #: seconds that a record may take from one stream to the other
#: How often a record may be found changed by others between looking and writing.
_TRIES = 20


def seconds(value: float) -> str:
    """A duration as the server reads it; it takes none below a second."""
    return f"{round(max(value, _LEAST) * 1000)}ms"


class Withdrawn(Exception):
    """Somebody said that the source has ended."""


@dataclass(slots=True)
class Announced:
    """One source that this process keeps alive.

    :ivar holders: bridges that announce it now
    :ivar idle_since: monotonic; when the last one let go
    :ivar known: number of the last message of ``warn`` and ``live``, as far as we know
    :ivar rewrite_at: monotonic; when the record must be written again lest it vanish
    """

    source: SourceKey
    record: bytes
    ttl: float
    holders: set[int] = field(default_factory=set)
    idle_since: float = 0.0
    known: dict[str, int] = field(default_factory=dict)
    rewrite_at: float = 0.0
    task: asyncio.Task[None] | None = None


class Announcer:
    """All sources that this process announces at one place of discovery; everything runs on the loop.

    :ivar clock: seconds to add to this machine's clock to have the server's
    """

    def __init__(self, settings: NatsSettings, board: Board, loop: loops.Loop) -> None:
        self.settings, self.board, self.loop = settings, board, loop
        self.clock = 0.0
        self.sources: dict[SourceKey, Announced] = {}
        self._shelf: Shelf | None = None
        self._connecting, self._beginning = asyncio.Lock(), asyncio.Lock()

    async def announce(self, holder: int, source: SourceKey, record: bytes, ttl: float) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`; returns when the first renewal is stored."""
        async with self._beginning:
            one = self.sources.get(source)
            if one is None or one.task is None or one.task.done() or (one.record, one.ttl) != (record, ttl):
                holders = set() if one is None else one.holders
                self._forget(source)
                one = Announced(source, record, ttl, holders)
                await self._begin(one)
                self.sources[source] = one
                one.task = self.loop.loop.create_task(self._keep(one))
            one.holders.add(holder)

    async def withdraw(self, source: SourceKey, record: bytes) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        self._forget(source)
        shelf = await self.shelf()
        ended = await self._write_ended(shelf, self.board.source_subject(source, REC), record)
        for part in (WARN, LIVE):  # what is renewed later belongs to who announces it again
            subject = self.board.source_subject(source, part)
            await shelf.api("STREAM.PURGE", self.board.sources, {"filter": subject, "seq": ended})
        await self._arrives(self.board.source_subject(source, REC), ended)
        await self._hang_up()

    async def _write_ended(self, shelf: Shelf, subject: str, record: bytes) -> int:
        headers = {TTL: seconds(self.board.kept), WITHDRAWN: "1"}
        for _ in range(_TRIES):
            stands = await shelf.leaders(self.board.sources, subject)
            if stands is not None and stands.payload == record and WITHDRAWN in stands.headers:
                return stands.sequence
            with contextlib.suppress(ExpectationFailed):
                return await self._store(subject, record, headers, 0 if stands is None else stands.sequence)
        raise Unavailable(f"{subject!r} changes all the time")

    def release(self, holder: int) -> None:
        """A bridge was closed: its sources stay warm for a while."""
        for one in self.sources.values():
            if holder in one.holders:
                one.holders.discard(holder)
                one.idle_since = time.monotonic()

    async def _hang_up(self) -> None:
        """Give the connection up when there is nothing to renew."""
        if not self.sources and self._shelf is not None:
            shelf, self._shelf = self._shelf, None
            await shelf.link.close()

    async def stop(self) -> None:
        """Renew nothing any more, as if the process had ended."""
        for source in list(self.sources):
            self._forget(source)
        await self._hang_up()

    def _forget(self, source: SourceKey) -> None:
        one = self.sources.pop(source, None)
        if one is not None and one.task is not None:
            one.task.cancel()

    # --- the connection ----------------------------------------------------------------------------------------

    async def shelf(self) -> Shelf:
        """The connection of the renewals; made again when it was closed for good."""
        async with self._connecting:
            if self._shelf is None or self._shelf.link.closed:
                link = await Link.connect(self.loop, self.settings)
                self._shelf = Shelf(link, self.settings.retry_deadline, self.settings.connect_timeout)
            return self._shelf

    async def _store(
        self, subject: str, payload: bytes, headers: dict[str, str], last: int, patience: float | None = None
    ) -> int:
        """Store where ``last`` is the last number of the subject.

        After a lost acknowledgement the second try is refused, as if somebody else had been quicker: callers look at
        what stands there, anyway.
        """
        shelf = await self.shelf()
        expected = {"Nats-Expected-Last-Subject-Sequence": str(last)}
        return await shelf.publish(subject, payload, {**headers, **expected}, patience)

    # --- one source ---------------------------------------------------------------------------------------------

    async def _begin(self, one: Announced) -> None:
        """Take a source up: write the record if it is not what stands there, then renew."""
        for _ in range(_TRIES):
            marks = [await self._look(one, part) for part in (WARN, LIVE)]
            try:
                await self._say(one, await self._rec(one), marks)
                break
            except ExpectationFailed:
                continue  # another process was quicker
        for part in (WARN, LIVE):
            await self._renew(one, part)

    async def _look(self, one: Announced, part: str) -> Stored | None:
        shelf = await self.shelf()
        found = await shelf.leaders(self.board.sources, self.board.source_subject(one.source, part))
        one.known[part] = 0 if found is None else found.sequence
        return found

    async def _rec(self, one: Announced) -> Stored | None:
        shelf = await self.shelf()
        return await shelf.leaders(self.board.sources, self.board.source_subject(one.source, REC))

    async def _say(self, one: Announced, stands: Stored | None, marks: list[Stored | None]) -> None:
        """Write the record if it must be.

        :raises ExpectationFailed: what stands there has changed meanwhile
        """
        given_up = max((m.sequence for m in marks if m is not None and MARKER in m.headers), default=0)
        if stands is None or not _says(stands, one) or stands.sequence < given_up:
            number = await self._write(one, one.record, stands)
            await self._arrives(self.board.source_subject(one.source, REC), number)
        else:
            age = time.time() + self.clock - stands.at / 1e6
            one.rewrite_at = time.monotonic() + self.board.kept / 3 - age

    async def _arrives(self, subject: str, number: int) -> None:
        """Wait until readers can see a record, so that what is told afterwards stands behind it."""
        shelf = await self.shelf()
        until = time.monotonic() + _ARRIVAL
        while time.monotonic() < until:
            found = await shelf.leaders(self.board.events, subject)
            if found is not None and found.sourced >= number:
                return
            await asyncio.sleep(0.01)
        LOG.warning("the stream %s lags behind %s", self.board.events, self.board.sources)

    async def _write(self, one: Announced, record: bytes, stands: Stored | None, renewal: bool = False) -> int:
        headers = {TTL: seconds(self.board.kept), SOURCE_TTL: f"{one.ttl:g}", **({RENEWAL: "1"} if renewal else {})}
        last = 0 if stands is None else stands.sequence
        number = await self._store(self.board.source_subject(one.source, REC), record, headers, last)
        one.rewrite_at = time.monotonic() + self.board.kept / 3
        return number

    async def _keep(self, one: Announced) -> None:
        """Renew until nobody holds it any more."""
        while True:
            await asyncio.sleep(one.ttl / 3)
            if not one.holders and time.monotonic() - one.idle_since > IDLE:
                break
            try:
                await self._renew_all(one)
            except Withdrawn:
                LOG.info("source %s has been withdrawn: it is not renewed any more", one.source.name)
                break
            except MamaError as e:
                LOG.warning("source %s could not be renewed, trying again: %s", one.source.name, e)
        if self.sources.get(one.source) is one:
            self.sources.pop(one.source)
        await self._hang_up()

    async def _renew_all(self, one: Announced) -> None:
        try:
            for part in (WARN, LIVE):
                await self._renew(one, part, patience=one.ttl / 3)
            if time.monotonic() >= one.rewrite_at:
                await self._keep_record(one)
        except Unavailable:
            shelf = await self.shelf()
            if not shelf.link.up:
                raise
            self.clock = (await make(shelf, self.board)).clock  # we are connected: perhaps the stream was deleted
            await self._begin(one)

    async def _renew(self, one: Announced, part: str, patience: float | None = None) -> None:
        subject = self.board.source_subject(one.source, part)
        life = {TTL: seconds(one.ttl / 2 if part == WARN else max(one.ttl, _LEAST + 0.5))}
        for _ in range(_TRIES):
            with contextlib.suppress(ExpectationFailed):
                one.known[part] = await self._store(subject, b"", life, one.known.get(part, 0), patience)
                return
            await self._learn(one, part)

    async def _learn(self, one: Announced, part: str) -> None:
        """A renewal was refused: see what stands there, and come back if the source was given up.

        :raises Withdrawn: it has ended
        """
        found = await self._look(one, part)
        if found is not None and MARKER not in found.headers:
            return
        stands = await self._rec(one)
        if stands is not None and WITHDRAWN in stands.headers:
            raise Withdrawn
        if found is not None and stands is not None and stands.sequence < found.sequence:
            LOG.warning(
                "source %s had been called %s, because nobody renewed it for %g s: it is announced again. The usual "
                "reason is a sourceTtl (%g s) that is shorter than the trigger interval",
                *(one.source.name, "SUSPECT" if part == WARN else "OFFLINE"),
                *(one.ttl / 2 if part == WARN else one.ttl, one.ttl),
            )
        elif stands is not None and MARKER not in stands.headers:
            return  # purged, or already written again by another process
        gone = stands is None or MARKER in stands.headers
        with contextlib.suppress(ExpectationFailed):
            await self._write(one, one.record if gone or stands is None else stands.payload, stands)

    async def _keep_record(self, one: Announced) -> None:
        """Write what stands there again, marked as no change, before its own TTL ends."""
        stands = await self._rec(one)
        if stands is None or WITHDRAWN in stands.headers or MARKER in stands.headers:
            return
        with contextlib.suppress(ExpectationFailed):
            await self._write(one, stands.payload, stands, renewal=True)
        one.rewrite_at = time.monotonic() + self.board.kept / 3


def _says(stands: Stored, one: Announced) -> bool:
    """Is it the record of a source that lives as long as ours?"""
    headers = stands.headers
    ours = stands.payload == one.record and headers.get(SOURCE_TTL) == f"{one.ttl:g}"
    return ours and WITHDRAWN not in headers and MARKER not in headers


_announcers: dict[_Key, Announcer] = {}
_lock = threading.Lock()


def announcer(settings: NatsSettings, board: Board) -> Announcer:
    """The one of this process for this place of discovery."""
    loop = loops.shared()
    key = (settings.connection_key, board)
    with _lock:
        found = _announcers.get(key)
        if found is None or found.loop is not loop:
            found = _announcers[key] = Announcer(settings, board, loop)
        return found


def clear() -> None:
    """Let this process announce nothing any more."""
    with _lock:
        found = list(_announcers.values())
        _announcers.clear()
    for one in found:
        if one.loop.alive:
            one.loop.run(one.stop(), 10.0, "ending announcements")


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _announcers.clear()


os.register_at_fork(after_in_child=_after_fork)
