"""Reads the messages of one stream from its SQLite file, which another process may be writing."""

from __future__ import annotations

import sqlite3
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable

APPLICATION_ID = 0x4D4C4D31  # "MLM1"
SUFFIX = ".stream"
MIN_SQLITE = (3, 32)

Row = tuple[Any, ...]
_COLUMNS = "sequence, time, sender, subject, content, lengths, id, headers, origin"


class StoreFull(Unavailable):
    """The disk is full or failed temporarily: the batch is not stored, and the store is unchanged."""


def now_us() -> int:
    # Time of day: stamps messages; never falls. Retention by age, as told.
    return clock.time_ns() // 1000


def store_path(folder: str | Path, stream: bytes) -> Path:
    """The file of a stream: its name quoted as in a URL, shortened with a hash if it is too long for a file name."""
    name = quote(stream, safe="") or "%"
    if len(name) > 150:
        name = f"{name[:100]}-{blake2b(stream, digest_size=16).hexdigest()}"
    return Path(folder) / f"{name}{SUFFIX}"


class StoreReader:
    """A store that another process may be writing. Not thread-safe.

    :raises ConfigError: the file is missing, foreign or damaged; the text names it
    """

    def __init__(self, path: Path) -> None:
        if sqlite3.sqlite_version_info < MIN_SQLITE:  # statements of many rows, and window functions
            text = ".".join(map(str, MIN_SQLITE))
            raise ConfigError(
                f"durable streams need SQLite {text} or later, and this Python has {sqlite3.sqlite_version}"
            )
        self.path = path
        self._connection: sqlite3.Connection | None = self._connect()
        try:
            with self._translated():
                (found,) = self._db.execute("PRAGMA application_id").fetchone()
                self._check(found)
                self.name, self.identity = self._state("name, identity")
        except BaseException:
            self._db.close()
            raise

    @property
    def _db(self) -> sqlite3.Connection:
        """The connection, which a writer closes in between (:meth:`.store.MessageStore.rest`)."""
        if self._connection is None:
            self._connection = self._reopen()
        return self._connection

    def _reopen(self) -> sqlite3.Connection:
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists():
            raise ConfigError(f"there is no store {self.path}")
        with self._translated():
            return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", 10.0, isolation_level=None, uri=True)

    def _check(self, application_id: int) -> None:
        if application_id != APPLICATION_ID:
            raise ConfigError(f"{self.path} is no stream store of this version")

    def _state(self, columns: str) -> Row:
        row: Row | None = self._db.execute(f"SELECT {columns} FROM state").fetchone()
        if row is None:
            raise ConfigError(f"{self.path} is damaged: it has no state")
        return row

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as e:
            raise self._translation(e) from e

    def _translation(self, error: sqlite3.DatabaseError) -> MamaError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY):
            return StoreFull(f"{self.path}: {error}")
        return ConfigError(f"the store {self.path} cannot be used: {error}")

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._db.close()

    def bounds(self) -> tuple[int, int]:
        """Sequences of the first and the last message; first = last + 1 if there is none."""
        with self._translated():
            first, last = self._db.execute(
                "SELECT (SELECT min(sequence) FROM messages),"
                " max((SELECT last FROM state), ifnull((SELECT max(sequence) FROM messages), 0))"
            ).fetchone()
        return (last + 1 if first is None else first), last

    def read(self, after: int, up_to: int, rows: int, max_bytes: int) -> list[Row]:
        """The first rows with ``after < sequence <= up_to``: at most ``rows``, or until they have ``max_bytes``."""
        with self._translated():
            return self._read("messages", after, up_to, rows, max_bytes)

    def _read(self, table: str, after: int, up_to: int, rows: int, max_bytes: int) -> list[Row]:
        found: list[Row] = []
        cursor = self._db.execute(
            f"SELECT {_COLUMNS} FROM {table} WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?",
            (max(0, after), up_to, rows),
        )
        with closing(cursor):
            for row in cursor:
                found.append(row)
                max_bytes -= len(row[4])
                if max_bytes <= 0:
                    break
        return found

    def subjects(self, after: int, up_to: int, rows: int) -> list[tuple[int, bytes]]:
        """Sequence and subject of the first ``rows`` messages in the range. Their contents are not read."""
        with self._translated():
            return self._db.execute(
                "SELECT sequence, subject FROM messages WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?",
                (max(0, after), up_to, rows),
            ).fetchall()

    def ids_of(self, after: int, up_to: int, prefix: bytes) -> list[tuple[int, bytes, bytes]]:
        """Sequence, id and subject of the messages in the range whose id begins with ``prefix``."""
        with self._translated():
            return self._db.execute(
                "SELECT sequence, id, subject FROM messages WHERE sequence > ? AND sequence <= ?"
                " AND substr(id, 1, ?) = ? ORDER BY sequence",
                (max(0, after), up_to, len(prefix), prefix),
            ).fetchall()

    def ttl_of(self, subjects: Sequence[bytes], after: int, up_to: int) -> list[Row]:
        """The rows of :meth:`read_ttl` of these subjects, which are found without looking at others."""
        with self._translated():
            if not self._has_ttl_table():
                return []
            marks = ", ".join("?" * len(subjects))
            return self._db.execute(
                f"SELECT {_COLUMNS} FROM standing WHERE subject IN ({marks}) AND sequence > ? AND sequence <= ?"
                " ORDER BY sequence",
                (*subjects, max(0, after), up_to),
            ).fetchall()

    def read_ttl(self, after: int, up_to: int, rows: int, max_bytes: int) -> list[Row]:
        """Rows like those of :meth:`read`, of the last message of each subject that ever had a time to live
        (:mod:`mama_spark.malamute.protocol.ttl`), including messages that ended it, unless retention removed them."""
        with self._translated():
            return self._read("standing", after, up_to, rows, max_bytes) if self._has_ttl_table() else []

    def _has_ttl_table(self) -> bool:
        return self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'standing'").fetchone() is not None

    def complete(self, after: int, up_to: int) -> bool:
        """Whether no message is missing; counting is ten times as fast as searching for gaps."""
        with self._translated():
            (there,) = self._db.execute(
                "SELECT count(*) FROM messages WHERE sequence > ? AND sequence <= ?", (after, up_to)
            ).fetchone()
        return bool(there == up_to - after)

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        """Ranges, both ends inclusive, of removed messages."""
        low = max(0, after)
        high = min(up_to, self.bounds()[1])
        if high <= low or self.complete(low, high):
            return []
        with self._translated():
            found = self._db.execute(
                "SELECT before + 1, sequence - 1 FROM (SELECT sequence, lag(sequence, 1, :low) OVER (ORDER BY sequence)"
                " AS before FROM (SELECT sequence FROM messages WHERE sequence > :low AND sequence <= :high"
                " UNION ALL SELECT :high + 1)) WHERE sequence - before > 1",
                {"low": low, "high": high},
            ).fetchall()
        return [(int(start), int(end)) for start, end in found]

    def sequence_at(self, time: int) -> int:
        """Sequence of the first message of this time or later; last + 1 if there is none."""
        low, last = self.bounds()
        high = last + 1
        with self._translated():
            while low < high:  # times never decrease
                middle = (low + high) // 2
                row = self._db.execute(
                    "SELECT sequence, time FROM messages WHERE sequence >= ? ORDER BY sequence LIMIT 1", (middle,)
                ).fetchone()
                if row is None or row[1] >= time:
                    high = middle
                else:
                    low = row[0] + 1
            row = self._db.execute("SELECT min(sequence) FROM messages WHERE sequence >= ?", (low,)).fetchone()
        return last + 1 if row[0] is None else int(row[0])
