"""A stream whose messages are numbered, kept on disk and replayed (ML-01, ML-22).

A message is stored before anybody gets it, and acknowledged when its batch is stored: one transaction a batch of
commands. Sequences begin at 1 and have no holes; retention removes from the front. A client that subscribes with
``after`` gets what is stored behind that sequence and then what comes, in order, each message once. What a client has
no credit for stays in the store and is read from there later, so slow clients cost no memory.

A message that a client sent while it was subscribed never comes back to it, replayed or not (ML-15); what it sent
before, or over an earlier connection, is replayed like anybody's if it asks.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ..extensions import NOTHING, AckRun, Extension, Outcome
from . import Delivery, StreamEngine
from .dedup import DedupWindow
from .durable_settings import DurableSettings
from .durable_store import ALL, MOST_OCTETS, PLAIN, WITH_IDS, Retention, Row, Store, StoreFull, now_us, store_path
from .frames import pack, pack_headers, unpack, unpack_headers
from .ledger import Ledger
from .readers import Reader
from .selectors import Selectors

log = logging.getLogger(__name__)

#: What one call replays at most, to all readers together, and to one of them in a turn: enough to be worth a query,
#: little enough that commands do not wait and memory stays small.
REPLAY_OCTETS = 4 * 1024 * 1024
REPLAY_ROWS = 4096
TURN_ROWS = 512
#: Seconds between two looks at the age of messages while nothing else happens.
IDLE_RETENTION = 1.0


#: A message of the batch that is not stored yet: sequence, client, address, subject, content, extension. A plain tuple,
#: since one is made for each message.
_Waiting = tuple[int, Hashable, bytes, bytes, Sequence[bytes], Extension]


class DurableEngine(StreamEngine):
    """:param settings: see :class:`~mama_spark.malamute.engines.durable_settings.DurableSettings`"""

    stored = True

    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, settings)
        self._options = DurableSettings.parse(name, self.settings)
        self._clock: Callable[[], int] = now_us
        self._store: Store | None = None
        self._selectors = Selectors()
        self._readers: dict[Hashable, Reader] = {}
        self._behind: dict[Reader, None] = {}  # readers that are not live, whose turn it is first
        self._ledger = Ledger()
        self._ids = DedupWindow(int(self._options.dedup_window * 1e6), self._options.dedup_ids)
        self._waiting: list[_Waiting] = []
        self._next = 0
        self._refusing = False

    def __repr__(self) -> str:
        last = self._next - 1 if self._next else "not open"
        return f"<DurableEngine {self.name!r}, last {last}, {len(self._readers)} readers, {len(self._behind)} behind>"

    @property
    def store(self) -> Store:
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
        self._store = Store(store_path(options.folder, self.name), self.name, retention, options.synchronous)
        self._next = self._store.last + 1
        now = self._clock()
        self._ids.load(self._store.ids(now - self._ids.span))
        self._ids.expire(now)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    # --- subscriptions -------------------------------------------------------------------------------------------

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        self._settle()  # what came before is for those who subscribed before
        reader = self._readers.get(client)
        if reader is None:
            reader = Reader(client, origin=secrets.randbits(62))
        elif pattern in reader.patterns:
            return
        self._selectors.add(pattern, reader)
        self._readers[client] = reader
        reader.subscribe(pattern, after, self.store.last)
        if not reader.live:
            self._behind[reader] = None

    def cancel(self, client: Hashable) -> None:
        self._settle()  # which is this client's still, if it matches
        reader = self._readers.pop(client, None)
        if reader is not None:
            self._selectors.remove(reader)
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
        outcome, first = Outcome.STORED, sequence
        if (len(content[0]) if len(content) == 1 else sum(map(len, content))) > MOST_OCTETS:
            outcome, first = Outcome.REFUSED, 0
        elif extension is not None and extension.message_id:
            outcome, first = self._first_of(extension.message_id)
        if extension is not None:
            self._ledger.add(client, outcome, first)
        if outcome is not Outcome.STORED:
            return
        self._next = sequence + 1
        self._waiting.append((sequence, client, address, subject, content, NOTHING if extension is None else extension))

    def _first_of(self, message_id: bytes) -> tuple[Outcome, int]:
        """Whether the next message is the first of its id, and the sequence of the first."""
        now = self._clock()
        self._ids.expire(now)
        found = self._ids.find(message_id)
        if found is not None:
            return Outcome.DUPLICATE, found
        self._ids.add(message_id, self._next, now)
        return Outcome.STORED, self._next

    def sync(self, client: Hashable) -> tuple[AckRun, ...] | Callable[[], tuple[AckRun, ...]]:
        runs = self._ledger.take(client)
        return runs.acks if self._waiting else runs.acks()

    def flush(self) -> None:
        self._settle()
        self._replay()

    def idle(self) -> float | None:
        self._replay()
        if any(reader.hungry for reader in self._behind):
            return 0.0
        store = self.store
        if store.retention.age is None and not store.overdue:
            return None
        try:
            store.retain(max(self._clock(), store.last_time))
        except StoreFull as e:
            log.warning("stream %r: nothing can be removed now: %s", self.name, e)
        return 0.0 if store.overdue else IDLE_RETENTION

    def _settle(self) -> None:
        """Store what waits, in one transaction; then hand it out."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        now = max(self._clock(), self.store.last_time)
        values, octets = self._values(waiting)
        try:
            self.store.append(values, len(waiting), now, octets)
        except StoreFull as e:
            self._refuse(waiting, e)
            return
        finally:
            self._ledger.settle()
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

    def _values(self, waiting: list[_Waiting]) -> tuple[list[Any], int]:
        """Columns of all rows, one row after another and no more columns than are used, and their octets."""
        values: list[Any] = []
        octets = 0
        readers, width = self._readers, PLAIN
        for _, client, _, _, content, extension in waiting:
            if len(content) != 1 or client in readers or extension.headers:
                width = ALL
                break
            if extension.message_id:
                width = WITH_IDS
        if width < ALL:
            for _, _, address, subject, (body,), extension in waiting:
                values += (address, subject, body)
                octets += len(address) + len(subject) + len(body)
                if width == WITH_IDS:
                    values.append(extension.message_id or None)
                    octets += len(extension.message_id)
            return values, octets
        for _, client, address, subject, content, extension in waiting:
            body, lengths = pack(content)
            message_id, headers = extension.message_id or None, pack_headers(extension.headers)
            reader = readers.get(client)
            origin = None if reader is None else reader.origin
            values += (address, subject, body, message_id, lengths, headers, origin)
            octets += len(address) + len(subject) + len(body) + len(message_id or b"") + len(headers or b"")
        return values, octets

    # --- delivery ------------------------------------------------------------------------------------------------

    def _hand_out(self, stored: list[_Waiting], now: int) -> None:
        """To the readers that are live; the others find it in the store."""
        receivers, deliver = self._selectors.receivers, self._deliver
        if not self._readers:
            return
        for sequence, client, address, subject, content, given in stored:
            found = receivers(subject)
            if not found:
                continue
            extension = Extension(sequence=sequence, time=now, message_id=given.message_id, headers=given.headers)
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

    def _turn(self, reader: Reader, octets: int) -> tuple[int, int]:
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

    def _offer(self, reader: Reader, row: Row) -> None:
        sequence, time, sender, subject, body, lengths, message_id, headers, origin = row
        if origin == reader.origin or not reader.wants(sequence, self._selectors.matching(subject)):
            return
        extension = Extension(
            sequence=sequence, time=time, message_id=message_id or b"", headers=unpack_headers(headers)
        )
        if reader.credit is not None:
            reader.credit -= 1
        self.deliver(Delivery(reader.client, sender, subject, unpack(body, lengths), extension))
