"""The messages of one stream in one SQLite file.

Why SQLite: it is part of Python, and a store that outlives its program should be readable with what everybody has. LMDB
and RocksDB append three to six times as fast (batches of 500, one thread), but SQLite is well above what one Python
thread forwards, gives the lock of the interpreter away while it writes, needs no size in advance, and notices a file
that is foreign or cut off where a memory map would crash the broker.

A batch is one transaction in a write-ahead log, with statements that insert many rows: each statement gives the
interpreter away once, and getting it back from a busy thread costs more than an insert. With ``synchronous = normal``
the batch is with the operating system when :meth:`MessageStore.append` returns: it survives the death of the process,
and a loss of power may take the last batches but never tears the store. With ``full`` it is on the disk.

Each page that a transaction touches is written, so the state (last sequence and time, octets) is that of an earlier
moment: what came since is counted when a store is opened.

One process at a time writes (a lock beside the file, which ends with the process); any number reads, each in short
transactions, so that the write-ahead log can be folded back.
"""

from __future__ import annotations

import sqlite3
import time as clock
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mama_spark.errors import ConfigError, MamaError, Unavailable

APPLICATION_ID = 0x4D4C4D31  # "MLM1"
SUFFIX = ".stream"
OLDEST = (3, 32)
#: What :meth:`MessageStore.append` is given of a row, in order; most have only the first three or four. Sequence and
#: time follow from the batch. ``lengths`` are those of the frames; ``origin`` is
#: :class:`~mama_spark.services.malamute_broker.engines.subscription_cursor.SubscriptionCursor`'s.
COLUMNS = ("sender", "subject", "content", "id", "lengths", "headers", "origin")
WIDTHS = PLAIN, WITH_IDS, ALL = 3, 4, len(COLUMNS)
_SCHEMA = """
CREATE TABLE messages (sequence INTEGER PRIMARY KEY, time INTEGER NOT NULL, sender BLOB NOT NULL, subject BLOB NOT NULL,
    content BLOB NOT NULL, lengths BLOB, id BLOB, headers BLOB, origin INTEGER);
CREATE TABLE ids (sequence INTEGER PRIMARY KEY, time INTEGER NOT NULL, id BLOB NOT NULL);
CREATE TABLE state (name BLOB NOT NULL, identity TEXT NOT NULL, last INTEGER NOT NULL, last_time INTEGER NOT NULL,
    octets INTEGER NOT NULL);
"""
#: Made when it is first needed: see :mod:`mama_spark.malamute.protocol.ttl`. What runs is kept here although retention
#: removes the message.
_STANDING = """
CREATE TABLE standing (subject BLOB PRIMARY KEY, ttl INTEGER NOT NULL, sequence INTEGER NOT NULL, time INTEGER NOT NULL,
    sender BLOB NOT NULL, content BLOB NOT NULL, lengths BLOB, id BLOB, headers BLOB, origin INTEGER);
CREATE UNIQUE INDEX standing_sequence ON standing (sequence);
"""
_SIZE = "length(sender) + length(subject) + length(content) + ifnull(length(id), 0) + ifnull(length(headers), 0)"
_SIZES = (256, 64, 16, 4, 1)  #: rows of one statement


def _insert(rows: int, width: int, one_sender: bool) -> str:
    """Each value that is bound costs as much as a column of its row, so what is the same for all rows is bound once:
    time and sequence (?1, ?2), and often the sender (?3)."""
    first, own, sender = (4, width - 1, "?3, ") if one_sender else (3, width, "")
    lines = []
    for row in range(rows):
        values = ", ".join(f"?{first + row * own + i}" for i in range(own))
        lines.append(f"(?2 + {row}, ?1, {sender}{values})")
    return f"INSERT INTO messages (sequence, time, {', '.join(COLUMNS[:width])}) VALUES {', '.join(lines)}"


_INSERTS = {
    (width, one): [(rows, _insert(rows, width, one)) for rows in _SIZES] for width in WIDTHS for one in (False, True)
}
#: Retention removes at most this many messages a batch, so that a new limit does not stall the stream.
MOST_REMOVED = 20_000
#: Octets of a page. A transaction writes whole ones: small ones make single messages quick, large ones many at a time.
PAGE = 8192
#: Pages in the write-ahead log from which on they are folded back.
LOGGED = 2000
#: Messages after which the state is written again: as many are counted at most when a store is opened.
NOTED_EVERY = 8192
#: Microseconds between two looks at the age of messages.
AGE_EVERY = 1_000_000
#: A message of more octets than this is refused; SQLite's own limit for a row is 10^9.
MOST_OCTETS = 900_000_000

Row = tuple[Any, ...]


class StoreFull(Unavailable):
    """No room, or the disk does not work (now): the batch is not stored, the store is as it was before."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept at most; None = no limit. The newest message is always kept.

    :ivar age: microseconds since it was stored
    :ivar octets: of sender, subject, content, id and headers; the file is larger, and does not shrink
    :ivar ids_span: microseconds for which ids are kept, also those of removed messages
    """

    age: int | None = None
    octets: int | None = None
    messages: int | None = None
    ids_span: int = 0


def now_us() -> int:
    return clock.time_ns() // 1000


def store_path(folder: str | Path, stream: bytes) -> Path:
    """The file of a stream: its name quoted as in a URL, with a hash in place of what is too long for a file name."""
    name = quote(stream, safe="") or "%"
    if len(name) > 150:
        name = f"{name[:100]}-{blake2b(stream, digest_size=16).hexdigest()}"
    return Path(folder) / f"{name}{SUFFIX}"


def _as_many(cursor: sqlite3.Cursor, octets: int) -> list[Row]:
    """Rows until they have so many octets of content; the cursor is closed."""
    found: list[Row] = []
    try:
        for row in cursor:
            found.append(row)
            octets -= len(row[4])
            if octets <= 0:
                break
    finally:
        cursor.close()
    return found


class StoreReader:
    """A store that somebody else may be writing. Used by one thread.

    :raises ConfigError: the file is missing, foreign or damaged; the text names it
    """

    def __init__(self, path: Path) -> None:
        if sqlite3.sqlite_version_info < OLDEST:  # statements of many rows, and window functions
            text = ".".join(map(str, OLDEST))
            raise ConfigError(
                f"durable streams need SQLite {text} or later, and this Python has {sqlite3.sqlite_version}"
            )
        self.path = path
        self._db = self._connect()
        try:
            with self._translated():
                (found,) = self._db.execute("PRAGMA application_id").fetchone()
                self._check(found)
                self.name, self.identity = self._state("name, identity")
        except BaseException:
            self._db.close()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

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

    # --- reading -------------------------------------------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """Sequences of the first and the last; first = last + 1 when there is nothing."""
        with self._translated():
            first, last = self._db.execute(
                "SELECT (SELECT min(sequence) FROM messages),"
                " max((SELECT last FROM state), ifnull((SELECT max(sequence) FROM messages), 0))"
            ).fetchone()
        return (last + 1 if first is None else first), last

    def read(self, after: int, up_to: int, rows: int, octets: int) -> list[Row]:
        """From the first with ``after < sequence <= up_to``: so many rows, or fewer when they have so many octets."""
        with self._translated():
            cursor = self._db.execute(
                "SELECT * FROM messages WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?",
                (max(0, after), up_to, rows),
            )
            return _as_many(cursor, octets)

    def read_standing(self, after: int, up_to: int, rows: int, octets: int) -> list[Row]:
        """As :meth:`read`, of the last message of each subject that ever had a time to live (see
        :mod:`mama_spark.malamute.protocol.ttl`): what runs, and what ended it as long as retention leaves that."""
        with self._translated():
            if not self._has_standing():
                return []
            cursor = self._db.execute(
                "SELECT sequence, time, sender, subject, content, lengths, id, headers, origin FROM standing"
                " WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?",
                (max(0, after), up_to, rows),
            )
            return _as_many(cursor, octets)

    def _has_standing(self) -> bool:
        return self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'standing'").fetchone() is not None

    def complete(self, after: int, up_to: int) -> bool:
        """Nothing is missing; to count is ten times as fast as to look for holes."""
        with self._translated():
            (there,) = self._db.execute(
                "SELECT count(*) FROM messages WHERE sequence > ? AND sequence <= ?", (after, up_to)
            ).fetchone()
        return bool(there == up_to - after)

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        """Ranges, both ends inclusive, of what is not there any more."""
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

    def at(self, time: int) -> int:
        """Sequence of the first message of this time or later; last + 1 if there is none."""
        low, last = self.bounds()
        high = last + 1
        with self._translated():
            while low < high:  # times never fall
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


class MessageStore(StoreReader):
    """The one writer of a store; makes it if it is missing.

    :param stream: its name, which the store remembers
    :param synchronous: ``normal`` or ``full``
    :raises ConfigError: as a reader; or another process has it; or it belongs to another stream
    """

    def __init__(
        self, path: Path, stream: bytes, retention: Retention | None = None, synchronous: str = "normal"
    ) -> None:
        self.stream = stream
        self.retention = retention or Retention()
        self._lock = self._acquire(path)
        try:
            super().__init__(path)
            with self._translated():
                self._prepare(synchronous)
        except BaseException:
            self._lock.close()
            raise

    def _acquire(self, path: Path) -> sqlite3.Connection:
        """A lock of SQLite, in a file of its own: readers need none, and no system lacks it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = sqlite3.connect(f"{path}.lock", 0.0, isolation_level=None)
        except (OSError, sqlite3.Error) as e:
            raise ConfigError(f"the store {path} cannot be made: {e}") from e
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as e:
            lock.close()
            busy = getattr(e, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            raise ConfigError(f"the store {path} {'is open elsewhere' if busy else f'cannot be locked: {e}'}") from e
        return lock

    def _connect(self) -> sqlite3.Connection:
        with self._translated():
            db = sqlite3.connect(str(self.path), 10.0, isolation_level=None, cached_statements=64)
            try:
                if not db.execute("PRAGMA schema_version").fetchone()[0]:
                    self._make(db)
            except BaseException:
                db.close()
                raise
            return db

    def _make(self, db: sqlite3.Connection) -> None:
        """In one transaction, so that whoever dies here leaves an empty file, and not half a store."""
        db.execute(f"PRAGMA page_size = {PAGE}")
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};")
        db.execute("INSERT INTO state VALUES (?, ?, 0, 0, 0)", (self.stream, uuid.uuid4().hex))
        db.execute("COMMIT")

    def _prepare(self, synchronous: str) -> None:
        if self.name != self.stream:
            raise ConfigError(f"{self.path} is the store of stream {self.name!r}, not of {self.stream!r}")
        settings = ("journal_mode = WAL", f"synchronous = {synchronous}", f"wal_autocheckpoint = {LOGGED}")
        for pragma in (*settings, "secure_delete = OFF"):
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        self._noted, time, octets = self._state("last, last_time, octets")
        self.last, self.last_time, added = self._db.execute(
            f"SELECT ifnull(max(sequence), ?1), max(?2, ifnull(max(time), 0)), ifnull(sum({_SIZE}), 0)"
            " FROM messages WHERE sequence > ?1",
            (self._noted, time),
        ).fetchone()
        self.octets = octets + added
        self.first = self.bounds()[0]
        self.stands = self._has_standing()  #: something ran here once
        self._aged = self._pruned = 0
        self.overdue = False  #: retention has more to remove

    def close(self) -> None:
        if self.last > self._noted:
            with suppress(MamaError), self._transaction():
                self._note(self.last, self.last_time, self.octets)
        super().close()
        self._lock.close()

    def bounds(self) -> tuple[int, int]:
        with self._translated():
            (first,) = self._db.execute("SELECT min(sequence) FROM messages").fetchone()
        return (self.last + 1 if first is None else first), self.last

    def ids(self, since: int) -> Iterable[tuple[bytes, int, int]]:
        """Id, sequence and time of messages since ``since``, also of removed ones, ascending."""
        with self._translated():
            found = self._db.execute("SELECT id, sequence, time FROM ids WHERE time >= ? ORDER BY sequence", (since,))
            return found.fetchall()

    # --- writing -------------------------------------------------------------------------------------------------

    def append(
        self,
        values: Sequence[Any],
        rows: int,
        time: int,
        octets: int,
        standing: Mapping[int, int] | None = None,
        sender: bytes | None = None,
    ) -> None:
        """Store rows in one transaction: all or none.

        :param values: :data:`COLUMNS` of all rows, or as many of them as one of :data:`WIDTHS`, one row after
            another; sequences go on from :attr:`last`
        :param time: microseconds since the epoch, not below :attr:`last_time`
        :param octets: of all of them, as :class:`Retention` counts
        :param standing: by sequence, milliseconds to live of those that stand at their subjects from now on; 0 = that
            ended what ran there
        :param sender: of all rows, which then have none among their values; None = each has
        :raises StoreFull: nothing has changed
        """
        last = self.last + rows
        own = len(values) // rows
        width, common = (own, ()) if sender is None else (own + 1, (sender,))
        if rows == 1 and not self._due(width, last, time, standing):
            try:  # one statement is a transaction by itself, in less time
                self._insert(values, rows, time, width, common)
            except sqlite3.DatabaseError as e:
                raise self._translation(e) from e
            self.last, self.last_time, self.octets = last, time, self.octets + octets
            return
        with self._transaction():
            self._insert(values, rows, time, width, common)
            if standing:
                self._stand(standing)
            if self.retention.ids_span:
                self._keep_ids(width, time)
            removed = self._removable(last, time, self.octets + octets)
            first, freed = self._remove(removed) if removed >= self.first else (self.first, 0)
            octets += self.octets - freed
            noted = removed >= self.first or last - self._noted >= NOTED_EVERY
            if noted:
                self._note(last, time, octets)
        self.last, self.last_time, self.first, self.octets = last, time, first, octets
        if noted:
            self._noted = last
        self.stands = self.stands or bool(standing)

    def _insert(self, values: Sequence[Any], rows: int, time: int, width: int, common: tuple[bytes, ...]) -> None:
        at, own = 0, width - len(common)
        for size, statement in _INSERTS[width, bool(common)]:
            while rows - at >= size:
                chunk = values[at * own : (at + size) * own]
                self._db.execute(statement, [time, self.last + at + 1, *common, *chunk])
                at += size

    def _due(self, width: int, last: int, time: int, standing: Mapping[int, int] | None) -> bool:
        """A batch may have more to do than to store its rows."""
        limits = self.retention
        limited = (limits.age, limits.octets, limits.messages) != (None, None, None)
        ids = limits.ids_span and (width > PLAIN or time - self._pruned >= AGE_EVERY)
        return bool(standing or limited or ids or last - self._noted >= NOTED_EVERY)

    def _note(self, last: int, time: int, octets: int) -> None:
        """With what is removed: what is counted from here on is all there."""
        self._db.execute("UPDATE state SET last = ?, last_time = ?, octets = ?", (last, time, octets))

    def running(self) -> list[tuple[bytes, int, int]]:
        """Subject, sequence and milliseconds to live of what runs."""
        if not self.stands:
            return []
        with self._translated():
            return self._db.execute("SELECT subject, sequence, ttl FROM standing WHERE ttl > 0").fetchall()

    def _stand(self, standing: Mapping[int, int]) -> None:
        if not self.stands:
            for statement in _STANDING.split(";")[:-1]:
                self._db.execute(statement)
        for sequence in sorted(standing):
            self._db.execute(
                "INSERT OR REPLACE INTO standing SELECT subject, ?, sequence, time, sender, content, lengths, id,"
                " headers, origin FROM messages WHERE sequence = ?",
                (standing[sequence], sequence),
            )

    def retain(self, time: int) -> None:
        """Remove what is too old (or too much) although nothing was appended."""
        removed = self._removable(self.last, time, self.octets)
        if removed >= self.first:
            self.trim(removed + 1)

    def trim(self, before: int) -> None:
        """Remove what has a lower sequence."""
        before = min(before, self.last + 1)
        if before <= self.first:
            return
        with self._transaction():
            first, freed = self._remove(before - 1)
            self._note(self.last, self.last_time, self.octets - freed)
        self.first, self._noted = first, self.last
        self.octets -= freed

    def _removable(self, last: int, time: int, octets: int) -> int:
        """Up to which sequence retention removes; nothing from the newest on."""
        limits = self.retention
        removed = 0
        if limits.messages is not None:
            removed = last - limits.messages
        if limits.age is not None and (self.overdue or time - self._aged >= AGE_EVERY):
            self._aged = time
            removed = max(removed, self.at(time - limits.age) - 1)
        if limits.octets is not None and octets > limits.octets:
            removed = max(removed, self._removable_for(octets - limits.octets))
        removed = min(removed, last - 1)
        self.overdue = removed >= self.first + MOST_REMOVED
        return min(removed, self.first + MOST_REMOVED - 1)

    def _removable_for(self, excess: int) -> int:
        """The oldest messages with so many octets; a step for each that goes."""
        gone = 0
        cursor = self._db.execute(f"SELECT sequence, {_SIZE} FROM messages ORDER BY sequence LIMIT {MOST_REMOVED + 1}")
        for sequence, size in cursor:
            gone = sequence
            excess -= size
            if excess <= 0:
                break
        cursor.close()
        return gone

    def _remove(self, up_to: int) -> tuple[int, int]:
        """The first that stays (``up_to + 1``, or behind a hole), and octets that went."""
        execute = self._db.execute
        (freed,) = execute(f"SELECT ifnull(sum({_SIZE}), 0) FROM messages WHERE sequence <= ?", (up_to,)).fetchone()
        execute("DELETE FROM messages WHERE sequence <= ?", (up_to,))
        if self.stands:
            execute("DELETE FROM standing WHERE sequence <= ? AND ttl = 0", (up_to,))
        (first,) = execute("SELECT min(sequence) FROM messages").fetchone()
        return (up_to + 1 if first is None else first), freed

    def _keep_ids(self, width: int, time: int) -> None:
        """In a table of their own: found quickly at the next start, and there after their messages are gone."""
        if width > PLAIN:
            self._db.execute(
                "INSERT INTO ids SELECT sequence, time, id FROM messages WHERE sequence > ? AND id IS NOT NULL",
                (self.last,),
            )
        if time - self._pruned >= AGE_EVERY:
            self._pruned = time
            horizon = time - self.retention.ids_span
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
