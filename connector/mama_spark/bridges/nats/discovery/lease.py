"""Keeps sources alive from this process: one set of renewals a source, however many bridges announce it.

Renewals run on the loop of the connections, over a connection of their own, for as long as somebody announces and a
while longer (a stream of micro-batches opens a bridge each); they end with the process. A fork begins with none.

**How processes agree.** A renewal carries the number of the one before it (``Nats-Expected-Last-Subject-Sequence``).
When it is refused, the subject holds the renewal of another process (fine), a marker of the server (the source had been
given up), or nothing (withdrawn). Who comes back renews first, noting the marker that it replaces, and then writes the
record again if it is older than that: with the same kind of expectation, so it is written once, whichever process is
the first, and also when that one ends in between. Readers see the source come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from mama_spark.bridge import SourceKey
from mama_spark.errors import ExpectationFailed, MamaError, Unavailable
from mama_spark.source_expiry import offline_after, renew_every, suspect_after

from ..connection import event_loop
from ..connection.connection import Connection
from ..connection.pool import IDLE
from ..jetstream.stream_client import StreamClient
from ..protocol.direct_get import StoredMessage
from ..settings import NatsSettings
from .layout import (
    GIVEN_UP,
    LIVE,
    MARKER,
    REC,
    RENEWAL,
    SOURCE_TTL,
    TTL,
    WARN,
    WITHDRAWN,
    DiscoveryLayout,
)
from .streams import make

LOG = logging.getLogger("mama_spark.nats.discovery")

_Key = tuple[object, ...]
_LEAST = 1.0
_ARRIVAL = 5.0  #: seconds that a record may take from one stream to the other
#: How often a record may be found changed by others between looking and writing.
_TRIES = 20


def seconds(value: float) -> str:
    """A duration as the server reads it; it takes none below a second."""
    return f"{round(max(value, _LEAST) * 1000)}ms"


class LeaseWithdrawn(Exception):
    """Somebody said that the source has ended."""


@dataclass(slots=True)
class Lease:
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


class LeaseKeeper:
    """All sources that this process announces at one place of discovery; everything runs on the loop.

    :ivar clock: seconds to add to this machine's clock to have the server's
    """

    def __init__(self, settings: NatsSettings, layout: DiscoveryLayout, loop: event_loop.EventLoopThread) -> None:
        self.settings, self.layout, self.loop = settings, layout, loop
        self.clock = 0.0
        self.sources: dict[SourceKey, Lease] = {}
        self._stream_client: StreamClient | None = None
        self._calls = 0  # that use the connection now
        self._connecting, self._beginning = asyncio.Lock(), asyncio.Lock()

    async def announce(self, holder: int, source: SourceKey, record: bytes, ttl: float) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`; returns when the first renewal is stored."""
        async with self._call(), self._beginning:
            one = self.sources.get(source)
            if one is None or (one.record, one.ttl) != (record, ttl) or not await self._stands(one):
                holders = set() if one is None else one.holders
                self._forget(source)
                one = Lease(source, record, ttl, holders)
                await self._begin(one)
                self.sources[source] = one
                one.task = self.loop.loop.create_task(self._keep(one))
            one.holders.add(holder)

    async def _stands(self, one: Lease) -> bool:
        """Is it being renewed, and has nobody said meanwhile that it has ended?"""
        if one.task is None or one.task.done():
            return False
        stands = await self._rec(one)
        return stands is not None and _says(stands, one)

    async def withdraw(self, source: SourceKey, record: bytes) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        self._forget(source)
        async with self._call():
            stream_client = await self.stream_client()
            ended = await self._write_ended(stream_client, self.layout.source_subject(source, REC), record)
            for part in (WARN, LIVE):  # what is renewed later belongs to who announces it again
                subject = self.layout.source_subject(source, part)
                await stream_client.request("STREAM.PURGE", self.layout.sources, {"filter": subject, "seq": ended})
            await self._arrives(self.layout.source_subject(source, REC), ended)

    @contextlib.asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Something of the caller's that needs the connection; the last one hangs up if nothing is renewed."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            await self._hang_up()

    async def _write_ended(self, stream_client: StreamClient, subject: str, record: bytes) -> int:
        headers = {TTL: seconds(self.layout.kept), WITHDRAWN: "1"}
        for _ in range(_TRIES):
            stands = await stream_client.leader_get(self.layout.sources, subject)
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
        """Give the connection up when there is nothing to renew and nobody uses it."""
        if not self.sources and not self._calls and self._stream_client is not None:
            stream_client, self._stream_client = self._stream_client, None
            await stream_client.connection.close()

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

    async def stream_client(self) -> StreamClient:
        """The connection of the renewals; made again when it was closed for good."""
        async with self._connecting:
            if self._stream_client is None or self._stream_client.connection.closed:
                connection = await Connection.connect(self.loop, self.settings)
                self._stream_client = StreamClient(
                    connection, self.settings.retry_deadline, self.settings.connect_timeout
                )
            return self._stream_client

    async def _store(
        self, subject: str, payload: bytes, headers: dict[str, str], last: int, timeout: float | None = None
    ) -> int:
        """Store where ``last`` is the last number of the subject.

        After a lost acknowledgement the second try is refused, as if somebody else had been quicker: callers look at
        what stands there, anyway.
        """
        stream_client = await self.stream_client()
        expected = {"Nats-Expected-Last-Subject-Sequence": str(last)}
        return await stream_client.publish(subject, payload, {**headers, **expected}, timeout)

    # --- one source ---------------------------------------------------------------------------------------------

    async def _begin(self, one: Lease, keep: bool = False) -> None:
        """Take a source up: renew it, then write the record if it must be. In this order, for what is not renewed never
        expires, and a process may end at any point.

        :param keep: leave what another process has written
        :raises Withdrawn: with ``keep``, it has ended
        """
        given_up = max([await self._take_up(one, part) for part in (WARN, LIVE)])
        for _ in range(_TRIES):
            with contextlib.suppress(ExpectationFailed):  # another process was quicker
                await self._say(one, await self._rec(one), given_up, keep)
                return

    async def _take_up(self, one: Lease, part: str) -> int:
        """Renew over whatever stands there: the number of a marker that still has to be answered by a record, or 0."""
        given_up = 0
        for _ in range(_TRIES):
            found = await self._look(one, part)
            given_up = max(given_up, _given_up(found))
            with contextlib.suppress(ExpectationFailed):
                await self._store_renewal(one, part, given_up=given_up)
                return given_up
        raise Unavailable(f"{self.layout.source_subject(one.source, part)!r} changes all the time")

    async def _look(self, one: Lease, part: str) -> StoredMessage | None:
        stream_client = await self.stream_client()
        found = await stream_client.leader_get(self.layout.sources, self.layout.source_subject(one.source, part))
        one.known[part] = 0 if found is None else found.sequence
        return found

    async def _rec(self, one: Lease) -> StoredMessage | None:
        stream_client = await self.stream_client()
        return await stream_client.leader_get(self.layout.sources, self.layout.source_subject(one.source, REC))

    async def _say(self, one: Lease, stands: StoredMessage | None, given_up: int, keep: bool) -> None:
        """Write the record if it must be.

        :raises ExpectationFailed: what stands there has changed meanwhile
        """
        record = one.record
        if keep and stands is not None and WITHDRAWN in stands.headers:
            raise LeaseWithdrawn
        if keep and stands is not None and MARKER not in stands.headers:
            record, same = stands.payload, True
        else:
            same = stands is not None and _says(stands, one)
        if stands is None or not same or stands.sequence < given_up:
            number = await self._write(one, record, stands)
            await self._arrives(self.layout.source_subject(one.source, REC), number)
        else:
            age = time.time() + self.clock - stands.at / 1e6
            one.rewrite_at = time.monotonic() + self.layout.kept / 3 - age

    async def _arrives(self, subject: str, number: int) -> None:
        """Wait until readers can see a record, so that what is told afterwards stands behind it."""
        stream_client = await self.stream_client()
        until = time.monotonic() + _ARRIVAL
        while time.monotonic() < until:
            found = await stream_client.leader_get(self.layout.events, subject)
            if found is not None and found.sourced >= number:
                return
            await asyncio.sleep(0.01)
        LOG.warning("the stream %s lags behind %s", self.layout.events, self.layout.sources)

    async def _write(self, one: Lease, record: bytes, stands: StoredMessage | None, renewal: bool = False) -> int:
        headers = {TTL: seconds(self.layout.kept), SOURCE_TTL: f"{one.ttl:g}", **({RENEWAL: "1"} if renewal else {})}
        last = 0 if stands is None else stands.sequence
        number = await self._store(self.layout.source_subject(one.source, REC), record, headers, last)
        one.rewrite_at = time.monotonic() + self.layout.kept / 3
        return number

    async def _keep(self, one: Lease) -> None:
        """Renew until nobody holds it any more."""
        while True:
            await asyncio.sleep(renew_every(one.ttl))
            if not one.holders and time.monotonic() - one.idle_since > IDLE:
                break
            try:
                await self._renew_all(one)
            except LeaseWithdrawn:
                LOG.info("source %s has been withdrawn: it is not renewed any more", one.source.name)
                break
            except MamaError as e:
                LOG.warning("source %s could not be renewed, trying again: %s", one.source.name, e)
        if self.sources.get(one.source) is one:
            self.sources.pop(one.source)
        await self._hang_up()

    async def _renew_all(self, one: Lease) -> None:
        """:raises Withdrawn: it has ended"""
        try:
            if not all([await self._renew(one, part) for part in (WARN, LIVE)]):
                await self._come_back(one)
            if time.monotonic() >= one.rewrite_at:
                await self._keep_record(one)
        except Unavailable:
            stream_client = await self.stream_client()
            if not stream_client.connection.up:
                raise
            self.clock = (
                await make(stream_client, self.layout)
            ).clock  # we are connected: perhaps the stream was deleted
            await self._begin(one)

    async def _renew(self, one: Lease, part: str) -> bool:
        """One renewal; False when the source was given up, or has ended."""
        for _ in range(_TRIES):
            with contextlib.suppress(ExpectationFailed):
                await self._store_renewal(one, part, timeout=renew_every(one.ttl))
                return True
            found = await self._look(one, part)
            if found is None or _given_up(found):
                return False
        return True  # others renew it all the time

    async def _store_renewal(self, one: Lease, part: str, timeout: float | None = None, given_up: int = 0) -> None:
        headers = {TTL: seconds(suspect_after(one.ttl) if part == WARN else max(offline_after(one.ttl), _LEAST + 0.5))}
        if given_up:
            headers[GIVEN_UP] = str(given_up)
        subject = self.layout.source_subject(one.source, part)
        one.known[part] = await self._store(subject, b"", headers, one.known.get(part, 0), timeout)

    async def _come_back(self, one: Lease) -> None:
        """Nothing renews the source any more: it has ended, or was given up.

        :raises Withdrawn: it has ended
        """
        stands = await self._rec(one)
        if stands is not None and WITHDRAWN in stands.headers:
            raise LeaseWithdrawn
        marks = {part: _given_up(await self._look(one, part)) for part in (WARN, LIVE)}
        if stands is not None and MARKER not in stands.headers and 0 < max(marks.values()) < stands.sequence:
            for part in (WARN, LIVE):  # another process has written the record again
                with contextlib.suppress(ExpectationFailed):
                    await self._store_renewal(one, part)
            return
        if stands is not None and max(marks.values()):
            LOG.warning(
                "source %s had been called %s, because nobody renewed it for %g s: it is announced again. The usual "
                "reason is a sourceTtl (%g s) that is shorter than the trigger interval",
                *(one.source.name, "OFFLINE" if marks[LIVE] else "SUSPECT"),
                *(offline_after(one.ttl) if marks[LIVE] else suspect_after(one.ttl), one.ttl),
            )
        await self._begin(one, keep=True)

    async def _keep_record(self, one: Lease) -> None:
        """Write what stands there again, marked as no change, before its own TTL ends."""
        stands = await self._rec(one)
        if stands is None or WITHDRAWN in stands.headers or MARKER in stands.headers:
            return
        with contextlib.suppress(ExpectationFailed):
            await self._write(one, stands.payload, stands, renewal=True)
        one.rewrite_at = time.monotonic() + self.layout.kept / 3


def _given_up(found: StoredMessage | None) -> int:
    """The number of the marker that a message is, or that it replaced."""
    if found is None:
        return 0
    if MARKER in found.headers:
        return found.sequence
    number = found.headers.get(GIVEN_UP, "")
    return int(number) if number.isascii() and number.isdigit() else 0


def _says(stands: StoredMessage, one: Lease) -> bool:
    """Is it the record of a source that lives as long as ours?"""
    headers = stands.headers
    ours = stands.payload == one.record and headers.get(SOURCE_TTL) == f"{one.ttl:g}"
    return ours and WITHDRAWN not in headers and MARKER not in headers


_keepers: dict[_Key, LeaseKeeper] = {}
_lock = threading.Lock()


def lease_keeper(settings: NatsSettings, layout: DiscoveryLayout) -> LeaseKeeper:
    """The one of this process for this place of discovery."""
    loop = event_loop.shared()
    key = (settings.connection_key, layout)
    with _lock:
        found = _keepers.get(key)
        if found is None or found.loop is not loop:
            found = _keepers[key] = LeaseKeeper(settings, layout, loop)
        return found


def clear() -> None:
    """Let this process announce nothing any more."""
    with _lock:
        found = list(_keepers.values())
        _keepers.clear()
    for one in found:
        if one.loop.alive:
            one.loop.run(one.stop(), 10.0, "ending announcements")


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _keepers.clear()


os.register_at_fork(after_in_child=_after_fork)
