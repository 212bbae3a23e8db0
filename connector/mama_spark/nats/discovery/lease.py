"""Renews the leases of the sources that this process announces: one lease per source, for any number of bridges.

Renewals run on the event loop, over their own connection, while a bridge announces the source and for some time after
(each micro-batch of a stream opens a bridge). They end with the process; a forked process has none.

**How processes agree.** A renewal carries the sequence of the one before it (``Nats-Expected-Last-Subject-Sequence``).
When it is refused, the subject holds the renewal of another process (which is fine), a marker of the server (the lease
has expired), or nothing (the source was withdrawn). To recover: (1) renew, storing the replaced marker's sequence; (2)
rewrite the record if it is older than the marker. Both writes carry an expectation, so the record is rewritten once,
whichever process is first, and also when a process ends between them. Readers then see the source online again.
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

from mama_spark.contracts.bridge import SourceKey
from mama_spark.contracts.errors import ExpectationFailed, MamaError, Unavailable
from mama_spark.discovery.source_expiry import (
    expires_after,
    offline_after,
    renew_every,
    state_by_markers,
    suspect_after,
)

from ..connection import event_loop
from ..connection.connection import Connection
from ..connection.pool import IDLE
from ..jetstream.stream_client import StreamClient
from ..protocol.direct_get import StoredMessage, is_sequence
from ..protocol.headers import EXPECTED_LAST
from ..settings import NatsSettings
from .layout import (
    LIVE,
    MARKER,
    REC,
    RENEWAL,
    REPLACED_MARKER,
    SOURCE_TTL,
    TTL,
    WARN,
    WITHDRAWN,
    DiscoveryLayout,
)
from .streams import ensure_streams

LOG = logging.getLogger("mama_spark.nats.discovery")

_Key = tuple[object, ...]
_LEAST_TTL = 1.0
_SOURCING_TIMEOUT = 5.0  #: seconds to wait until a record of the stream of sources is in the stream of events
#: Attempts to write while other processes write the same subject.
_TRIES = 20


def seconds(value: float) -> str:
    """A duration in the server's format; at least one second."""
    return f"{round(max(value, _LEAST_TTL) * 1000)}ms"


class LeaseWithdrawn(Exception):
    """The source was withdrawn, by this process or another."""


@dataclass(slots=True)
class Lease:
    """The lease of one source.

    :ivar holders: bridges that announce the source now
    :ivar idle_since: monotonic seconds; when the last holder released it
    :ivar last_sequences: known sequence of the last message of ``warn`` and ``live``
    :ivar rewrite_at: monotonic seconds; when the record must be rewritten so that it does not expire
    """

    source: SourceKey
    record: bytes
    ttl: float
    holders: set[int] = field(default_factory=set)
    idle_since: float = 0.0
    last_sequences: dict[str, int] = field(default_factory=dict)
    rewrite_at: float = 0.0
    task: asyncio.Task[None] | None = None


class LeaseKeeper:
    """All leases of this process in one discovery layout; everything runs on the event loop.

    :ivar clock_offset: seconds to add to :func:`time.monotonic`, which cannot be set, to get the server's time
    """

    def __init__(self, settings: NatsSettings, layout: DiscoveryLayout, loop: event_loop.EventLoopThread) -> None:
        self.settings, self.layout, self.loop = settings, layout, loop
        self.clock_offset = 0.0
        self.sources: dict[SourceKey, Lease] = {}
        self._stream_client: StreamClient | None = None
        self._calls = 0  # calls that use the connection now
        self._connecting, self._establishing = asyncio.Lock(), asyncio.Lock()

    async def announce(self, holder: int, source: SourceKey, record: bytes, ttl: float) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`; returns when the first renewal is stored."""
        async with self._call(), self._establishing:
            lease = self.sources.get(source)
            if lease is None or (lease.record, lease.ttl) != (record, ttl) or not await self._is_current(lease):
                holders = set() if lease is None else lease.holders
                self._forget(source)
                lease = Lease(source, record, ttl, holders)
                await self._establish(lease)
                self.sources[source] = lease
                lease.task = self.loop.loop.create_task(self._renew_until_released(lease))
            lease.holders.add(holder)

    async def _is_current(self, lease: Lease) -> bool:
        """Whether it is renewed, and its record was neither changed nor withdrawn meanwhile."""
        if lease.task is None or lease.task.done():
            return False
        current = await self._fetch_record(lease)
        return current is not None and _matches(current, lease)

    async def withdraw(self, source: SourceKey, record: bytes) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        self._forget(source)
        async with self._call():
            stream_client = await self.stream_client()
            ended = await self._write_withdrawn(stream_client, self.layout.source_subject(source, REC), record)
            for part in (WARN, LIVE):  # a later renewal comes from a process that announces it again
                subject = self.layout.source_subject(source, part)
                await stream_client.request("STREAM.PURGE", self.layout.sources, {"filter": subject, "seq": ended})
            await self._wait_until_sourced(self.layout.source_subject(source, REC), ended)

    @contextlib.asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Keep the connection open for a call; after the last one it is closed if there is nothing to renew."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            await self._close_if_idle()

    async def _write_withdrawn(self, stream_client: StreamClient, subject: str, record: bytes) -> int:
        headers = {TTL: seconds(self.layout.kept), WITHDRAWN: "1"}
        for _ in range(_TRIES):
            current = await stream_client.leader_get(self.layout.sources, subject)
            if current is not None and current.payload == record and WITHDRAWN in current.headers:
                return current.sequence
            with contextlib.suppress(ExpectationFailed):
                return await self._store(subject, record, headers, 0 if current is None else current.sequence)
        raise Unavailable(f"{subject!r} changes all the time")

    def release(self, holder: int) -> None:
        """A bridge was closed: its leases are renewed for some more time."""
        for lease in self.sources.values():
            if holder in lease.holders:
                lease.holders.discard(holder)
                lease.idle_since = time.monotonic()

    async def _close_if_idle(self) -> None:
        """Close the connection if there is nothing to renew and no call uses it."""
        if not self.sources and not self._calls and self._stream_client is not None:
            stream_client, self._stream_client = self._stream_client, None
            await stream_client.connection.close()

    async def stop(self) -> None:
        """Stop all renewals, as at the end of the process."""
        for source in list(self.sources):
            self._forget(source)
        await self._close_if_idle()

    def _forget(self, source: SourceKey) -> None:
        lease = self.sources.pop(source, None)
        if lease is not None and lease.task is not None:
            lease.task.cancel()

    # --- the connection ----------------------------------------------------------------------------------------

    async def stream_client(self) -> StreamClient:
        """The connection of the renewals; a new one if it was closed for good."""
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
        """Store a message if ``last`` is the last sequence of the subject.

        After a lost acknowledgement the second attempt is rejected, as if another process had written: callers then
        read the subject.
        """
        stream_client = await self.stream_client()
        return await stream_client.publish(subject, payload, {**headers, EXPECTED_LAST: str(last)}, timeout)

    # --- one source ---------------------------------------------------------------------------------------------

    async def _establish(self, lease: Lease, keep_foreign: bool = False) -> None:
        """Renew the lease, then write the record if needed. This order is needed because a record without a
        renewal never expires, and the process may end at any point.

        :param keep_foreign: keep a record that another process has written
        :raises LeaseWithdrawn: with ``keep_foreign``, the source was withdrawn
        """
        marker = max([await self._claim_renewal(lease, part) for part in (WARN, LIVE)])
        for _ in range(_TRIES):
            with contextlib.suppress(ExpectationFailed):  # another process was first
                await self._write_record_if_needed(lease, await self._fetch_record(lease), marker, keep_foreign)
                return

    async def _claim_renewal(self, lease: Lease, part: str) -> int:
        """Renew, whatever the subject holds; returns the sequence of the marker that the record must follow, or 0."""
        marker = 0
        for _ in range(_TRIES):
            found = await self._fetch_latest(lease, part)
            marker = max(marker, _replaced_marker(found))
            with contextlib.suppress(ExpectationFailed):
                await self._store_renewal(lease, part, marker=marker)
                return marker
        raise Unavailable(f"{self.layout.source_subject(lease.source, part)!r} changes all the time")

    async def _fetch_latest(self, lease: Lease, part: str) -> StoredMessage | None:
        stream_client = await self.stream_client()
        found = await stream_client.leader_get(self.layout.sources, self.layout.source_subject(lease.source, part))
        lease.last_sequences[part] = 0 if found is None else found.sequence
        return found

    async def _fetch_record(self, lease: Lease) -> StoredMessage | None:
        stream_client = await self.stream_client()
        return await stream_client.leader_get(self.layout.sources, self.layout.source_subject(lease.source, REC))

    async def _write_record_if_needed(
        self, lease: Lease, current: StoredMessage | None, marker: int, keep_foreign: bool
    ) -> None:
        """Write the record if it is missing, different, or older than the marker.

        :raises ExpectationFailed: the subject has changed meanwhile
        """
        record = lease.record
        if keep_foreign and current is not None and WITHDRAWN in current.headers:
            raise LeaseWithdrawn
        if keep_foreign and current is not None and MARKER not in current.headers:
            record, same = current.payload, True
        else:
            same = current is not None and _matches(current, lease)
        if current is None or not same or current.sequence < marker:
            number = await self._write(lease, record, current)
            await self._wait_until_sourced(self.layout.source_subject(lease.source, REC), number)
        else:
            age = time.monotonic() + self.clock_offset - current.at / 1e6
            lease.rewrite_at = time.monotonic() + self.layout.kept / 3 - age

    async def _wait_until_sourced(self, subject: str, number: int) -> None:
        """Wait until the record is in the stream of events, so that later events follow it."""
        stream_client = await self.stream_client()
        until = time.monotonic() + _SOURCING_TIMEOUT
        while time.monotonic() < until:
            found = await stream_client.leader_get(self.layout.events, subject)
            if found is not None and found.sourced >= number:
                return
            await asyncio.sleep(0.01)
        LOG.warning("the stream %s lags behind %s", self.layout.events, self.layout.sources)

    async def _write(self, lease: Lease, record: bytes, current: StoredMessage | None, renewal: bool = False) -> int:
        headers = {TTL: seconds(self.layout.kept), SOURCE_TTL: f"{lease.ttl:g}", **({RENEWAL: "1"} if renewal else {})}
        last = 0 if current is None else current.sequence
        number = await self._store(self.layout.source_subject(lease.source, REC), record, headers, last)
        lease.rewrite_at = time.monotonic() + self.layout.kept / 3
        return number

    async def _renew_until_released(self, lease: Lease) -> None:
        """Renew until no bridge holds the lease."""
        while True:
            await asyncio.sleep(renew_every(lease.ttl))
            if not lease.holders and time.monotonic() - lease.idle_since > IDLE:
                break
            try:
                await self._renew_all(lease)
            except LeaseWithdrawn:
                LOG.info("source %s has been withdrawn: it is not renewed any more", lease.source.name)
                break
            except MamaError as e:
                LOG.warning("source %s could not be renewed, trying again: %s", lease.source.name, e)
        if self.sources.get(lease.source) is lease:
            self.sources.pop(lease.source)
        await self._close_if_idle()

    async def _renew_all(self, lease: Lease) -> None:
        """:raises LeaseWithdrawn: the source was withdrawn"""
        try:
            if not all([await self._renew(lease, part) for part in (WARN, LIVE)]):
                await self._recover(lease)
            if time.monotonic() >= lease.rewrite_at:
                await self._refresh_record(lease)
        except Unavailable:
            stream_client = await self.stream_client()
            if not stream_client.connection.up:
                raise
            streams = await ensure_streams(stream_client, self.layout)  # connected, so the stream may be deleted
            self.clock_offset = streams.clock_offset
            await self._establish(lease)

    async def _renew(self, lease: Lease, part: str) -> bool:
        """Renew once; False: the lease has expired, or the source was withdrawn."""
        for _ in range(_TRIES):
            with contextlib.suppress(ExpectationFailed):
                await self._store_renewal(lease, part, timeout=renew_every(lease.ttl))
                return True
            found = await self._fetch_latest(lease, part)
            if found is None or _replaced_marker(found):
                return False
        return True  # other processes keep renewing it

    async def _store_renewal(self, lease: Lease, part: str, timeout: float | None = None, marker: int = 0) -> None:
        ttl = lease.ttl
        headers = {TTL: seconds(suspect_after(ttl) if part == WARN else max(offline_after(ttl), _LEAST_TTL + 0.5))}
        if marker:
            headers[REPLACED_MARKER] = str(marker)
        subject = self.layout.source_subject(lease.source, part)
        lease.last_sequences[part] = await self._store(
            subject, b"", headers, lease.last_sequences.get(part, 0), timeout
        )

    async def _recover(self, lease: Lease) -> None:
        """The lease was not renewed in time: it has expired, or the source was withdrawn.

        :raises LeaseWithdrawn: the source was withdrawn
        """
        current = await self._fetch_record(lease)
        if current is not None and WITHDRAWN in current.headers:
            raise LeaseWithdrawn
        marks = {part: _replaced_marker(await self._fetch_latest(lease, part)) for part in (WARN, LIVE)}
        if current is not None and MARKER not in current.headers and 0 < max(marks.values()) < current.sequence:
            for part in (WARN, LIVE):  # another process has written the record again
                with contextlib.suppress(ExpectationFailed):
                    await self._store_renewal(lease, part)
            return
        state = state_by_markers(0, marks[WARN], marks[LIVE])
        if current is not None and state is not None:
            LOG.warning(
                "source %s had been called %s, because nobody renewed it for %g s: it is announced again. The usual "
                "reason is a sourceTtl (%g s) that is shorter than the trigger interval",
                *(lease.source.name, state.name, expires_after(lease.ttl, state), lease.ttl),
            )
        await self._establish(lease, keep_foreign=True)

    async def _refresh_record(self, lease: Lease) -> None:
        """Rewrite the record before its own TTL ends, marked as no change."""
        current = await self._fetch_record(lease)
        if current is None or WITHDRAWN in current.headers or MARKER in current.headers:
            return
        with contextlib.suppress(ExpectationFailed):
            await self._write(lease, current.payload, current, renewal=True)
        lease.rewrite_at = time.monotonic() + self.layout.kept / 3


def _replaced_marker(found: StoredMessage | None) -> int:
    """The sequence of the marker that a message is, or that it replaced; 0: none."""
    if found is None:
        return 0
    if MARKER in found.headers:
        return found.sequence
    number = found.headers.get(REPLACED_MARKER, "")
    return int(number) if is_sequence(number) else 0


def _matches(current: StoredMessage, lease: Lease) -> bool:
    """Whether a stored record has the content and TTL of the lease."""
    headers = current.headers
    ours = current.payload == lease.record and headers.get(SOURCE_TTL) == f"{lease.ttl:g}"
    return ours and WITHDRAWN not in headers and MARKER not in headers


_keepers: dict[_Key, LeaseKeeper] = {}
_lock = threading.Lock()


def lease_keeper(settings: NatsSettings, layout: DiscoveryLayout) -> LeaseKeeper:
    """The keeper of this process for this layout."""
    loop = event_loop.shared()
    key = (settings.connection_key, layout)
    with _lock:
        found = _keepers.get(key)
        if found is None or found.loop is not loop:
            found = _keepers[key] = LeaseKeeper(settings, layout, loop)
        return found


def clear() -> None:
    """End all renewals of this process."""
    with _lock:
        found = list(_keepers.values())
        _keepers.clear()
    for lease in found:
        if lease.loop.alive:
            lease.loop.run(lease.stop(), 10.0, "ending announcements")


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _keepers.clear()


os.register_at_fork(after_in_child=_after_fork)
