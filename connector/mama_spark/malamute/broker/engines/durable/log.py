"""Reads durable streams as record logs, from the folder of a broker.

For programs on the broker's machine, and for stores without a broker. Reading works with and without a running broker;
:meth:`DurableLog.append` and :meth:`DurableLog.trim` need exclusive access, so they fail while a broker has the store
open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from mama_spark.contracts.errors import ConfigError, OutOfResources, PublishError
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Bounds, Records
from mama_spark.malamute.protocol.extensions import Extension, StoreOutcome

from ..frame_columns import unpack_headers
from ..records import LogMessage, check_topic, records, topic_filter
from .engine import DurableEngine
from .log_queries import limits
from .settings import DurableSettings
from .store import MessageStore
from .store_reader import SUFFIX, Row, StoreReader, store_path

ROWS = 4096
OCTETS = 16 * 1024 * 1024  #: approximate size of a batch
_LARGEST = 2**63 - 1


class DurableLogs:
    """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`.

    :param settings: as those of the engine (:class:`~.settings.DurableSettings`); retention and deduplication apply to
        records appended here
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._options = DurableSettings.parse(b"", self._settings)
        self._open: dict[str, DurableLog] = {}

    def open(self) -> None:
        if not Path(self._options.folder).is_dir():
            raise ConfigError(f"there is no folder {self._options.folder!r} with streams")

    def names(self, topics: Sequence[str]) -> list[str]:
        """All streams whose names are UTF-8: a stream may have any topic."""
        found = []
        for path in Path(self._options.folder).glob(f"*{SUFFIX}"):
            with closing(StoreReader(path)) as store:
                try:
                    found.append(store.name.decode())
                except UnicodeDecodeError:
                    continue
        return sorted(found)

    def log(self, name: str) -> DurableLog:
        log = self._open.get(name)
        if log is None:
            log = self._open[name] = DurableLog(name, self._settings)
        return log

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


class DurableLog:
    """See :class:`~mama_spark.contracts.record_log.RecordLog`.

    :raises ConfigError: there is no store of this stream, or it is damaged
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._stream = name.encode()
        self._settings = dict(settings)
        self._options = DurableSettings.parse(self._stream, self._settings)
        self._path = store_path(self._options.folder, self._stream)
        self._store = StoreReader(self._path)
        self._file = self._path.stat()

    def __repr__(self) -> str:
        return f"<DurableLog {self._path}>"

    @property
    def name(self) -> str:
        return self._name

    def close(self) -> None:
        self._store.close()

    def _reader(self) -> StoreReader:
        """The reader; opened again if its file was deleted or replaced."""
        try:
            file = self._path.stat()
        except OSError as e:
            raise ConfigError(f"the store {self._path} is gone: {e}") from e
        if (file.st_dev, file.st_ino) != (self._file.st_dev, self._file.st_ino):
            raise ConfigError(f"{self._path} is another store by now")
        return self._store

    def bounds(self) -> Bounds:
        store = self._reader()
        return Bounds(*store.bounds(), store.identity)

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        after, up_to = max(0, after), min(up_to, self._reader().bounds()[1])
        wanted = topic_filter(topics)
        found: list[LogMessage] = []
        while after < up_to:
            rows = self._reader().read(after, up_to, ROWS, OCTETS)
            if not rows:
                break
            after = rows[-1][0]
            found += [_message(row) for row in rows if wanted(row[3])]
            if len(found) >= ROWS // 2 or (found and sum(len(message.payload) for message in found) >= OCTETS):
                yield records(found)
                found = []
        if found:
            yield records(found)

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        return self._reader().missing(after, up_to)

    def at(self, time: int) -> int:
        return self._reader().at(max(-_LARGEST, min(time, _LARGEST)))

    def append(self, batch: MessageBatch) -> int:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`; a message with a known id is not stored again.

        :raises ConfigError: a broker has the store
        """
        self._reader()
        engine = DurableEngine(self._stream, self._settings)
        engine.start()
        try:
            refused = self._accept(engine, batch)
            runs = engine.sync(self)
            engine.flush()
            acks = runs if isinstance(runs, tuple) else runs()
            if any(run.outcome is StoreOutcome.REFUSED for run in acks):
                raise OutOfResources(f"the store {self._path} has no room")
            if refused is not None:
                raise refused
            return acks[-1].last if acks else engine.store.last
        finally:
            engine.close()

    def _accept(self, engine: DurableEngine, batch: MessageBatch) -> PublishError | None:
        """Accept row by row; returns the error of the first bad row."""
        headers = [None] * len(batch) if batch.headers is None else batch.headers.to_pylist()
        ids = [""] * len(batch) if batch.ids is None else batch.ids.to_pylist()
        columns = zip(batch.topics.to_pylist(), batch.payloads.to_pylist(), headers, ids, strict=True)
        for topic, payload, fields, message_id in columns:
            try:
                subject = check_topic(topic)
            except PublishError as e:
                return e
            flat = tuple((name.encode(), value.encode()) for name, values in fields or () for value in values)
            engine.accept(self, b"", subject, [payload], Extension(message_id=message_id.encode(), headers=flat))
        return None

    def trim(self, before: int) -> None:
        """:raises ConfigError: a broker has the store"""
        self._reader()
        with closing(MessageStore(self._path, self._stream)) as store:
            while store.first < min(before, store.last + 1):
                store.trim(before)

    def require_topics(self, topics: Sequence[str]) -> None:
        """Nothing: the store takes all."""

    def warnings(self, topics: Sequence[str] = ()) -> list[str]:
        """Warnings by the settings of this reader; those of a broker may differ."""
        return [f"stream {self._name!r} removes records {text}" for text in limits(self._options)]

    def progress(self, name: str, up_to: int, topics: Sequence[str] = ()) -> None:
        """Does nothing: a folder cannot show the progress of readers."""


def _message(row: Row) -> LogMessage:
    return LogMessage(row[0], row[1], row[3], row[4], unpack_headers(row[7]))
