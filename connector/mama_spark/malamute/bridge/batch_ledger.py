"""Exactly once: markers in a durable stream, and the message ids of another one.

Markers are messages with a time to live, each stored only if it replaces the one that was read. The broker keeps and
finds the last message of such a subject also when retention has removed it (:mod:`mama_spark.malamute.protocol.ttl`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.batch_ledger import MARKERS_KEPT, Marker, MarkerChanged, StoredIds
from mama_spark.contracts.errors import ConfigError, MamaError, PublishError, Rejected, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Bounds, Records
from mama_spark.malamute.protocol.commands import MAX_STRING
from mama_spark.malamute.protocol.ttl import EXPECTED, MARKER, TTL
from mama_spark.options.window_config import WindowConfig
from mama_spark.publishing.window.blocking_sender import BlockingSender

from .bridge import MalamuteBridge
from .log_queries import LogQueries
from .logs import MalamuteLog
from .records import ID_HEADER
from .settings import MalamuteSettings


class MarkerStream:
    """Markers in one stream, made when missing; the broker's configuration must say that it is durable. For one thread
    at a time. Without an answer for ``timeout`` seconds: :class:`~mama_spark.contracts.errors.Unavailable`."""

    def __init__(self, queries: LogQueries, settings: MalamuteSettings, stream: str, timeout: float) -> None:
        self._queries, self._name, self._timeout = queries, stream, timeout
        self._settings = replace(settings, stream=stream, dedup=False, resend=False, acks=True, dead_letters=False)
        self._bridge: MalamuteBridge | None = None
        self._log: MalamuteLog | None = None

    def open(self) -> None:
        """Open the stream to write and to read markers.

        :raises ConfigError: the stream is not durable
        """
        self._writer()
        try:
            self._log = MalamuteLog(self._queries, self._name)
        except ConfigError as e:
            raise ConfigError(
                f"option exactlyOnce keeps its markers in the stream {self._name!r}, which must be durable: {e}. Give "
                f'it the engine in the configuration of the broker: [[stream]] pattern = "^{self._name}$", engine = '
                '"durable" or "jetstream"; or name another stream (option batchesStream)'
            ) from e

    def get(self, key: str) -> Marker:
        assert self._log is not None, "not open"
        self._writer()  # a broker that was restarted may not know of the stream before a client opens it
        found = self._log.last_of(key)
        if found is None:
            return Marker(0, b"")
        assert found.headers is not None, "a marker has a time to live"
        if MARKER.decode() in dict(found.headers[0].as_py() or ()):  # it has expired
            return Marker(0, b"")
        return Marker(int(found.sequences[0]), bytes(found.payloads[0].as_py()))

    def set(self, key: str, value: bytes, revision: int) -> int:
        """Store a marker; if the answer is lost, read it, and store it again if it has not changed."""
        until = time.monotonic() + self._timeout
        while True:
            try:
                return self._store(key, value, revision)
            except Rejected as e:
                raise ConfigError(f"option exactlyOnce: the marker {key} is refused: {e}") from e
            except (PublishError, Unavailable) as e:
                self.close()
                if time.monotonic() > until:
                    raise Unavailable(f"the marker {key} is not stored: {e}") from e
            now = self.get(key)
            if now.revision != revision:
                if now.value == value:
                    return now.revision
                raise MarkerChanged(f"the marker {key} has changed")

    def _store(self, key: str, value: bytes, revision: int) -> int:
        headers = {TTL.decode(): [str(MARKERS_KEPT * 1000)], EXPECTED.decode(): [str(revision)]}
        batch = MessageBatch.of([key], [value], [headers])
        bridge = self._writer()
        policy = WindowConfig(max_in_flight=1, wait_timeout=self._timeout, resend_uncertain=False)
        stored = BlockingSender(bridge, policy).store(batch, self._timeout)
        if stored.duplicate[0]:
            raise MarkerChanged(f"the marker {key} has changed")
        return int(stored.sequence[0])

    def _writer(self) -> MalamuteBridge:
        if self._bridge is None:
            bridge = MalamuteBridge(self._settings)
            bridge.open()
            self._bridge = bridge
        return self._bridge

    def close(self) -> None:
        """Close the bridge; never raises; a later use opens another one."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            with suppress(MamaError):
                bridge.close()


class MalamuteBatchLedger:
    """The batch ledger of a broker, with ``markers`` in the stream of that name; all messages go to the stream of the
    settings. Without an answer for ``timeout`` seconds: :class:`~mama_spark.contracts.errors.Unavailable`."""

    def __init__(self, settings: MalamuteSettings, markers: str, timeout: float) -> None:
        if settings.stream is None:
            raise ConfigError(
                "option exactlyOnce needs one stream for all rows: give the option stream, or mlp://host:port/stream"
            )
        self._settings, self._timeout = settings, timeout
        self._name = settings.stream
        self._queries = LogQueries(settings, timeout)
        self._markers = MarkerStream(self._queries, settings, markers, timeout)
        self._lock = threading.Lock()
        self._log: MalamuteLog | None = None

    def open(self) -> None:
        with self._lock:
            self._queries.open()
            try:
                self._opened()
                self._markers.open()
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._markers.close()
        self._queries.close()

    def streams_of(self, topics: pa.Array) -> list[str | None]:
        """The stream takes every topic."""
        with self._lock:
            self._opened()
        return [self._name if len(topic.encode()) <= MAX_STRING else None for topic in topics.to_pylist()]

    def _opened(self) -> MalamuteLog:
        if self._log is None:
            try:
                self._log = MalamuteLog(self._queries, self._name)
            except ConfigError as e:
                raise ConfigError(f"option exactlyOnce needs a durable stream, which it can read back: {e}") from e
        return self._log

    def marker(self, key: str) -> Marker:
        with self._lock:
            return self._markers.get(key)

    def markers_and_bounds(self, stream: str, keys: Sequence[str]) -> tuple[list[Marker], Bounds]:
        with self._lock:
            return [self._markers.get(key) for key in keys], self._opened().bounds()

    def markers_below(self, key: str) -> list[Marker]:
        """Empty: its bridge names no servers."""
        return []

    def why_unfenced(self, stream: str, server: str) -> str:
        return ""

    def release_marker(self, key: str, value: bytes, revision: int) -> None:
        with suppress(MamaError):
            self.set_marker(key, value, revision)

    def set_marker(self, key: str, value: bytes, revision: int) -> int:
        with self._lock:
            return self._markers.set(key, value, revision)

    def bounds(self, stream: str) -> Bounds:
        with self._lock:
            return self._opened().bounds()

    def decided_last(self, stream: str, patience: float | None = None) -> int:
        """A broker answers behind what it has taken."""
        return self.bounds(stream).last

    def read(self, stream: str, after: int, up_to: int, prefix: bytes, *, records: bool = False) -> Iterator[StoredIds]:
        """Over a connection of its own."""
        queries = LogQueries(self._settings, self._timeout)
        queries.open()
        try:
            log = MalamuteLog(queries, self._name)
            if records:
                yield from (_with_prefix(some, prefix) for some in log.read(after, up_to))
                return
            for sequences, ids in log.ids(after, up_to, prefix[:MAX_STRING]):
                if len(prefix) > MAX_STRING:
                    wanted = [i for i, one in enumerate(ids) if one.startswith(prefix)]
                    sequences, ids = sequences[wanted], [ids[i] for i in wanted]
                yield StoredIds(sequences, ids, None, len(ids))
        finally:
            queries.close()

    def missing(self, stream: str, after: int, up_to: int) -> list[tuple[int, int]]:
        with self._lock:
            return self._opened().missing(after, up_to)


def _with_prefix(records: Records, prefix: bytes) -> StoredIds:
    if records.headers is None:
        return StoredIds(np.empty(0, np.int64), [], None, len(records))
    first = pc.map_lookup(records.headers, pa.scalar(ID_HEADER.decode()), "first")
    texts = pc.list_element(first.fill_null([""]), 0)
    rows = np.flatnonzero(pc.starts_with(texts, prefix.decode()).to_numpy(zero_copy_only=False))
    at = pa.array(rows)
    taken = Records(
        records.sequences[rows], records.times[rows], records.topics.take(at), records.payloads.take(at),
        records.headers.take(at),
    )  # fmt: skip
    ids = [text.encode() for text in texts.take(at).to_pylist()]
    return StoredIds(records.sequences[rows], ids, taken, len(records))
