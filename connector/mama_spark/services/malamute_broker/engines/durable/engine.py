"""A stream whose messages are numbered, kept on disk and replayed (ML-01, ML-22).

A message is stored before anybody gets it, and acknowledged when its batch is stored: one transaction a batch of
commands. Sequences begin at 1 and have no holes; retention removes from the front. A client that subscribes with
``after`` gets what is stored behind that sequence and then what comes, in order, each message once. What a client has
no credit for stays in the store and is read from there later, so slow clients cost no memory.

A message that a client sent while it was subscribed never comes back to it, replayed or not (ML-15); what it sent
before, or over an earlier connection, is replayed like anybody's if it asks.

A message may have a time to live: when nothing newer comes to its subject, the engine says so
(:mod:`mama_spark.malamute.protocol.ttl`).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import repeat
from typing import Any

from mama_spark.malamute.protocol.extensions import NOTHING, AckRun, Extension, StoreOutcome, of_stored
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer
from mama_spark.malamute.protocol.message_blocks import MessageBlock
from mama_spark.malamute.protocol.ttl import EXPIRED, MARKER, TtlDirective, TtlTracker, ttl_directive_of

from .. import Delivery, StreamEngine
from ..ack_tracker import AckTracker
from ..dedup import DedupWindow
from ..frame_columns import pack, pack_headers, unpack, unpack_headers
from ..subscription_cursor import SubscriptionCursor
from ..subscription_index import SubscriptionIndex
from .log_queries import answer, is_stored, stored_streams
from .settings import DurableSettings
from .store import MOST_OCTETS, MessageStore, Retention, Row, StoreFull, now_us, store_path

log = logging.getLogger(__name__)

#: What one call replays at most, to all readers together, and to one of them in a turn: enough to be worth a query,
#: little enough that commands do not wait and memory stays small.
REPLAY_OCTETS = 4 * 1024 * 1024
REPLAY_ROWS = 4096
TURN_ROWS = 512
#: Seconds between two looks at the age of messages while nothing else happens.
IDLE_RETENTION = 1.0


_STORED = StoreOutcome.STORED  # to look it up twice takes as long as all the rest of accept
_ENGINE = object()  #: who sends markers
_MARKER = ((MARKER, EXPIRED),)

#: A message of the batch that is not stored yet: sequence, client, address, subject, content, id, headers. A plain
#: tuple, since one is made for each message.
_Waiting = tuple[int, Hashable, bytes, bytes, Sequence[bytes], bytes, tuple[tuple[bytes, bytes], ...]]


class DurableEngine(StreamEngine):
    """:param settings: see :class:`~mama_spark.services.malamute_broker.engines.durable.settings.DurableSettings`"""

    stored = True

    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, settings)
        self._options = DurableSettings.parse(name, self.settings)
        self._clock: Callable[[], int] = now_us
        self._store: MessageStore | None = None
        self._selectors: SubscriptionIndex[SubscriptionCursor] = SubscriptionIndex()
        self._readers: dict[Hashable, SubscriptionCursor] = {}
        self._behind: dict[SubscriptionCursor, None] = {}  # readers that are not live, whose turn it is first
        self._ledger = AckTracker()
        self._ids = DedupWindow(int(self._options.dedup_window * 1e6), self._options.dedup_ids)
        self._keeper = TtlTracker(self._options.max_running, time.monotonic)
        self._waiting: list[_Waiting] = []
        self._next = 0
        self._looked = 0  # when ids were looked at in this batch; once is enough
        self._refusing = False

    def __repr__(self) -> str:
        last = self._next - 1 if self._next else "not open"
        return f"<DurableEngine {self.name!r}, last {last}, {len(self._readers)} readers, {len(self._behind)} behind>"

    @property
    def store(self) -> MessageStore:
        assert self._store is not None, "the engine was not started"
        return self._store

    def start(self) -> None:
        """:raises ConfigError: the store is damaged, foreign, another stream's or open elsewhere"""
        options = self._options
        retention = Retention(
            None if options.max_age is None else int(options.max_age * 1e6),
            options.max_octets,
            options.max_messages,
            self._ids.span,
        )
        self._store = MessageStore(store_path(options.folder, self.name), self.name, retention, options.synchronous)
        self._next = self._store.last + 1
        now = self._clock()
        self._ids.load(self._store.ids(now - self._ids.span))
        self._ids.expire(now)
        self._keeper.load(self._store.running())

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    # --- subscriptions -------------------------------------------------------------------------------------------

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        self._settle()  # what came before is for those who subscribed before
        reader = self._readers.get(client)
        if reader is None:
            reader = SubscriptionCursor(client, origin=secrets.randbits(62))
        elif pattern in reader.patterns:
            return
        self._selectors.add(pattern, reader)
        self._readers[client] = reader
        reader.subscribe(pattern, after, self.store.last)
        if not reader.live:
            self._behind[reader] = None

    def position(self) -> int:
        last: int = self.store.last
        return last

    def cancel(self, client: Hashable) -> None:
        self._settle()  # which is this client's still, if it matches
        reader = self._readers.pop(client, None)
        if reader is not None:
            self._selectors.remove(reader, reader.patterns)
            self._behind.pop(reader, None)

    def credit(self, client: Hashable, amount: int | None) -> None:
        reader = self._readers.get(client)
        if reader is not None:
            reader.give(amount)

    # --- publishing ----------------------------------------------------------------------------------------------

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
        octets = len(content[0]) if len(content) == 1 else sum(map(len, content))
        if octets > MOST_OCTETS:
            outcome, first = StoreOutcome.REFUSED, 0
        elif extension is not None and (extension.message_id or extension.headers):
            outcome, first = self._judge(subject, extension, octets)
        if extension is not None:
            self._ledger.add(client, outcome, first)
        if outcome is not _STORED:
            return
        self._next = sequence + 1
        given = NOTHING if extension is None else extension
        self._waiting.append((sequence, client, address, subject, content, given.message_id, given.headers))

    def accept_block(self, client: Hashable, address: bytes, block: MessageBlock) -> None:
        count, first = len(block.contents), self._next
        ids = block.ids
        if block.extensions is not None or sum(map(len, block.contents)) > MOST_OCTETS:
            super().accept_block(client, address, block)
            return
        if ids is not None:
            self._look()
            if not self._ids.add_new(ids, first, self._looked):
                super().accept_block(client, address, block)
                return
        self._next += count
        self._ledger.add(client, StoreOutcome.STORED, first, count)
        columns = (repeat(client), repeat(address), block.subjects, zip(block.contents, strict=True))
        self._waiting += zip(range(first, self._next), *columns, ids or repeat(b""), repeat(()), strict=False)

    def _judge(self, subject: bytes, extension: Extension, octets: int) -> tuple[StoreOutcome, int]:
        """What becomes of the next message, by its id and headers, and its sequence or that of the first of its id."""
        wish = ttl_directive_of(extension.headers) if extension.headers else None
        if wish is TtlDirective.BAD:
            return StoreOutcome.REFUSED, 0
        if wish is TtlDirective.RENEW:
            self._settle()  # what runs may be in there
            found = self._keeper.renew(subject)
            return (StoreOutcome.REFUSED, 0) if found is None else (StoreOutcome.DUPLICATE, found)
        if extension.message_id:
            outcome, first = self._first_of(extension.message_id)
            if outcome is StoreOutcome.DUPLICATE:
                if wish:
                    self._keeper.repeated(subject, first)
                return outcome, first
        sequence = self._next
        if isinstance(wish, int) and not self._keeper.note(sequence, subject, wish, octets):
            self._ids.withdraw(sequence - 1)
            return StoreOutcome.REFUSED, 0
        return StoreOutcome.STORED, sequence

    def _first_of(self, message_id: bytes) -> tuple[StoreOutcome, int]:
        """Whether the next message is the first of its id, and the sequence of the first."""
        self._look()
        found = self._ids.find(message_id)
        if found is not None:
            return StoreOutcome.DUPLICATE, found
        self._ids.add(message_id, self._next, self._looked)
        return StoreOutcome.STORED, self._next

    def _look(self) -> None:
        """At the time, and forget the ids that are too old by now."""
        if not self._looked:
            self._looked = self._clock()
            self._ids.expire(self._looked)

    def sync(self, client: Hashable) -> tuple[AckRun, ...] | Callable[[], tuple[AckRun, ...]]:
        runs = self._ledger.take(client)
        return runs.acks if self._waiting else runs.acks()

    def ask(self, question: LogQuery) -> tuple[LogQueryAnswer, list[list[bytes]]]:
        return answer(self.store, question, self._options)

    @classmethod
    def shelf(cls, settings: Mapping[str, Any]) -> list[bytes]:
        return stored_streams(settings)

    @classmethod
    def keeps(cls, name: bytes, settings: Mapping[str, Any]) -> bool:
        return is_stored(name, settings)

    def flush(self) -> None:
        self._looked = 0
        self._settle()
        self._expire()
        self._replay()

    def idle(self) -> float | None:
        self._expire()
        self._replay()
        if any(reader.hungry for reader in self._behind):
            return 0.0
        if self.store.retention.age is None and not self.store.overdue and not self._keeper:
            return None
        times = [due for due in (self._retain(), self._keeper.patience) if due is not None]
        return min(times, default=None)

    def _retain(self) -> float | None:
        """Remove what is too old; seconds until the next look."""
        store = self.store
        if store.retention.age is None and not store.overdue:
            return None
        try:
            store.retain(max(self._clock(), store.last_time))
        except StoreFull as e:
            log.warning("stream %r: nothing can be removed now: %s", self.name, e)
        return 0.0 if store.overdue else IDLE_RETENTION

    def _expire(self) -> None:
        """Markers in place of what nobody renewed."""
        if not self._keeper:
            return
        for subject in self._keeper.expired():
            self._waiting.append((self._next, _ENGINE, b"", subject, (b"",), b"", _MARKER))
            self._keeper.note(self._next, subject, 0, 0)
            self._next += 1
        self._settle()

    def _settle(self) -> None:
        """Store what waits, in one transaction; then hand it out."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        now = max(self._clock(), self.store.last_time)
        values, octets, sender = self._values(waiting)
        changes = self._keeper.changes((message[0], message[3]) for message in waiting)
        try:
            self.store.append(values, len(waiting), now, octets, dict(changes.values()), sender)
        except StoreFull as e:
            changes = {}
            self._refuse(waiting, e)
            return
        finally:
            self._ledger.settle()
            self._keeper.settle(changes)
        if self._refusing:
            self._refusing = False
            log.warning("stream %r stores again", self.name)
        self._hand_out(waiting, now)

    def _refuse(self, waiting: list[_Waiting], error: StoreFull) -> None:
        last = self.store.last
        self._next = last + 1
        self._ids.withdraw(last)
        self._ledger.refuse(last)
        if not self._refusing:
            self._refusing = True
            log.error("stream %r refuses messages, %d to begin with: %s", self.name, len(waiting), error)

    def _values(self, waiting: list[_Waiting]) -> tuple[list[Any], int, bytes | None]:
        """Columns of all rows, one row after another and no more columns than are used; their octets; the sender, if
        it is one, who then is not among the values."""
        if len(waiting) == 1:  # which is not to wait for the work that pays for many
            _, client, address, subject, content, message_id, fields = waiting[0]
            if len(content) == 1 and not message_id and not fields and client not in self._readers:
                return [subject, content[0]], len(address) + len(subject) + len(content[0]), address
        _, clients, senders, subjects, contents, ids, headers = zip(*waiting, strict=True)
        sender = senders[0] if senders.count(senders[0]) == len(senders) else None
        octets = sum(map(len, senders)) + sum(map(len, subjects)) + sum(map(len, ids))
        columns: list[Sequence[Any]] = [] if sender is not None else [senders]
        plain = not any(headers) and set(map(len, contents)) == {1} and self._readers.keys().isdisjoint(clients)
        if plain:
            bodies: Sequence[bytes] = [body for (body,) in contents]
            columns += (subjects, bodies)
            if any(ids):
                columns.append([one or None for one in ids])
        else:
            packed = list(map(pack, contents))
            bodies, lengths = [body for body, _ in packed], [one for _, one in packed]
            stored = list(map(pack_headers, headers))
            readers = [self._readers.get(client) for client in clients]
            origins = [None if reader is None else reader.origin for reader in readers]
            columns += (subjects, bodies, [one or None for one in ids], lengths, stored, origins)
            octets += sum(len(one) for one in stored if one)
        octets += sum(map(len, bodies))
        values: list[Any] = [None] * (len(columns) * len(waiting))
        for at, column in enumerate(columns):
            values[at :: len(columns)] = column
        return values, octets, sender

    # --- delivery ------------------------------------------------------------------------------------------------

    def _hand_out(self, stored: list[_Waiting], now: int) -> None:
        """To the readers that are live; the others find it in the store."""
        receivers, deliver = self._selectors.receivers, self._deliver
        if not self._readers:
            return
        for sequence, client, address, subject, content, message_id, headers in stored:
            found = receivers(subject)
            if not found:
                continue
            extension = of_stored(sequence, now, message_id, headers)
            for reader in found:
                if not reader.live or reader.client == client:
                    continue
                if reader.credit is not None:
                    if not reader.credit:
                        reader.fall_behind(sequence - 1)
                        self._behind[reader] = None
                        continue
                    reader.credit -= 1
                deliver(Delivery(reader.client, address, subject, content, extension))

    def _replay(self) -> None:
        """To those who are behind, by turns, so much at a time."""
        if not self._behind:
            return
        rows, octets = REPLAY_ROWS, REPLAY_OCTETS
        hungry = [reader for reader in self._behind if reader.hungry]
        while hungry and rows > 0 and octets > 0:
            reader = hungry.pop(0)
            del self._behind[reader]  # and to the end, below
            used_rows, used_octets = self._turn(reader, octets)
            rows, octets = rows - used_rows - 1, octets - used_octets
            if reader.live:
                continue
            self._behind[reader] = None
            if reader.hungry:
                hungry.append(reader)

    def _turn(self, reader: SubscriptionCursor, octets: int) -> tuple[int, int]:
        """One reader's; rows and octets that were read."""
        store = self.store
        limit = TURN_ROWS if reader.credit is None else min(TURN_ROWS, reader.credit + 15)
        found = store.read(reader.cursor, store.last, limit, octets)
        for row in found:
            if reader.credit == 0:
                break
            self._offer(reader, row)
            reader.cursor = row[0]
        if not found or reader.cursor >= store.last:
            reader.live = True
        return len(found), sum(len(row[4]) for row in found)

    def _offer(self, reader: SubscriptionCursor, row: Row) -> None:
        sequence, time, sender, subject, body, lengths, message_id, headers, origin = row
        if origin == reader.origin or not reader.wants(sequence, self._selectors.matching(subject)):
            return
        extension = of_stored(sequence, time, message_id or b"", unpack_headers(headers))
        if reader.credit is not None:
            reader.credit -= 1
        self.deliver(Delivery(reader.client, sender, subject, unpack(body, lengths), extension))
