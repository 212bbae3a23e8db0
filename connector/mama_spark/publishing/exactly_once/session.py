"""One attempt at one partition: takes the markers of each stream, reads back, and says which rows are stored already.

:mod:`.protocol` and :mod:`.matching` decide; this module talks to the middleware, on three threads. The task's thread
calls :meth:`BatchSession.begin` and what matches rows. The publisher's thread asks :meth:`BatchSession.may_send` and
:meth:`BatchSession.stored`. A thread of its own renews the task markers. They share the leases and the streams of the
topics, under one lock, which nobody holds while the middleware is asked.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from mama_spark.contracts.batch_ledger import BatchLedger, Marker, MarkerChanged
from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.publishing.ids.ids import Digests
from mama_spark.publishing.outage_reporter import WARNING_INTERVAL, retry_while_unavailable
from mama_spark.publishing.window.flight_batch import StoredFlights

from . import protocol
from .found_rows import Distinct, Found, FoundRows
from .matching import (
    ByStream,
    Claim,
    IdReader,
    Matching,
    StoredRows,
    StreamTables,
    decode_claim,
    digests_of_ids,
    encode_claim,
    rows_by_stream,
)
from .protocol import (
    LEASE_MARGIN,
    RENEWAL,
    Attempt,
    BatchMarker,
    BatchTurn,
    Step,
    Superseded,
    TaskMarker,
    TaskTurn,
    Turn,
)

logger = logging.getLogger("mama_spark")
T = TypeVar("T")


_POLL = 0.05  #: seconds between two looks at a marker
_ENDS = 1024  #: moments of which it is known where a stream ended


def _lease_clock() -> float:
    """Seconds, with those in which the machine sleeps, where its clock counts them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class DataRemoved(ConfigError):
    """Messages were removed from the stream before they were read back."""


class Rules(NamedTuple):
    """:ivar lease: seconds
    :ivar publish_anyway: what cannot be read back is published again, instead of an error
    :ivar wait: go on asking while the middleware does not answer
    :ivar reader: which rows the messages of the batch carry
    :ivar patience: seconds to wait for a server that may still hand on what an attempt before this one has sent
    :ivar publish_unfenced: then publish what is not found, instead of an error
    """

    lease: float
    publish_anyway: bool = False
    wait: bool = False
    reader: IdReader = IdReader()
    patience: float = math.inf
    publish_unfenced: bool = False


@dataclass(frozen=True, slots=True)
class PartitionLease:
    """That this attempt owns the partition in one stream.

    :ivar task: the marker; ``revision``: of it
    :ivar ends: moments, monotonic seconds, with the last sequence of the stream a little before: the first one is that
        before this attempt published, others come with each renewal and look
    :ivar until: until when nobody takes over, in the seconds of leases
    """

    key: str
    task: TaskMarker
    revision: int
    ends: tuple[tuple[float, int], ...]
    until: float


class BatchSession:
    """Calls: :meth:`open`, and :meth:`close` in any case.

    :param me: this attempt
    :param sent_to: see :meth:`~mama_spark.contracts.bridge.PublisherBridge.sent_to`
    :ivar unfenced: what an attempt before this one has sent may still be stored, and is published all the same
    """

    def __init__(
        self, ledger: BatchLedger, me: Attempt, rules: Rules, sent_to: Callable[[], tuple[str, ...]] = tuple
    ) -> None:
        self._ledger, self._me, self._rules, self._sent_to = ledger, me, rules, sent_to
        self.unfenced = self._all_answered = False
        self._matching = Matching(me.partition, shared=rules.reader.prefixed)  # of the task's thread
        self._claims_read: dict[str, int] = {}  # so is this
        self._lock = threading.Lock()
        self._stream_of: dict[str, str | None] = {}  # by topic; None = without markers
        self._leases: dict[str, PartitionLease] = {}  # by stream
        self._lost: list[MamaError] = []
        self._closed, self._renew_now = threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=self._renew_all, name="mama-batch-lease", daemon=True)

    def open(self) -> None:
        """:raises ConfigError, Unavailable: see :meth:`.BatchLedger.open`"""
        self._ask(self._ledger.open)

    def close(self) -> None:
        """Nothing is published any more: the next attempt need not wait. Never raises, may be repeated."""
        self._closed.set()
        self._renew_now.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        with self._lock:
            leases, self._leases = self._leases, {}
        for lease in leases.values():
            servers = () if self._all_answered else lease.task.servers
            released = protocol.encode(replace(lease.task, released=True, servers=servers))
            self._ledger.release_marker(lease.key, released, lease.revision)
        self._ledger.close()

    def _ask(self, ask: Callable[[], T]) -> T:
        say = "waiting until markers can be read and written: %s"
        return retry_while_unavailable(ask, wait=self._rules.wait, say=say)

    # --- the task's thread: begin --------------------------------------------------------------------------------

    def begin(self, topics: pa.Array) -> None:
        """Before anything is published to these topics.

        :raises ConfigError: what is stored cannot be told from what is not
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
        asked = _lease_clock()
        seen, bounds = self._ask(lambda: self._ledger.markers_and_bounds(name, keys))
        of_batch = BatchTurn(me, lease, bounds, lambda: self._end_of_earlier_runs(name))
        step, marker, had = self._take(of_batch, keys[0], seen[0], asked)
        batch = protocol.batch_marker(marker.value)
        assert batch is not None
        if step is Step.OLDER:
            self._removed(
                f"batch {me.batch} is older than batch {batch.batch}, which was published last to stream {name!r}: "
                "where it began is not known any more"
            )
            return
        # what earlier runs have stored lies up to ``until``, and is not looked for twice
        of_task = TaskTurn(me, lease, max(of_batch.last, batch.until or 0), _lease_clock(), self._sent_to())
        _, marker, _ = self._take(of_task, keys[1], seen[1], asked, lambda: self._require_batch(keys[0]))
        task = protocol.task_marker(marker.value)
        assert task is not None
        self._await_fences(name, of_task.before)
        since = self._last(name) if of_task.repeated else task.after
        earlier = own = None
        if batch.until is not None:
            earlier = self._read_back(name, batch.identity, batch.after, batch.until, me.prefix.encode())
        if of_task.repeated:
            own = self._read_back(name, batch.identity, task.after, since, me.own_prefix)
        self._matching.streams[name] = StreamTables(own, earlier)
        until = min(had, of_task.began) + LEASE_MARGIN * lease
        mine = PartitionLease(keys[1], task, marker.revision, ((-math.inf, since),), until)
        with self._lock:
            self._leases[name] = mine
        if self._keeper.ident is None:
            self._keeper.start()
        if _lease_clock() >= until:
            self._renew_now.set()

    def _take(
        self, turn: Turn, key: str, marker: Marker, at: float, check: Callable[[], None] = lambda: None
    ) -> tuple[Step, Marker, float]:
        """Go through the steps of a marker; the last one, the marker as it is then, and when it was certainly so.

        :param marker: after ``at``: if it has changed, it is not replaced
        :param check: called when it was read again: raises if it may not be replaced any more
        """
        waits = False
        while True:
            step = turn.step(marker, _lease_clock())
            if isinstance(step, Step):
                return step, marker, at
            now: Marker | None = None
            at = _lease_clock()
            if not isinstance(step, float):
                now = self._try_set(key, step, marker)
            else:
                if not waits:
                    logger.info("partition %d waits until nobody else publishes it any more", self._me.partition)
                waits = True
                time.sleep(min(_POLL, step))
            if now is None:
                at, now = _lease_clock(), self._ask(lambda: self._ledger.marker(key))
                check()
            marker = now

    def _require_batch(self, key: str) -> None:
        """:raises Superseded: another run has the batch"""
        batch = protocol.batch_marker(self._ask(lambda: self._ledger.marker(key)).value)
        protocol.require_run(self._me, batch)

    def _end_of_earlier_runs(self, name: str) -> int:
        if self._sent_to():
            key = self._me.key(name, "task")
            markers = self._ask(lambda: self._ledger.markers_below(key))
            self._await_fences(name, protocol.servers_of(markers, self._me.batch))
        return self._last(name)

    def _await_fences(self, name: str, servers: Iterable[str]) -> None:
        """Wait until nothing that was sent to these servers can be stored any more.

        :raises Unavailable: it may be for too long
        """
        for server in servers:
            began, warned = time.monotonic(), -math.inf
            while why := self._ask(partial(self._ledger.why_unfenced, name, server)):
                now = time.monotonic()
                if now - began >= self._rules.patience:
                    if not self._rules.publish_unfenced:
                        raise Unavailable(
                            f"an attempt before this one has sent rows of partition {self._me.partition}, and {why}. "
                            "A repetition waits again; if the server is gone for good, set onSilentServer=publish"
                        )
                    logger.warning("%s; publishing what is not found all the same (onSilentServer=publish)", why)
                    self.unfenced = True
                    break
                if now >= warned + WARNING_INTERVAL:
                    warned = now
                    logger.warning(
                        "partition %d waits, because an attempt before this one has sent rows, and %s",
                        self._me.partition, why,
                    )  # fmt: skip
                time.sleep(_POLL)

    def _try_set(self, key: str, value: BatchMarker | TaskMarker, read: Marker) -> Marker | None:
        """The marker as it is stored now; None: it has changed meanwhile, or nobody knows."""
        text = protocol.encode(value)
        try:
            return Marker(self._ask(lambda: self._ledger.set_marker(key, text, read.revision)), text)
        except MarkerChanged:
            return None  # which may have been a repetition of the same request

    def _last(self, name: str) -> int:
        return self._ask(lambda: self._ledger.bounds(name)).last

    def _read_back(self, name: str, identity: str, after: int, up_to: int, prefix: bytes) -> StoredRows:
        """What is stored of the batch (its prefix), or of this partition of it."""
        began, reader = time.monotonic(), self._rules.reader
        rows, read = StoredRows(after, len(self._me.prefix)), 0

        wanted = prefix if reader.prefixed else b""
        for some in self._ledger.read(name, after, up_to, wanted, records=reader.unpack is not None):
            read += some.read
            reader.add(rows, some)
        rows.finish()
        self._check_complete(name, identity, after, up_to)
        logger.info(
            "partition %d, stream %s: %s rows of batch %d are stored already (%s messages read back in %.1f s, from "
            "sequence %d to %d)",
            self._me.partition, name, f"{len(rows):,}", self._me.batch, f"{read:,}", time.monotonic() - began,
            after + 1, up_to,
        )  # fmt: skip
        return rows

    def _check_complete(self, name: str, identity: str, after: int, up_to: int) -> None:
        bounds = self._ask(lambda: self._ledger.bounds(name))
        if bounds.identity != identity:
            self._removed(f"stream {name!r} was deleted and made again since batch {self._me.batch} began")
            return
        if bounds.last < up_to:
            self._removed(
                f"stream {name!r} ends at sequence {bounds.last}, and went on to {up_to} when this run of batch "
                f"{self._me.batch} began (was it restored from an older copy?)"
            )
            return
        missing = self._ask(lambda: self._ledger.missing(name, after, up_to))
        if missing:
            (first, last), n = missing[0], sum(high - low + 1 for low, high in missing)
            self._removed(
                f"{n:,} messages of stream {name!r} that were stored since batch {self._me.batch} began are removed "
                f"(sequences {first} to {last}{' and others' if len(missing) > 1 else ''})"
            )

    def _removed(self, what: str) -> None:
        text = f"{what}, so what is stored of it cannot be told from what was never stored"
        if not self._rules.publish_anyway:
            raise DataRemoved(
                f"{text}. Option onRetention=publish publishes its rows all the same, of which some may then be stored "
                "twice"
            )
        logger.warning("%s; publishing all that is not found (onRetention=publish)", text)

    # --- the task's thread: rows ---------------------------------------------------------------------------------

    @property
    def repeats(self) -> bool:
        """Something may be stored already."""
        return self._matching.repeats

    def match_stored_rows(self, topics: pa.DictionaryArray, digests: Digests) -> tuple[Found, list[StoredFlights]]:
        """Which of these rows are stored already: for each row, and the same by stream."""
        return self._matching.rows(self._by_stream(topics), digests, self._claim)

    def match_stored_letters(self, letters: MessageBatch) -> list[StoredFlights]:
        """Those of these dead letters that are stored under the same id.

        :raises ConfigError, Unavailable: see :meth:`begin`
        """
        self.begin(letters.topics.dictionary)
        if not self.repeats or letters.ids is None:
            return []
        ids = letters.ids.cast(pa.binary()).to_pylist()
        if not self._rules.reader.prefixed:
            return self.match_stored_rows(letters.topics, digests_of_ids(ids))[1]
        return self._matching.others(self._by_stream(letters.topics), ids)

    def free_numbers(self, topics: pa.DictionaryArray, digests: Digests, numbers: Int64s) -> Int64s:
        """See :meth:`.Matching.free_numbers`."""
        return self._matching.free_numbers(self._by_stream(topics), digests, numbers) if self.repeats else numbers

    def _by_stream(self, topics: pa.DictionaryArray) -> ByStream:
        with self._lock:
            names = [self._stream_of.get(topic) for topic in topics.dictionary.to_pylist()]
        return rows_by_stream(topics, names)

    def _claim(self, stream: str, table: FoundRows, part: Distinct) -> None:
        """Write the next claim of the log, or read the one that is there."""
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
        """See :class:`~mama_spark.publishing.batch_config.SendGuard`."""
        with self._lock:
            lost, leases = self._lost, list(self._leases.values())
        if lost:
            raise lost[0]
        now, servers = _lease_clock(), self._sent_to()
        if any(server not in lease.task.servers for lease in leases for server in servers):
            self._renew_now.set()  # nothing is sent to a server before the marker names it
            return False
        return all(now < lease.until for lease in leases)

    def all_answered(self) -> None:
        """See :class:`~mama_spark.publishing.batch_config.SendGuard`."""
        self._all_answered = True

    def stored(self, messages: MessageBatch, since: float) -> list[StoredFlights]:
        """See :class:`~mama_spark.publishing.window.send_loop.StoredCheck`."""
        assert messages.ids is not None
        texts, parts = messages.ids.cast(pa.binary()).to_pylist(), []
        prefix = self._me.own_prefix if self._rules.reader.prefixed else b""
        for name, rows in self._by_stream(messages.topics):
            with self._lock:
                ends = self._leases[name].ends
            after = ends[max(0, bisect_right(ends, (since, -1)) - 1)][1]
            wanted, found = {texts[row]: row for row in rows.tolist()}, dict[int, int]()
            last = self._ledger.bounds(name).last
            self._note_end(name, last)
            for some in self._ledger.read(name, after, last, prefix):
                for text, sequence in zip(some.ids, some.sequences.tolist(), strict=True):
                    if text in wanted:
                        found.setdefault(wanted[text], sequence)
            logger.info("of %d messages without an answer, %d are stored", len(wanted), len(found))
            if found:
                at = np.array(sorted(found), np.int64)
                parts.append(StoredFlights(name, at, np.array([found[row] for row in at.tolist()], np.int64)))
        return parts

    def _note_end(self, name: str, last: int) -> None:
        """What is sent from now on is stored behind this sequence."""
        with self._lock:
            if (lease := self._leases.get(name)) is not None:
                self._leases[name] = replace(lease, ends=_with_end(lease.ends, time.monotonic(), last))

    # --- the thread that renews --------------------------------------------------------------------------------------

    def _renew_all(self) -> None:
        while not self._closed.is_set():
            self._renew_now.wait(self._rules.lease * RENEWAL)
            self._renew_now.clear()
            with self._lock:
                leases = dict(self._leases)
            for name, lease in leases.items():
                if self._closed.is_set():
                    return
                try:
                    renewed = self._renewed(name, lease)
                except (Superseded, ConfigError) as e:
                    with self._lock:
                        self._lost = [e]
                    return
                except MamaError as e:  # nothing is sent until it succeeds
                    logger.info("the marker of partition %d is not renewed: %s", self._me.partition, e)
                    self._closed.wait(_POLL)
                    continue
                with self._lock:
                    self._leases[name] = replace(renewed, ends=self._leases[name].ends)

    def _renewed(self, name: str, lease: PartitionLease) -> PartitionLease:
        me, began, servers = self._me, _lease_clock(), self._sent_to()
        markers, bounds = self._ledger.markers_and_bounds(name, [me.key(name, "batch")])
        self._note_end(name, bounds.last)
        protocol.require_run(me, protocol.batch_marker(markers[0].value))
        mine = replace(lease.task, renewed=lease.task.renewed + 1, servers=servers)
        try:
            revision = self._ledger.set_marker(lease.key, protocol.encode(mine), lease.revision)
        except MarkerChanged:
            marker = self._ledger.marker(lease.key)
            found = protocol.task_marker(marker.value)
            if found is None or found.owner != me.owner:
                raise Superseded(f"another attempt publishes partition {me.partition} by now") from None
            self._renew_now.set()  # the answer of a renewal was lost: nobody knows since when the marker stands still
            return replace(lease, task=found, revision=marker.revision)
        return replace(lease, task=mine, revision=revision, until=began + LEASE_MARGIN * self._rules.lease)


def _with_end(ends: tuple[tuple[float, int], ...], at: float, last: int) -> tuple[tuple[float, int], ...]:
    """The first, and the latest ones, ascending."""
    return tuple(sorted((*ends[:1], *ends[1:][-_ENDS:], (at, last))))
