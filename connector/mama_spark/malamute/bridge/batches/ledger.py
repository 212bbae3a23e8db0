"""Markers in a durable stream, and the message ids of another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.batch_ledger import Marker, StoredIds
from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.contracts.record_log import Bounds, Records

from ..frames import MAX_TOPIC
from ..log_queries import LogQueries
from ..logs import MalamuteLog
from ..records import ID_HEADER
from ..settings import MalamuteSettings
from .marker_stream import MarkerStream

#: Seconds after which the broker is asked again how long it recognises ids.
_FRESH = 1.0


class MalamuteBatchLedger:
    """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`. All messages go to the stream of the settings.

    :param markers: name of the stream of the markers
    :param timeout: seconds that nobody may answer before :class:`~mama_spark.contracts.errors.Unavailable`
    """

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
        self._window, self._window_until = 0.0, 0.0

    def __repr__(self) -> str:
        return f"<MalamuteBatchLedger {self._name}, {self._queries!r}>"

    def open(self) -> None:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`."""
        with self._lock:
            self._queries.open()
            try:
                self._opened()
                self._markers.open()
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._markers.close()
        self._queries.close()

    def streams_of(self, topics: pa.Array) -> list[str | None]:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`. The stream takes every topic."""
        with self._lock:
            self._opened()
        return [self._name if len(topic.encode()) <= MAX_TOPIC else None for topic in topics.to_pylist()]

    def _opened(self) -> MalamuteLog:
        if self._log is None:
            try:
                self._log = MalamuteLog(self._queries, self._name)
            except ConfigError as e:
                raise ConfigError(f"option exactlyOnce needs a durable stream, which it can read back: {e}") from e
        return self._log

    def duplicate_window(self, stream: str) -> float:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`. 0 while the broker does not answer."""
        if time.monotonic() > self._window_until:
            try:
                with self._lock:
                    self._window = self._opened().certain_window()
            except Unavailable:
                self._window = 0.0
            self._window_until = time.monotonic() + _FRESH
        return self._window

    # --- markers -------------------------------------------------------------------------------------------------

    def marker(self, key: str) -> Marker:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`."""
        with self._lock:
            return self._markers.get(key)

    def look(self, stream: str, keys: Sequence[str]) -> tuple[list[Marker], Bounds]:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`."""
        with self._lock:
            return [self._markers.get(key) for key in keys], self._opened().bounds()

    def release_marker(self, key: str, value: bytes, revision: int) -> None:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`."""
        with suppress(MamaError):
            self.set_marker(key, value, revision)

    def set_marker(self, key: str, value: bytes, revision: int) -> int:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`."""
        with self._lock:
            return self._markers.set(key, value, revision)

    # --- reading back --------------------------------------------------------------------------------------------

    def bounds(self, stream: str) -> Bounds:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`."""
        with self._lock:
            return self._opened().bounds()

    def read(self, stream: str, after: int, up_to: int, prefix: bytes, *, records: bool = False) -> Iterator[StoredIds]:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`. Over a connection of its own."""
        queries = LogQueries(self._settings, self._timeout)
        queries.open()
        try:
            log = MalamuteLog(queries, self._name)
            if records:
                yield from (_with_prefix(some, prefix) for some in log.read(after, up_to))
                return
            for sequences, ids in log.ids(after, up_to, prefix[:255]):
                wanted = [i for i, one in enumerate(ids) if one.startswith(prefix)] if len(prefix) > 255 else None
                if wanted is not None:
                    sequences, ids = sequences[wanted], [ids[i] for i in wanted]
                yield StoredIds(sequences, ids, None, len(ids))
        finally:
            queries.close()

    def missing(self, stream: str, after: int, up_to: int) -> list[tuple[int, int]]:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`."""
        with self._lock:
            return self._opened().missing(after, up_to)


def _with_prefix(records: Records, prefix: bytes) -> StoredIds:
    """The messages whose id begins with this."""
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
