"""The file of a source of market data: its position in the log, and the last values of its topics."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from mama_spark.contracts.errors import ConfigError
from mama_spark.mama.messages.omnm import BadMessage

from ...recording.log_position import LogPosition
from .market_data_source import PublishedTopic, StoredTopic

_SCHEMA = """
CREATE TABLE IF NOT EXISTS source (name TEXT PRIMARY KEY, sender INTEGER, identity TEXT, served INTEGER);
CREATE TABLE IF NOT EXISTS stored (served INTEGER, time INTEGER, wanted INTEGER);
CREATE TABLE IF NOT EXISTS topics (symbol TEXT PRIMARY KEY, number INTEGER, image BLOB) WITHOUT ROWID;
"""


class SourceState:
    """Made open; one thread uses it at a time.

    :param name: name of the source; a file belongs to one
    :ivar sender: the same for as long as the file exists
    :ivar at: position up to which subscribers have surely taken the log; an empty identity: nothing was served yet
    :ivar wanted: subscriptions to its topics, one for each subscriber
    :raises ConfigError: the file is something else, or of another source, or another process has it
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(_SCHEMA)
            self._db.execute("BEGIN IMMEDIATE")
            more = "(SELECT {} FROM stored WHERE stored.served = source.served)"
            found = self._db.execute(
                f"SELECT name, sender, identity, served, {more.format('time')}, {more.format('wanted')} FROM source"
            ).fetchone()
            if found is None:
                found = (name, secrets.randbits(62) | 1, "", 0, None, 0)
                self._db.execute("INSERT INTO source VALUES (?, ?, ?, ?)", found[:4])
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError) as e:
            raise ConfigError(f"{path}: {e}; another process may have it, or it is no state of a source") from e
        if found[0] != name:
            self._db.close()
            raise ConfigError(f"{path} is the state of the source {found[0]!r}; give {name!r} another file")
        self.sender, self.wanted = int(found[1]), int(found[5] or 0)
        self.at = LogPosition(str(found[2]), int(found[3]), found[4])

    def topics(self) -> list[PublishedTopic]:
        """The saved topics, with their images.

        :raises ConfigError: the file holds something else
        """
        try:
            rows = self._db.execute("SELECT symbol, number, image FROM topics").fetchall()
            return [PublishedTopic.of(symbol, number, image) for symbol, number, image in rows]
        except (sqlite3.Error, BadMessage) as e:
            raise ConfigError(f"{self._path}: {e}; remove it to begin anew") from e

    def save(self, at: LogPosition, topics: Iterable[StoredTopic], wanted: int) -> None:
        """All of it, or nothing.

        :raises ConfigError: the file cannot be written
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO topics VALUES (?, ?, ?)", topics)
            self._db.execute("UPDATE source SET identity = ?, served = ?", (at.identity, at.served))
            self._db.execute("DELETE FROM stored")
            self._db.execute("INSERT INTO stored VALUES (?, ?, ?)", (at.served, at.time, wanted))
            self._db.execute("COMMIT")
        except sqlite3.Error as e:
            raise ConfigError(f"{self._path}: {e}") from e
        self.at, self.wanted = at, wanted

    def close(self) -> None:
        self._db.close()
