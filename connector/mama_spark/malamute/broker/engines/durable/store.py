"""Writes the messages of one stream to its SQLite file.

Why SQLite: it is part of Python, and common tools can read its files. LMDB and RocksDB append three to six times as
fast (batches of 500, one thread), but SQLite is faster than one Python thread forwards messages, releases the GIL while
it writes, needs no size in advance, and reports foreign or truncated files, where a memory map would crash the broker.

A batch is one transaction in a write-ahead log, with statements that insert many rows: each statement releases the GIL
once, and acquiring it from a busy thread costs more than an insert. With ``synchronous = normal`` the operating system
has the batch when :meth:`MessageStore.append` returns: it survives a crash of the process; a power failure may lose the
last batches, but does not damage the store. With ``full`` it is on the disk.

A transaction writes every page it changes, so the stored state (last sequence and time, bytes) is updated only now and
then; later messages are counted when a store is opened.

One process at a time writes (it locks a second file, and the lock ends with the process); any number reads, in short
transactions, so that the write-ahead log can be checkpointed.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mama_spark.contracts.errors import ConfigError, MamaError

from .store_lock import StoreLock
from .store_reader import APPLICATION_ID, StoreReader

#: Columns of a row in :meth:`MessageStore.append`; most rows have only the first three or four. Sequence and time
#: follow from the batch. ``origin`` is :class:`~mama_spark.malamute.broker.engines.stored.SubscriptionCursor`'s.
COLUMNS = ("sender", "subject", "content", "id", "lengths", "headers", "origin")
WIDTHS = PLAIN, WITH_IDS, ALL = 3, 4, len(COLUMNS)
#: ``octets`` counts bytes: stores have the column under this name.
_SCHEMA = """
CREATE TABLE messages (sequence INTEGER PRIMARY KEY, time INTEGER NOT NULL, sender BLOB NOT NULL, subject BLOB NOT NULL,
    content BLOB NOT NULL, lengths BLOB, id BLOB, headers BLOB, origin INTEGER);
CREATE TABLE ids (sequence INTEGER PRIMARY KEY, time INTEGER NOT NULL, id BLOB NOT NULL);
CREATE TABLE state (name BLOB NOT NULL, identity TEXT NOT NULL, last INTEGER NOT NULL, last_time INTEGER NOT NULL,
    octets INTEGER NOT NULL);
"""
#: Created on first use: the current message of each subject with a time to live
#: (:mod:`mama_spark.malamute.protocol.ttl`), kept also when retention removes the message.
_TTL_SCHEMA = """
CREATE TABLE standing (subject BLOB PRIMARY KEY, ttl INTEGER NOT NULL, sequence INTEGER NOT NULL, time INTEGER NOT NULL,
    sender BLOB NOT NULL, content BLOB NOT NULL, lengths BLOB, id BLOB, headers BLOB, origin INTEGER);
CREATE UNIQUE INDEX standing_sequence ON standing (sequence);
"""
_SIZE = "length(sender) + length(subject) + length(content) + ifnull(length(id), 0) + ifnull(length(headers), 0)"
_SIZES = (256, 64, 16, 4, 1)  #: possible numbers of rows in one statement


def _insert(rows: int, width: int, one_sender: bool) -> str:
    """The INSERT statement. Binding a value costs as much as storing a column, so values common to all rows are bound
    once: time and sequence (?1, ?2), and often the sender (?3)."""
    first, own, sender = (4, width - 1, "?3, ") if one_sender else (3, width, "")
    lines = []
    for row in range(rows):
        values = ", ".join(f"?{first + row * own + i}" for i in range(own))
        lines.append(f"(?2 + {row}, ?1, {sender}{values})")
    return f"INSERT INTO messages (sequence, time, {', '.join(COLUMNS[:width])}) VALUES {', '.join(lines)}"


_INSERTS = {
    (width, one): [(rows, _insert(rows, width, one)) for rows in _SIZES] for width in WIDTHS for one in (False, True)
}
#: Most messages that retention removes per batch, so that a new limit does not stall the stream.
MAX_REMOVED = 20_000
#: Bytes of a page. Transactions write whole pages: small pages are faster for single messages, large ones for batches.
PAGE = 8192
#: Pages in the write-ahead log at which it is checkpointed.
WAL_PAGES = 2000
#: Messages after which the state is written: at most as many are counted when a store is opened.
STATE_INTERVAL = 8192
#: Between checks of the age of messages.
AGE_INTERVAL_US = 1_000_000
#: Of a message, or it is refused; SQLite's own limit for a row is 10^9.
MAX_BYTES = 900_000_000


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of the stored messages; None = no limit. The newest message is always kept.

    :ivar age_us: since storage
    :ivar max_bytes: largest sum of sender, subject, content, id and headers; the file is larger, and does not shrink
    :ivar ids_span_us: time for which ids are kept, also those of removed messages
    """

    age_us: int | None = None
    max_bytes: int | None = None
    messages: int | None = None
    ids_span_us: int = 0


def make_folder(path: Path) -> None:
    """Make the folder of a store.

    :raises ConfigError: it cannot be made
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"the store {path} cannot be made: {e}") from e


class MessageStore(StoreReader):
    """The only writer of the store of ``stream``, whose name it contains; creates it if missing. Any thread may use it,
    one at a time. ``synchronous``: ``normal`` or ``full``.

    :raises ConfigError: as :class:`StoreReader`; or another process writes it; or it is of another stream
    """

    def __init__(
        self, path: Path, stream: bytes, retention: Retention | None = None, synchronous: str = "normal"
    ) -> None:
        self.stream = stream
        self.retention = retention or Retention()
        self._synchronous = synchronous
        make_folder(path)
        self._lock = StoreLock(path)
        try:
            super().__init__(path)
            with self._translated():
                self._prepare()
        except BaseException:
            self._lock.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        with self._translated():
            db = sqlite3.connect(
                str(self.path), 10.0, isolation_level=None, cached_statements=64, check_same_thread=False
            )
            try:
                if not db.execute("PRAGMA schema_version").fetchone()[0]:
                    self._make(db)
            except BaseException:
                db.close()
                raise
            return db

    def _make(self, db: sqlite3.Connection) -> None:
        """Create the tables in one transaction, so that a process that dies here leaves an empty file.

        With ``normal``, the first checkpoint is the first that waits for the disk, as for the messages before it.
        """
        if self._synchronous != "full":
            db.execute("PRAGMA synchronous = OFF")
        db.execute(f"PRAGMA page_size = {PAGE}")
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};")
        db.execute("INSERT INTO state VALUES (?, ?, 0, 0, 0)", (self.stream, uuid.uuid4().hex))
        db.execute("COMMIT")

    def _configure(self, db: sqlite3.Connection) -> None:
        limit = f"wal_autocheckpoint = {WAL_PAGES}"
        for pragma in ("journal_mode = WAL", f"synchronous = {self._synchronous}", limit, "secure_delete = OFF"):
            db.execute(f"PRAGMA {pragma}").fetchall()

    def _prepare(self) -> None:
        if self.name != self.stream:
            raise ConfigError(f"{self.path} is the store of stream {self.name!r}, not of {self.stream!r}")
        self._configure(self._db)
        self._saved_last, time, stored_bytes = self._state("last, last_time, octets")
        self.last, self.last_time, added = self._db.execute(
            f"SELECT ifnull(max(sequence), ?1), max(?2, ifnull(max(time), 0)), ifnull(sum({_SIZE}), 0)"
            " FROM messages WHERE sequence > ?1",
            (self._saved_last, time),
        ).fetchone()
        self.stored_bytes = stored_bytes + added
        self.first = self.bounds()[0]
        self.has_ttl_table = self._has_ttl_table()  #: whether a message ever had a time to live
        self._age_checked = self._ids_pruned = 0
        self.overdue = False  #: retention has more to remove

    def close(self) -> None:
        self.rest()
        self._lock.close()

    def rest(self) -> None:
        """Close the file, and keep it locked; it is opened again when it is needed."""
        if self.resting:
            return
        if self.last > self._saved_last:
            with suppress(MamaError), self._transaction():
                self._save_state(self.last, self.last_time, self.stored_bytes)
        super().close()
        self._connection = None

    @property
    def resting(self) -> bool:
        return self._connection is None

    def _reopen(self) -> sqlite3.Connection:
        if not self.path.exists():
            raise ConfigError(f"the store {self.path} is gone")
        db = self._connect()
        try:
            with self._translated():
                self._configure(db)
                found = db.execute("SELECT name, identity FROM state").fetchone()
            if found != (self.name, self.identity):
                raise ConfigError(f"{self.path} is another store by now")
        except BaseException:
            db.close()
            raise
        return db

    def bounds(self) -> tuple[int, int]:
        with self._translated():
            (first,) = self._db.execute("SELECT min(sequence) FROM messages").fetchone()
        return (self.last + 1 if first is None else first), self.last

    def ids(self, since: int) -> Iterable[tuple[bytes, int, int]]:
        """Id, sequence and time of messages since ``since``, including removed ones, ascending."""
        with self._translated():
            found = self._db.execute("SELECT id, sequence, time FROM ids WHERE time >= ? ORDER BY sequence", (since,))
            return found.fetchall()

    def append(
        self,
        values: Sequence[Any],
        rows: int,
        time: int,
        row_bytes: int,
        ttls: Mapping[int, int] | None = None,
        sender: bytes | None = None,
    ) -> None:
        """Store rows in one transaction: all or none.

        :param values: :data:`COLUMNS`, or the first :data:`WIDTHS` of them, row by row; sequences continue from
            :attr:`last`
        :param time: microseconds since the epoch, not below :attr:`last_time`
        :param row_bytes: total of the rows, as :class:`Retention` counts
        :param ttls: sequence -> milliseconds to live of messages that become current for their subjects; 0 = the
            message ends the subject's time to live
        :param sender: sender of all rows, then omitted in ``values``; None = the rows have their own
        :raises StoreFull: nothing has changed
        """
        last = self.last + rows
        own = len(values) // rows
        width, common = (own, ()) if sender is None else (own + 1, (sender,))
        if rows == 1 and not self._needs_transaction(width, last, time, ttls):
            try:  # a single statement is a transaction by itself and faster
                self._insert(values, rows, time, width, common)
            except sqlite3.DatabaseError as e:
                raise self._translation(e) from e
            self.last, self.last_time, self.stored_bytes = last, time, self.stored_bytes + row_bytes
            return
        with self._transaction():
            self._insert(values, rows, time, width, common)
            if ttls:
                self._store_ttls(ttls)
            if self.retention.ids_span_us:
                self._keep_ids(width, time)
            removed = self._removable(last, time, self.stored_bytes + row_bytes)
            first, freed = self._remove(removed) if removed >= self.first else (self.first, 0)
            stored_bytes = self.stored_bytes + row_bytes - freed
            saved = removed >= self.first or last - self._saved_last >= STATE_INTERVAL
            if saved:
                self._save_state(last, time, stored_bytes)
        self.last, self.last_time, self.first, self.stored_bytes = last, time, first, stored_bytes
        if saved:
            self._saved_last = last
        self.has_ttl_table = self.has_ttl_table or bool(ttls)

    def _insert(self, values: Sequence[Any], rows: int, time: int, width: int, common: tuple[bytes, ...]) -> None:
        at, own = 0, width - len(common)
        for size, statement in _INSERTS[width, bool(common)]:
            while rows - at >= size:
                chunk = values[at * own : (at + size) * own]
                self._db.execute(statement, [time, self.last + at + 1, *common, *chunk])
                at += size

    def _needs_transaction(self, width: int, last: int, time: int, ttls: Mapping[int, int] | None) -> bool:
        """Whether a batch changes more than its own rows."""
        limits = self.retention
        limited = (limits.age_us, limits.max_bytes, limits.messages) != (None, None, None)
        ids = limits.ids_span_us and (width > PLAIN or time - self._ids_pruned >= AGE_INTERVAL_US)
        return bool(ttls or limited or ids or last - self._saved_last >= STATE_INTERVAL)

    def _save_state(self, last: int, time: int, stored_bytes: int) -> None:
        """Write the state; in the same transaction as removals, so that later counts are consistent."""
        self._db.execute("UPDATE state SET last = ?, last_time = ?, octets = ?", (last, time, stored_bytes))

    def ttls(self) -> list[tuple[bytes, int, int]]:
        """Subject, sequence and milliseconds of each message with a time to live."""
        if not self.has_ttl_table:
            return []
        with self._translated():
            return self._db.execute("SELECT subject, sequence, ttl FROM standing WHERE ttl > 0").fetchall()

    def _store_ttls(self, ttls: Mapping[int, int]) -> None:
        if not self.has_ttl_table:
            for statement in _TTL_SCHEMA.split(";")[:-1]:
                self._db.execute(statement)
        for sequence in sorted(ttls):
            self._db.execute(
                "INSERT OR REPLACE INTO standing SELECT subject, ?, sequence, time, sender, content, lengths, id,"
                " headers, origin FROM messages WHERE sequence = ?",
                (ttls[sequence], sequence),
            )

    def retain(self, time: int) -> None:
        """Apply the limits without appending a message."""
        removed = self._removable(self.last, time, self.stored_bytes)
        if removed >= self.first:
            self.trim(removed + 1)

    def trim(self, before: int) -> None:
        before = min(before, self.last + 1)
        if before <= self.first:
            return
        with self._transaction():
            first, freed = self._remove(before - 1)
            self._save_state(self.last, self.last_time, self.stored_bytes - freed)
        self.first, self._saved_last = first, self.last
        self.stored_bytes -= freed

    def _removable(self, last: int, time: int, stored_bytes: int) -> int:
        """The sequence up to which retention removes; the newest message stays."""
        limits = self.retention
        removed = 0
        if limits.messages is not None:
            removed = last - limits.messages
        if limits.age_us is not None and (self.overdue or time - self._age_checked >= AGE_INTERVAL_US):
            self._age_checked = time
            removed = max(removed, self.sequence_at(time - limits.age_us) - 1)
        if limits.max_bytes is not None and stored_bytes > limits.max_bytes:
            removed = max(removed, self._removable_for(stored_bytes - limits.max_bytes))
        removed = min(removed, last - 1)
        self.overdue = removed >= self.first + MAX_REMOVED
        return min(removed, self.first + MAX_REMOVED - 1)

    def _removable_for(self, excess: int) -> int:
        """Sequence of the last of the oldest messages that together have ``excess`` bytes."""
        gone = 0
        cursor = self._db.execute(f"SELECT sequence, {_SIZE} FROM messages ORDER BY sequence LIMIT {MAX_REMOVED + 1}")
        for sequence, size in cursor:
            gone = sequence
            excess -= size
            if excess <= 0:
                break
        cursor.close()
        return gone

    def _remove(self, up_to: int) -> tuple[int, int]:
        """Returns the sequence of the first remaining message and the bytes freed."""
        execute = self._db.execute
        (freed,) = execute(f"SELECT ifnull(sum({_SIZE}), 0) FROM messages WHERE sequence <= ?", (up_to,)).fetchone()
        execute("DELETE FROM messages WHERE sequence <= ?", (up_to,))
        if self.has_ttl_table:
            execute("DELETE FROM standing WHERE sequence <= ? AND ttl = 0", (up_to,))
        (first,) = execute("SELECT min(sequence) FROM messages").fetchone()
        return (up_to + 1 if first is None else first), freed

    def _keep_ids(self, width: int, time: int) -> None:
        """Store ids in a separate table: fast to load at the next start, and kept when their messages are removed."""
        if width > PLAIN:
            self._db.execute(
                "INSERT INTO ids SELECT sequence, time, id FROM messages WHERE sequence > ? AND id IS NOT NULL",
                (self.last,),
            )
        if time - self._ids_pruned >= AGE_INTERVAL_US:
            self._ids_pruned = time
            horizon = time - self.retention.ids_span_us
            self._db.execute(
                "DELETE FROM ids WHERE sequence <"
                " ifnull((SELECT sequence FROM ids WHERE time >= ? ORDER BY sequence LIMIT 1), ?)",
                (horizon, self.last + 1),
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
