"""Leases of sources on NATS: :class:`~mama_spark.discovery.lease_keeper.LeaseStore`.

**How processes agree.** A renewal carries the sequence of the one before it (``Nats-Expected-Last-Subject-Sequence``).
When it is refused, the subject holds the renewal of another process (which is fine), a marker of the server (the lease
has expired), or nothing (the source was withdrawn). To recover: (1) renew, storing the replaced marker's sequence; (2)
rewrite the record if it is older than the marker. Both writes carry an expectation, so the record is rewritten once,
whichever process is first, and also when a process ends between them. Readers then see the source online again.
"""

from __future__ import annotations

import contextlib
import math
import time

from mama_spark.contracts.bridge import DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ExpectationFailed, Unavailable
from mama_spark.discovery.lease_keeper import Announced, LeaseWithdrawn
from mama_spark.discovery.source_expiry import offline_after, renew_every, state_by_markers, suspect_after

from ..connection.socket_connection import SocketConnection
from ..jetstream.client import JetStream
from ..protocol.direct_get import StoredMessage, is_sequence
from ..protocol.headers import EXPECTED_LAST, MARKER_REASON, TTL
from ..settings import NatsSettings
from .layout import (
    LIVE,
    REC,
    RENEWAL,
    REPLACED_MARKER,
    SOURCE_TTL,
    WARN,
    WITHDRAWN,
    DiscoveryLayout,
)
from .streams import LOG, ensure_streams

_LEAST_TTL = 1.0
_SOURCING_TIMEOUT = 5.0  #: seconds to wait until a record of the stream of sources is in the stream of events
#: Attempts to write while other processes write the same subject.
_TRIES = 20


def seconds(value: float) -> str:
    """A duration in the server's format; at least one second."""
    return f"{round(max(value, _LEAST_TTL) * 1000)}ms"


class NatsLeases:
    """The three subjects of each source in the stream of sources.

    :param clock_offset: seconds to add to :func:`time.monotonic`, which cannot be set, to get the server's time
    :ivar last_sequences: known sequence of the last message of a subject, for each source by part
    """

    def __init__(self, settings: NatsSettings, layout: DiscoveryLayout, clock_offset: float) -> None:
        self.settings, self.layout, self.clock_offset = settings, layout, clock_offset
        self.last_sequences: dict[tuple[SourceKey, str], int] = {}
        self._unsourced: dict[SourceKey, int] = {}  # sequences of written records, not waited for yet
        self._rewrite_at: dict[SourceKey, float] = {}  # monotonic time to rewrite a record, or it expires
        self.connection: SocketConnection | None = None
        self._api = JetStream(self._connect, settings.retry_deadline, settings.connect_timeout)

    # --- the connection ----------------------------------------------------------------------------------------

    def _connect(self) -> SocketConnection:
        """The connection of the renewals; a new one if the last was closed for good."""
        if self.connection is None or self.connection.closed:
            self.connection = SocketConnection(self.settings)
            self.connection.open()
        return self.connection

    def close(self) -> None:
        connection, self.connection = self.connection, None
        self.last_sequences.clear()
        if connection is not None:
            connection.close()

    def _store(
        self, subject: str, payload: bytes, headers: dict[str, str], last: int, timeout: float | None = None
    ) -> int:
        """Store a message if ``last`` is the last sequence of the subject. After a lost acknowledgement the second
        attempt is rejected, as if another process had written: callers then read the subject."""
        return self._api.publish(subject, payload, {**headers, EXPECTED_LAST: str(last)}, timeout)

    def _last(self, stream: str, subject: str) -> StoredMessage | None:
        return self._api.message(stream, last_by_subj=subject)

    def _record(self, source: SourceKey) -> StoredMessage | None:
        return self._last(self.layout.sources, self.layout.source_subject(source, REC))

    # --- announcing --------------------------------------------------------------------------------------------

    def stands(self, one: Announced) -> bool:
        return _matches(self._record(one.source), one)

    def announce(self, one: Announced) -> None:
        self._establish(one)

    def _establish(self, one: Announced, keep_foreign: bool = False) -> None:
        """Renew the lease, then write the record if needed: in this order, because a record without a renewal never
        expires, and the process may end at any point.

        :param keep_foreign: keep a record that another process has written
        :raises LeaseWithdrawn: with ``keep_foreign``, the source was withdrawn
        """
        marker = max(self._claim_renewal(one, part) for part in (WARN, LIVE))
        for _ in range(_TRIES):
            with contextlib.suppress(ExpectationFailed):  # another process was first
                self._write_record_if_needed(one, self._record(one.source), marker, keep_foreign)
                return

    def _claim_renewal(self, one: Announced, part: str) -> int:
        """Renew, whatever the subject holds; returns the sequence of the marker that the record must follow, or 0."""
        marker = 0
        for _ in range(_TRIES):
            marker = max(marker, _replaced_marker(self._fetch_latest(one.source, part)))
            with contextlib.suppress(ExpectationFailed):
                self._store_renewal(one, part, marker=marker)
                return marker
        raise Unavailable(f"{self.layout.source_subject(one.source, part)!r} changes all the time")

    def _fetch_latest(self, source: SourceKey, part: str) -> StoredMessage | None:
        found = self._last(self.layout.sources, self.layout.source_subject(source, part))
        self.last_sequences[source, part] = 0 if found is None else found.sequence
        return found

    def _write_record_if_needed(
        self, one: Announced, current: StoredMessage | None, marker: int, keep_foreign: bool
    ) -> None:
        """Write the record if it is missing, different, or older than the marker. ExpectationFailed: it has changed."""
        same = _matches(current, one)
        if keep_foreign and current is not None and WITHDRAWN in current.headers:
            raise LeaseWithdrawn
        if keep_foreign and current is not None and MARKER_REASON not in current.headers:
            one, same = Announced(one.source, current.payload, one.ttl), True
        if current is None or not same or current.sequence < marker:
            self._unsourced[one.source] = self._write(one, current)
        else:
            age = time.monotonic() + self.clock_offset - current.at / 1e6
            self._rewrite_at[one.source] = time.monotonic() + self.layout.kept / 3 - age

    def wait_until_readable(self, source: SourceKey) -> None:
        number = self._unsourced.pop(source, None)
        if number is not None:
            self._wait_until_sourced(self.layout.source_subject(source, REC), number)

    def _wait_until_sourced(self, subject: str, number: int) -> None:
        """Wait until the record is in the stream of events, so that later events follow it."""
        until = time.monotonic() + _SOURCING_TIMEOUT
        while time.monotonic() < until:
            found = self._last(self.layout.events, subject)
            if found is not None and found.sourced >= number:
                return
            time.sleep(0.01)
        LOG.warning("the stream %s lags behind %s", self.layout.events, self.layout.sources)

    def _write(self, one: Announced, current: StoredMessage | None, renewal: bool = False) -> int:
        headers = {TTL: seconds(self.layout.kept), SOURCE_TTL: f"{one.ttl:g}", **({RENEWAL: "1"} if renewal else {})}
        last = 0 if current is None else current.sequence
        number = self._store(self.layout.source_subject(one.source, REC), one.record, headers, last)
        self._rewrite_at[one.source] = time.monotonic() + self.layout.kept / 3
        return number

    # --- renewing ----------------------------------------------------------------------------------------------

    def renew(self, one: Announced) -> bool:
        try:
            renewed = all(self._renew(one, part) for part in (WARN, LIVE))
            if renewed and time.monotonic() >= self._rewrite_at.get(one.source, math.inf):
                self._refresh_record(one)
            return renewed
        except Unavailable:
            if self.connection is None or not self.connection.up:
                raise
            # connected, so the stream may be deleted
            self.clock_offset = ensure_streams(self._api, self.layout).clock_offset
            self._establish(one)
            return True

    def _renew(self, one: Announced, part: str) -> bool:
        """Renew once; False: the lease has expired, or the source was withdrawn."""
        for _ in range(_TRIES):
            with contextlib.suppress(ExpectationFailed):
                self._store_renewal(one, part, timeout=renew_every(one.ttl))
                return True
            found = self._fetch_latest(one.source, part)
            if found is None or _replaced_marker(found):
                return False
        return True  # other processes keep renewing it

    def _store_renewal(self, one: Announced, part: str, timeout: float | None = None, marker: int = 0) -> None:
        source, ttl = one.source, one.ttl
        headers = {TTL: seconds(suspect_after(ttl) if part == WARN else max(offline_after(ttl), _LEAST_TTL + 0.5))}
        if marker:
            headers[REPLACED_MARKER] = str(marker)
        last = self.last_sequences.get((source, part), 0)
        self.last_sequences[source, part] = self._store(
            self.layout.source_subject(source, part), b"", headers, last, timeout
        )

    def _refresh_record(self, one: Announced) -> None:
        """Rewrite the record before its own TTL ends, marked as no change."""
        current = self._record(one.source)
        if current is None or WITHDRAWN in current.headers or MARKER_REASON in current.headers:
            return
        self._rewrite_at[one.source] = time.monotonic() + self.layout.kept / 3
        with contextlib.suppress(ExpectationFailed):
            self._write(Announced(one.source, current.payload, one.ttl), current, renewal=True)

    def recover(self, one: Announced) -> DiscoveryEventKind | None:
        current = self._record(one.source)
        if current is not None and WITHDRAWN in current.headers:
            raise LeaseWithdrawn
        marks = {part: _replaced_marker(self._fetch_latest(one.source, part)) for part in (WARN, LIVE)}
        if current is not None and MARKER_REASON not in current.headers and 0 < max(marks.values()) < current.sequence:
            for part in (WARN, LIVE):  # another process has written the record again
                with contextlib.suppress(ExpectationFailed):
                    self._store_renewal(one, part)
            return None
        self._establish(one, keep_foreign=True)
        return None if current is None else state_by_markers(0, marks[WARN], marks[LIVE])

    # --- withdrawing -------------------------------------------------------------------------------------------

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        subject = self.layout.source_subject(source, REC)
        ended = self._write_withdrawn(subject, record)
        for part in (WARN, LIVE):  # a later renewal comes from a process that announces it again
            purged = {"filter": self.layout.source_subject(source, part), "seq": ended}
            self._api.request(f"STREAM.PURGE.{self.layout.sources}", purged)
        self._wait_until_sourced(subject, ended)

    def _write_withdrawn(self, subject: str, record: bytes) -> int:
        headers = {TTL: seconds(self.layout.kept), WITHDRAWN: "1"}
        for _ in range(_TRIES):
            current = self._last(self.layout.sources, subject)
            if current is not None and current.payload == record and WITHDRAWN in current.headers:
                return current.sequence
            with contextlib.suppress(ExpectationFailed):
                return self._store(subject, record, headers, 0 if current is None else current.sequence)
        raise Unavailable(f"{subject!r} changes all the time")


def _replaced_marker(found: StoredMessage | None) -> int:
    """Sequence of the marker that a message is, or replaced; 0 = none."""
    if found is None:
        return 0
    if MARKER_REASON in found.headers:
        return found.sequence
    number = found.headers.get(REPLACED_MARKER, "")
    return int(number) if is_sequence(number) else 0


def _matches(current: StoredMessage | None, one: Announced) -> bool:
    if current is None or WITHDRAWN in current.headers or MARKER_REASON in current.headers:
        return False
    return current.payload == one.record and current.headers.get(SOURCE_TTL) == f"{one.ttl:g}"
