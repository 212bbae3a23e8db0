"""Answers to log queries about a durable stream, and the list of stored streams."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.malamute.protocol.log_query import FETCH_BYTES, LOOK

from ..log_queries import COUNTED, FEW_SUBJECTS, SEARCH_BYTES, Row, Rows, limits
from .settings import DurableSettings
from .store import MAX_REMOVED, MessageStore
from .store_reader import SUFFIX, StoreReader, store_path

_ROWS = 1024
#: Most bytes of the messages that are counted for one query.
_COUNTED_BYTES = 64 * 1024 * 1024
_SHORTENED = re.compile(r".{100}-[0-9a-f]{32}")  #: the file of a stream with a long name


class DurableQueries:
    """The messages of one SQLite file."""

    def __init__(self, store: MessageStore, settings: DurableSettings) -> None:
        self._store, self._settings = store, settings
        self.name, self.identity = store.name, store.identity
        self.bounds, self.sequence_at = store.bounds, store.sequence_at

    def limits(self) -> list[bytes]:
        return limits(self._settings.max_age, self._settings.max_bytes, self._settings.max_messages)

    def missing(self, after: int, up_to: int) -> tuple[list[tuple[int, int]], int]:
        """Ranges of removed messages, both ends inclusive, and the last sequence examined. All sequences before the
        first message are one range."""
        store, (first, last) = self._store, self.bounds()
        ranges = []
        if after < min(first - 1, up_to):
            ranges.append((after + 1, min(first - 1, up_to)))
            after = ranges[0][1]
        countable = _COUNTED_BYTES // self._bytes_each(first, last)  # counting reads their pages
        reached = min(up_to, after + max(LOOK, min(COUNTED, countable)))
        if not store.complete(after, reached):
            reached = min(up_to, after + LOOK)
            ranges += store.missing(after, reached)
        return ranges, reached

    def _bytes_each(self, first: int, last: int) -> int:
        stored_bytes: int = self._store.stored_bytes
        return max(1, stored_bytes // max(1, last + 1 - first))

    def trim(self, before: int) -> None:
        self._store.trim(min(before, self.bounds()[0] + MAX_REMOVED))

    def scan(self, after: int, up_to: int, rows: int, max_bytes: int) -> Rows:
        return _scan(self._store.read, after, up_to, rows, max_bytes)

    def last_of_each(self, after: int, up_to: int, rows: int, max_bytes: int) -> Rows:
        return _scan(self._store.read_ttl, after, up_to, rows, max_bytes)

    def last_of(self, subjects: Sequence[bytes], after: int, up_to: int) -> list[Row]:
        return self._store.ttl_of(subjects, after, up_to)

    def subjects(self, after: int, up_to: int) -> Rows:
        some = self._store.subjects(after, up_to, LOOK)
        yield some, some[-1][0] if len(some) == LOOK else up_to

    def ids(self, after: int, up_to: int, rows: int, prefix: bytes) -> tuple[Iterable[Row], int]:
        first, last = self.bounds()
        after = max(after, first - 1)
        # ids stand behind the contents: these are read, too
        reached = min(up_to, after + max(FEW_SUBJECTS, min(rows, LOOK, SEARCH_BYTES // self._bytes_each(first, last))))
        return self._store.ids_of(after, reached, prefix), reached


def _scan(read: Callable[[int, int, int, int], list[Row]], after: int, up_to: int, rows: int, max_bytes: int) -> Rows:
    while after < up_to and rows > 0 and max_bytes > 0:
        some = read(after, up_to, min(rows, _ROWS), min(max_bytes, FETCH_BYTES))
        after = some[-1][0] if some else up_to
        rows, max_bytes = rows - len(some), max_bytes - sum(len(row[4]) for row in some)
        yield some, after


def stored_streams(settings: Mapping[str, Any]) -> list[bytes]:
    """Names of the streams in the folder of these settings."""
    folder = Path(DurableSettings.parse(b"", settings).folder)
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        stem = path.name[: -len(SUFFIX)]
        name = b"" if stem == "%" else unquote_to_bytes(stem)
        if _SHORTENED.fullmatch(stem):
            try:
                store = StoreReader(path)
            except ConfigError:
                continue
            name = store.name
            store.close()
        found.append(name)
    return found


def is_stored(name: bytes, settings: Mapping[str, Any]) -> bool:
    try:
        return store_path(DurableSettings.parse(name, settings).folder, name).exists()
    except (MamaError, OSError):
        return False
