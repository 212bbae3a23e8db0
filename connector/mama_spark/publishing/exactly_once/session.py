"""One attempt at one partition: takes the markers of each stream, reads back, and matches stored rows.

:mod:`.protocol` and :mod:`.matching` decide; this module talks to the middleware, on the threads of the task and of the
publisher. A lock guards the streams of the topics; no thread holds it while it waits for the middleware.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.batch_ledger import BatchLedger, Marker, MarkerChanged
from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.message import Int64s, MessageBatch, rows_by_stream
from mama_spark.publishing.ids.ids import Digests
from mama_spark.publishing.outage_reporter import WarningTimer, retry_while_unavailable
from mama_spark.publishing.window.flight_batch import StoredFlights
from mama_spark.publishing.window.stream_ends import StreamEnds

from . import protocol
from .found_rows import Distinct, Found, FoundRows
from .matching import ByStream, Claim, IdReader, Matching, StreamTables, decode_claim, digests_of_ids, encode_claim
from .partition_leases import PartitionLease, PartitionLeases, lease_clock, lease_end
from .protocol import Attempt, BatchMarker, BatchTurn, Step, TaskMarker, TaskTurn, Turn
from .read_back import ReadBack

logger = logging.getLogger("mama_spark")
T = TypeVar("T")


_POLLS = Backoff(0.05, 0.25)  #: between two looks at a marker, or at a server
_LOOK = 1.0  #: seconds that one stream may block the publisher, which has others


class Rules(NamedTuple):
    """Options of a write that is stored once.

    :ivar lease: length of a lease in seconds
    :ivar publish_anyway: publish rows that cannot be read back, instead of an error
    :ivar wait: repeat requests while the middleware does not answer
    :ivar reader: reads the rows of a message
    :ivar patience: seconds to wait for a server that may still hand on messages of an earlier attempt
    :ivar publish_unfenced: after ``patience``, publish the rows not found, instead of an error
    """

    lease: float
    publish_anyway: bool = False
    wait: bool = False
    reader: IdReader = IdReader()
    patience: float = math.inf
    publish_unfenced: bool = False


class BatchSession:
    """:class:`.SendGuard` of one attempt: call :meth:`open` first, and :meth:`close` in any case.

    :param sent_to: see :meth:`~mama_spark.contracts.bridge.PublisherBridge.sent_to`
    :ivar unfenced: rows are published although messages of an earlier attempt may still be stored
    """

    def __init__(
        self,
        ledger: BatchLedger,
        me: Attempt,
        rules: Rules,
        sent_to: Callable[[], tuple[str, ...]] = tuple,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._ledger, self._me, self._rules, self._sent_to, self._clock = ledger, me, rules, sent_to, clock
        self._leases = PartitionLeases(ledger, me, rules.lease, sent_to, clock)
        self._read_back = ReadBack(ledger, me, rules.reader, rules.publish_anyway, self._ask)
        self.unfenced = self._all_answered = False
        self._matching = Matching(me.partition, shared=rules.reader.prefixed)  # of the task's thread
        self._claims_read: dict[str, int] = {}  # of the task's thread, too
        self._lock = threading.Lock()
        self._stream_of: dict[str, str | None] = {}  # by topic; None = without markers

    def open(self) -> None:
        """Open the ledger. ConfigError, Unavailable: see :meth:`.BatchLedger.open`."""
        self._ask(self._ledger.open)

    def close(self) -> None:
        """Release the markers, so the next attempt need not wait. Never raises, may be repeated."""
        for lease in self._leases.stop():
            servers = () if self._all_answered else lease.task.servers
            released = protocol.encode(replace(lease.task, released=True, servers=servers))
            self._ledger.release_marker(lease.key, released, lease.revision)
        self._leases.join()
        self._ledger.close()

    def _ask(self, ask: Callable[[], T]) -> T:
        say = "waiting until markers can be read and written: %s"
        return retry_while_unavailable(ask, wait=self._rules.wait, say=say)

    # --- the task's thread: begin --------------------------------------------------------------------------------

    def begin(self, topics: pa.Array) -> None:
        """Take the markers of the streams of these topics; called before rows are published to them.

        :raises ConfigError: stored rows cannot be told from missing ones
        :raises Unavailable: the middleware does not answer, or another run has the batch
        """
        with self._lock:
            new = [topic for topic in topics.to_pylist() if topic is not None and topic not in self._stream_of]
        if not new:
            return
        found = self._ask(lambda: self._ledger.streams_of(pa.array(new, pa.string())))
        for name in filter(None, dict.fromkeys(found)):
            if name not in self._matching.streams:
                self._begin_stream(name)
        with self._lock:
            for topic, stream in zip(new, found, strict=True):
                self._stream_of[topic] = stream if stream in self._matching.streams else None

    def _begin_stream(self, name: str) -> None:
        me, lease = self._me, self._rules.lease
        keys = [me.key(name, "batch"), me.key(name, "task", me.partition)]
        asked = self._clock()
        seen, bounds = self._ask(lambda: self._ledger.markers_and_bounds(name, keys))
        of_batch = BatchTurn(me, lease, bounds, lambda: self._end_of_earlier_runs(name))
        step, marker, had = self._take(of_batch, keys[0], seen[0], asked)
        batch = protocol.batch_marker(marker.value)
        assert batch is not None
        if step is Step.OLDER:
            rule = f" (txnVersion must rise: {me.batch} < {batch.batch})" if me.numbered_by_user else ""
            self._read_back.removed(
                f"batch {me.batch} is older than batch {batch.batch}, which was published last to stream {name!r}: "
                f"where it began is not known any more{rule}"
            )
            return
        # rows of earlier runs lie up to ``until``, and are searched for once
        of_task = TaskTurn(me, lease, max(of_batch.last, batch.until or 0), self._clock(), self._sent_to())
        _, marker, _ = self._take(of_task, keys[1], seen[1], asked, lambda: self._require_batch(keys[0]))
        task = protocol.task_marker(marker.value)
        assert task is not None
        self._await_fences(name, of_task.before)
        since = self._last(name) if of_task.repeated else task.after
        earlier = own = None
        if batch.until is not None:
            earlier = self._read_back.rows(name, batch.identity, batch.after, batch.until, me.prefix.encode())
        if of_task.repeated:
            own = self._read_back.rows(name, batch.identity, task.after, since, me.own_prefix)
        self._matching.streams[name] = StreamTables(own, earlier)
        until = lease_end(min(had, of_task.began), lease)
        mine = PartitionLease(keys[1], task, marker.revision, StreamEnds(since), until)
        self._leases.add(name, mine)

    def _take(
        self, turn: Turn, key: str, marker: Marker, at: float, check: Callable[[], None] = lambda: None
    ) -> tuple[Step, Marker, float]:
        """Take the steps of a turn; returns the last step, the marker then, and a time before it was read or written.

        :param marker: as read after ``at``; it is replaced only while unchanged
        :param check: called after each new read; raises if the marker must not be replaced
        """
        waits, looks = False, _POLLS.delays()
        while True:
            step = turn.step(marker, self._clock())
            if isinstance(step, Step):
                return step, marker, at
            now: Marker | None = None
            at = self._clock()
            if not isinstance(step, float):
                now = self._try_set(key, step, marker)
            else:
                if not waits:
                    logger.info("partition %d waits until the other task has ended", self._me.partition)
                waits = True
                time.sleep(min(looks.next(), step))
            if now is None:
                at, now = self._clock(), self._ask(lambda: self._ledger.marker(key))
                check()
            marker = now

    def _require_batch(self, key: str) -> None:
        batch = protocol.batch_marker(self._ask(lambda: self._ledger.marker(key)).value)
        protocol.require_run(self._me, batch)

    def _end_of_earlier_runs(self, name: str) -> int:
        if self._sent_to():
            key = self._me.key(name, "task")
            markers = self._ask(lambda: self._ledger.markers_below(key))
            self._await_fences(name, protocol.servers_of(markers, self._me.batch))
        return self._last(name)

    def _await_fences(self, name: str, servers: Iterable[str]) -> None:
        """Wait until no earlier message to these servers can still be stored. Unavailable: not within ``patience``."""
        for server in servers:
            began, warnings, looks = time.monotonic(), WarningTimer(), _POLLS.delays()
            while why := self._ask(partial(self._ledger.why_unfenced, name, server)):
                if time.monotonic() - began >= self._rules.patience:
                    if not self._rules.publish_unfenced:
                        raise Unavailable(
                            f"an attempt before this one has sent rows of partition {self._me.partition}, and {why}. "
                            "A repetition waits again; if the server is gone for good, set onSilentServer=publish"
                        )
                    logger.warning("%s; publishing the rows not found (onSilentServer=publish)", why)
                    self.unfenced = True
                    break
                if warnings.due(time.monotonic()):
                    logger.warning(
                        "partition %d waits, because an attempt before this one has sent rows, and %s",
                        self._me.partition, why,
                    )  # fmt: skip
                time.sleep(looks.next())

    def _try_set(self, key: str, value: BatchMarker | TaskMarker, read: Marker) -> Marker | None:
        """The stored marker; None: it has changed since ``read``."""
        text = protocol.encode(value)
        try:
            return Marker(self._ask(lambda: self._ledger.set_marker(key, text, read.revision)), text)
        except MarkerChanged:
            return None  # perhaps by a repetition of the same request

    def _last(self, name: str) -> int:
        return self._ask(lambda: self._ledger.decided_last(name))

    # --- the task's thread: rows ---------------------------------------------------------------------------------

    @property
    def repeats(self) -> bool:
        return self._matching.repeats

    def match_stored_rows(self, topics: pa.DictionaryArray, digests: Digests) -> tuple[Found, list[StoredFlights]]:
        return self._matching.rows(self._by_stream(topics), digests, self._claim)

    def match_stored_dead_letters(self, dead_letters: MessageBatch) -> list[StoredFlights]:
        """The dead letters that are stored under the same id.

        :raises ConfigError, Unavailable: see :meth:`begin`
        """
        self.begin(dead_letters.topics.dictionary)
        if not self.repeats or dead_letters.ids is None:
            return []
        ids = dead_letters.ids.cast(pa.binary()).to_pylist()
        if not self._rules.reader.prefixed:
            return self.match_stored_rows(dead_letters.topics, digests_of_ids(ids))[1]
        return self._matching.others(self._by_stream(dead_letters.topics), ids)

    def free_numbers(self, topics: pa.DictionaryArray, digests: Digests, numbers: Int64s) -> Int64s:
        return self._matching.free_numbers(self._by_stream(topics), digests, numbers) if self.repeats else numbers

    def _by_stream(self, topics: pa.DictionaryArray) -> ByStream:
        with self._lock:
            names = [self._stream_of.get(topic) for topic in topics.dictionary.to_pylist()]
        return rows_by_stream(topics, names)

    def _claim(self, stream: str, table: FoundRows, part: Distinct) -> None:
        me, number = self._me, self._claims_read.get(stream, 0)
        key = me.key(stream, "claim", number)
        mine = encode_claim(Claim(me.batch, me.run, me.partition, part))
        marker = self._ask(lambda: self._ledger.marker(key))
        found = decode_claim(marker.value)
        if found is None or (found.batch, found.run) != (me.batch, me.run):
            self._require_batch(me.key(stream, "batch"))
            try:
                self._ask(lambda: self._ledger.set_marker(key, mine, marker.revision))
            except MarkerChanged:
                return  # by another task, or by a repetition of the same request: it is read next
            table.claim(part, mine=True)
        else:
            table.claim(found.contents, mine=found.partition == me.partition)
        self._claims_read[stream] = number + 1

    # --- the publisher's thread ------------------------------------------------------------------------------------

    def may_send(self) -> bool:
        return self._leases.may_send()

    @property
    def patience(self) -> float:
        return self._rules.patience if self._rules.publish_unfenced else math.inf

    @property
    def expired(self) -> bool:
        return self._leases.expired

    def all_answered(self) -> None:
        self._all_answered = True

    def stored(self, batches: Sequence[MessageBatch], since: float) -> list[list[StoredFlights]]:
        wanted: dict[str, dict[bytes, tuple[int, int]]] = {}  # batch and row of each id, by stream
        for number, messages in enumerate(batches):
            assert messages.ids is not None
            ids = messages.ids.cast(pa.binary()).to_pylist()
            for name, rows in self._by_stream(messages.topics):
                wanted.setdefault(name, {}).update((ids[row], (number, row)) for row in rows.tolist())
        parts: list[list[StoredFlights]] = [[] for _ in batches]
        for name, rows_of in wanted.items():
            found = self._look(name, rows_of, since)
            logger.info("of %d messages without an answer, %d are stored", len(rows_of), len(found))
            for number, part in enumerate(parts):
                mine = sorted((row, sequence) for (batch, row), sequence in found.items() if batch == number)
                if mine:
                    at, sequences = np.array(mine, np.int64).T
                    part.append(StoredFlights(name, at, sequences))
        return parts

    def _look(self, name: str, rows_of: dict[bytes, tuple[int, int]], since: float) -> dict[tuple[int, int], int]:
        """First sequence of each stored id, by batch and row."""
        after = self._leases.end_before(name, since)
        last = self._ledger.decided_last(name, _LOOK)
        self._leases.note_end(name, last)
        found: dict[tuple[int, int], int] = {}
        prefix = self._me.own_prefix if self._rules.reader.prefixed else b""
        for some in self._ledger.read(name, after, last, prefix):
            for text, sequence in zip(some.ids, some.sequences.tolist(), strict=True):
                if text in rows_of:
                    found.setdefault(rows_of[text], sequence)
        return found
