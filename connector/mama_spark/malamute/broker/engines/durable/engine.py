"""The engine that stores a stream in an SQLite file.

A batch of commands is one transaction: a message is acknowledged and delivered when its batch is stored. Sequences
begin at 1 and have no gaps; retention removes the oldest messages. Messages beyond a client's credit are read from the
file later, so slow clients cost no memory.

A client receives by replay also its own messages from before its subscription, or from an earlier connection.

If the subject of a message with a time to live receives no newer one in time, the engine stores a marker
(:mod:`mama_spark.malamute.protocol.ttl`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar

from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.protocol.extensions import NO_EXTENSION, AckRun, Extension, StoreOutcome, of_stored
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer
from mama_spark.malamute.protocol.message_blocks import MessageBlock
from mama_spark.malamute.protocol.ttl import EXPIRED, MARKER, TtlRequest, TtlTracker, ttl_request_of

from ... import freed_memory
from ..ack_tracker import AckTracker
from ..base import Delivery
from ..log_queries import answer, pack, pack_headers, unpack, unpack_headers
from ..stored import LiveMessage, StoredStreamEngine, SubscriptionCursor
from .dedup import DedupWindow
from .log_queries import DurableQueries, is_stored, stored_streams
from .settings import DurableSettings
from .store import MAX_BYTES, MessageStore, Retention, make_folder
from .store_reader import Row, StoreFull, now_us, store_path

log = logging.getLogger(__name__)

#: Seconds between checks of the age of messages while the engine is idle.
RETENTION_INTERVAL = 1.0
#: Seconds without a command after which the file is closed, if it has nothing that will expire.
REST = 10.0


def ages(store: MessageStore) -> bool:
    """Whether there are messages that will be removed, because of their age or because there are too many."""
    return store.overdue or (store.retention.age_us is not None and store.last >= store.first)


class StoreUpkeep:
    """Retention and rest of one store while its engine is idle."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._rests_at: float | None = None  # monotonic time when the file is closed; None = not yet known

    def worked(self) -> None:
        self._rests_at = None

    def retain(self, store: MessageStore, now: int) -> float | None:
        """Remove messages that are too old at ``now`` (microseconds since the epoch); seconds until the next check."""
        if not ages(store):
            return None
        try:
            store.retain(max(now, store.last_time))
        except StoreFull as e:
            log.warning("stream %r: old messages cannot be removed now: %s", self._name, e)
        return 0.0 if store.overdue else RETENTION_INTERVAL

    def rest(self, store: MessageStore) -> float | None:
        """Close the file if nothing was done for a while; seconds until then."""
        if store.resting or ages(store):
            return None
        now = time.monotonic()
        if self._rests_at is None:
            self._rests_at = now + REST
        if now < self._rests_at:
            return self._rests_at - now
        store.rest()
        freed_memory.trim()
        return None


#: Most bytes and rows that one call replays to all cursors, and rows per cursor and turn: large enough for efficient
#: queries, so small that commands are not delayed and memory is bounded.
REPLAY_BYTES = 4 * 1024 * 1024
REPLAY_ROWS = 4096
TURN_ROWS = 512

_STORED = StoreOutcome.STORED  # two lookups take as long as the rest of accept
_NOTHING = TtlRequest()
_MARKER_HEADERS = ((MARKER, EXPIRED),)


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class DurableEngine(StoredStreamEngine[Row]):
    """See :class:`~mama_spark.malamute.broker.engines.durable.settings.DurableSettings`."""

    settings_class = DurableSettings
    shared_threads: ClassVar[int] = 16  # it waits for its disk

    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, settings)
        self._options = DurableSettings.parse(name, self.settings)
        self._path = store_path(self._options.folder, name)
        self._clock: Callable[[], int] = now_us
        self._ticks: Callable[[], int] = _monotonic_us
        self._store: MessageStore | None = None
        self._acks = AckTracker()
        self._ids = DedupWindow(int(self._options.dedup_window * 1e6), self._options.dedup_ids, lambda: self._ticks())
        self._ttl = TtlTracker(self._options.max_running, time.monotonic)
        self._accepted: list[LiveMessage] = []  # messages of the batch, not stored yet
        self._next = 0
        self._refusing = False
        self._upkeep = StoreUpkeep(name)

    @property
    def store(self) -> MessageStore:
        return self._store or self._open_store()

    def start(self) -> None:
        """Open the store if there is one: a stream that was only read has none.

        :raises ConfigError: the store is damaged, foreign, another stream's or open elsewhere
        """
        make_folder(self._path)
        self._next = 1
        if self._path.exists():
            self._open_store()

    def open_for_writing(self) -> None:
        """Open the store, which is made if necessary; errors as :meth:`start`."""
        assert self.store is self._store

    def _open_store(self) -> MessageStore:
        options = self._options
        retention = Retention(
            None if options.max_age is None else int(options.max_age * 1e6),
            options.max_bytes,
            options.max_messages,
            self._ids.span,
        )
        store = MessageStore(self._path, self.name, retention, options.synchronous)
        if store.last and self._accepted:
            store.close()
            raise ConfigError(f"the store {self._path} was made by another process in the meantime")
        self._store = store
        if not store.last:
            return store
        self._next = store.last + 1
        now = self._clock()
        self._ids.load((one, sequence, max(0, now - at)) for one, sequence, at in store.ids(now - self._ids.span))
        self._ttl.load(store.ttls())
        return store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def position(self) -> int:
        return 0 if self._store is None else self._store.last

    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
        sequence = self._next
        outcome, first = _STORED, sequence
        content_bytes = len(content[0]) if len(content) == 1 else sum(map(len, content))
        if content_bytes > MAX_BYTES:
            outcome, first = StoreOutcome.REFUSED, 0
        elif extension is not None and (extension.message_id or extension.headers):
            outcome, first = self._next_outcome(subject, extension, content_bytes)
        if extension is not None:
            self._acks.add(client, outcome, first)
        if outcome is not _STORED:
            return
        sequence = first
        self._next = sequence + 1
        given = NO_EXTENSION if extension is None else extension
        sender = self._cursors.get(client)
        self._accepted.append((sequence, sender, address, subject, content, given.message_id, given.headers))

    def accept_block(self, client: Hashable, address: bytes, block: MessageBlock) -> None:
        count, first = len(block.contents), self._next
        ids = block.ids
        if block.extensions is not None or sum(map(len, block.contents)) > MAX_BYTES:
            super().accept_block(client, address, block)
            return
        if ids is not None and not self._ids.add_new(ids, first):
            super().accept_block(client, address, block)
            return
        self._next += count
        self._acks.add(client, StoreOutcome.STORED, first, count)
        columns = (repeat(self._cursors.get(client)), repeat(address), block.subjects, zip(block.contents, strict=True))
        self._accepted += zip(range(first, self._next), *columns, ids or repeat(b""), repeat(()), strict=False)

    def _next_outcome(self, subject: bytes, extension: Extension, content_bytes: int) -> tuple[StoreOutcome, int]:
        """Outcome of the next message by its id and headers, and its sequence, or that of the first with its id."""
        asked = ttl_request_of(extension.headers) if extension.headers else _NOTHING
        if asked is None:
            return StoreOutcome.REFUSED, 0
        if asked.renews:
            self._complete_accepted()  # the message to be renewed may be among them
            found = self._ttl.renew(subject)
            return (StoreOutcome.REFUSED, 0) if found is None else (StoreOutcome.DUPLICATE, found)
        if asked.expected is not None:
            self._complete_accepted()  # another one may be among them
            found = self._ttl.sequence(subject)
            if found != asked.expected:
                return StoreOutcome.DUPLICATE, found
        sequence = self._next
        if extension.message_id and (first := self._ids.first_of(extension.message_id, sequence)) != sequence:
            if asked.milliseconds:
                self._ttl.repeated(subject, first)
            return StoreOutcome.DUPLICATE, first
        if asked.milliseconds is not None and not self._ttl.note(sequence, subject, asked.milliseconds, content_bytes):
            self._ids.withdraw(sequence - 1)
            return StoreOutcome.REFUSED, 0
        return StoreOutcome.STORED, sequence

    def sync(self, client: Hashable) -> tuple[AckRun, ...] | Callable[[], tuple[AckRun, ...]]:
        runs = self._acks.take(client)
        return runs.acks if self._accepted else runs.acks()

    def ask(self, query: LogQuery) -> tuple[LogQueryAnswer, list[list[bytes]]]:
        return answer(DurableQueries(self.store, self._options), query)

    @classmethod
    def stored_streams(cls, settings: Mapping[str, Any]) -> list[bytes]:
        return stored_streams(settings)

    @classmethod
    def is_stored(cls, name: bytes, settings: Mapping[str, Any]) -> bool:
        return is_stored(name, settings)

    def flush(self) -> None:
        self._ids.begin_batch()
        self._upkeep.worked()
        self._complete_accepted()
        self._store_markers()
        self._replay()

    def idle(self) -> float | None:
        self._store_markers()
        self._replay()
        if any(cursor.can_read for cursor in self._behind):
            return 0.0
        times = [self._ttl.seconds_to_next_expiry if self._ttl else None]
        if self._store is not None:
            times += (self._upkeep.retain(self._store, self._clock()), self._upkeep.rest(self._store))
        return min((due for due in times if due is not None), default=None)

    def may_end(self) -> bool:
        """False while messages have a time to live, or an age at which they are removed."""
        return not (self._cursors or self._ttl or (self._store is not None and ages(self._store)))

    def _store_markers(self) -> None:
        if not self._ttl:
            return
        for subject in self._ttl.expired():
            self._accepted.append((self._next, None, b"", subject, (b"",), b"", _MARKER_HEADERS))
            self._ttl.note(self._next, subject, 0, 0)
            self._next += 1
        self._complete_accepted()

    def _complete_accepted(self) -> None:
        if not self._accepted:
            return
        accepted, self._accepted = self._accepted, []
        now = max(self._clock(), self.store.last_time)
        values, row_bytes, address = _row_values(accepted)
        changes = self._ttl.changes((message[0], message[3]) for message in accepted)
        try:
            self.store.append(values, len(accepted), now, row_bytes, dict(changes.values()), address)
        except StoreFull as e:
            changes = {}
            self._refuse(len(accepted), e)
            return
        finally:
            self._acks.settle()
            self._ttl.settle(changes)
        if self._refusing:
            self._refusing = False
            log.warning("stream %r stores again", self.name)
        self._deliver_live(accepted, now)

    def _refuse(self, messages: int, error: StoreFull) -> None:
        last = self.store.last
        self._next = last + 1
        self._ids.withdraw(last)
        self._acks.refuse(last)
        if not self._refusing:
            self._refusing = True
            log.error("stream %r refuses messages, %d to begin with: %s", self.name, messages, error)

    def _replay(self) -> None:
        """Round robin, within the limits of one call."""
        if not self._behind:
            return
        rows, max_bytes = REPLAY_ROWS, REPLAY_BYTES
        waiting = deque(cursor for cursor in self._behind if cursor.can_read)
        while waiting and rows > 0 and max_bytes > 0:
            cursor = waiting.popleft()
            del self._behind[cursor]  # appended again below
            used_rows, used_bytes = self._take_turn(cursor, max_bytes)
            rows, max_bytes = rows - used_rows - 1, max_bytes - used_bytes
            if cursor.live:
                continue
            self._behind[cursor] = None
            if cursor.can_read:
                waiting.append(cursor)

    def _take_turn(self, cursor: SubscriptionCursor, max_bytes: int) -> tuple[int, int]:
        """Returns the numbers of rows and bytes read."""
        store = self._store
        if store is None:  # nobody has written
            cursor.live = True
            return 0, 0
        limit = min(TURN_ROWS, cursor.credit.limit(TURN_ROWS) + 15)  # some rows may not match
        found = store.read(cursor.position, store.last, limit, max_bytes)
        self._replay_to(cursor, found)
        self._go_live_if_caught_up(cursor, exhausted=not found)
        return len(found), sum(len(row[4]) for row in found)

    def _replayed(self, cursor: SubscriptionCursor, message: Row) -> Delivery | None:
        sequence, time, sender, subject, body, lengths, message_id, headers, origin = message
        if origin == cursor.origin or not cursor.wants(sequence, self._subscriptions.matching(subject)):
            return None
        extension = of_stored(sequence, time, message_id or b"", unpack_headers(headers))
        return Delivery(cursor.client, sender, subject, unpack(body, lengths), extension)


def _row_values(accepted: list[LiveMessage]) -> tuple[list[Any], int, bytes | None]:
    """Arguments of :meth:`MessageStore.append`: the values row by row, without unused columns; their bytes; the
    sender's address if all rows have the same, which is then not among the values."""
    if len(accepted) == 1:  # fast path for a single message
        _, cursor, address, subject, content, message_id, fields = accepted[0]
        if len(content) == 1 and not message_id and not fields and cursor is None:
            return [subject, content[0]], len(address) + len(subject) + len(content[0]), address
    _, cursors, addresses, subjects, contents, ids, headers = zip(*accepted, strict=True)
    common = addresses[0] if addresses.count(addresses[0]) == len(addresses) else None
    row_bytes = sum(map(len, addresses)) + sum(map(len, subjects)) + sum(map(len, ids))
    columns: list[Sequence[Any]] = [] if common is not None else [addresses]
    if not any(headers) and set(map(len, contents)) == {1} and cursors.count(None) == len(cursors):
        bodies: Sequence[bytes] = [body for (body,) in contents]
        columns += (subjects, bodies)
        if any(ids):
            columns.append([one or None for one in ids])
    else:
        packed = list(map(pack, contents))
        bodies, lengths = [body for body, _ in packed], [one for _, one in packed]
        stored = list(map(pack_headers, headers))
        origins = [None if cursor is None else cursor.origin for cursor in cursors]
        columns += (subjects, bodies, [one or None for one in ids], lengths, stored, origins)
        row_bytes += sum(len(one) for one in stored if one)
    row_bytes += sum(map(len, bodies))
    values: list[Any] = [None] * (len(columns) * len(accepted))
    for at, column in enumerate(columns):
        values[at :: len(columns)] = column
    return values, row_bytes, common
