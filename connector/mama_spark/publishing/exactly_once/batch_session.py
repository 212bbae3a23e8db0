"""One attempt at one partition: takes the markers of each stream, reads back, and says which rows are stored already.

:mod:`.protocol` decides; this module talks to the middleware. The task's thread calls :meth:`BatchSession.begin` and
:meth:`BatchSession.serve`; the publisher's thread asks :meth:`BatchSession.may_send` and :meth:`BatchSession.stored`; a
thread of its own renews the task markers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mama_spark.contracts.batch_ledger import BatchLedger, Marker, MarkerChanged, StoredIds
from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.contracts.record_log import Bounds
from mama_spark.publishing.ids.id_lifetime import known_for
from mama_spark.publishing.window.flight_batch import StoredFlights

from . import claims, protocol
from .found_rows import Distinct, Found, FoundRows, Keys, free_numbers
from .protocol import Attempt, BatchMarker, Step, TaskMarker
from .stored_rows import IdReader, StoredRows, keys_of_ids

logger = logging.getLogger("mama_spark")
T = TypeVar("T")

#: Parts of a lease: between two renewals, and after which the owner sends nothing any more.
_RENEW, _SURE = 1 / 3, 0.8
_POLL = 0.05  #: seconds between two looks at a marker


class Superseded(Unavailable):
    """Another attempt has taken over: this one publishes nothing any more."""


class DataRemoved(ConfigError):
    """Messages were removed from the stream before they were read back."""


class Rules(NamedTuple):
    """:ivar lease: seconds
    :ivar publish_anyway: what cannot be read back is published again, instead of an error
    :ivar wait: go on asking while the middleware does not answer
    :ivar reader: which rows the messages of the batch carry
    """

    lease: float
    publish_anyway: bool = False
    wait: bool = False
    reader: IdReader = IdReader()


@dataclass(slots=True)
class _Stream:
    """:ivar since: last sequence before this attempt published
    :ivar earlier: rows that earlier runs have stored; None = there was no earlier run
    :ivar own: rows that earlier attempts of this run have stored; None = there was no earlier attempt
    :ivar sure_until: monotonic seconds until which nobody takes over
    """

    name: str
    key: str
    task: TaskMarker
    revision: int
    since: int
    sure_until: float
    earlier: StoredRows | None = None
    own: StoredRows | None = None
    claims_read: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tables(self) -> list[StoredRows]:
        return [table for table in (self.own, self.earlier) if table is not None]


class BatchSession:
    """:param ledger: open; it stays open
    :param me: this attempt
    """

    def __init__(
        self,
        ledger: BatchLedger,
        me: Attempt,
        rules: Rules,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ledger, self._me, self._rules = ledger, me, rules
        self._clock, self._sleep = clock, sleep
        self._stream_of: dict[str, str | None] = {}
        self._streams: dict[str, _Stream] = {}
        self._lost: MamaError | None = None
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None
        self.found = 0

    # --- the task's thread: begin --------------------------------------------------------------------------------

    def begin(self, topics: pa.Array) -> None:
        """Before anything is published to these topics.

        :raises ConfigError: what is stored cannot be told from what is not
        :raises Unavailable: the middleware does not answer, or another run has the batch
        """
        new = [topic for topic in topics.to_pylist() if topic is not None and topic not in self._stream_of]
        if not new:
            return
        found = self._patiently(lambda: self._ledger.streams_of(pa.array(new, pa.string())))
        for name in dict.fromkeys(found):
            if name is not None and name not in self._streams:
                self._begin_stream(name)
        self._stream_of.update(zip(new, found, strict=True))

    def _begin_stream(self, name: str) -> None:
        keys = [self._me.key(name, "batch"), self._me.key(name, "task", self._me.partition)]
        seen, bounds = self._patiently(lambda: self._ledger.look(name, keys))
        batch, last = self._take_batch(name, seen[0], bounds)
        if batch is None:
            return
        # what earlier runs have stored lies up to ``until``, and is not looked for twice
        stream, repeated = self._take_task(name, max(last, batch.until or 0), seen[1])
        if batch.until is not None:
            stream.earlier = self._read_back(name, batch.identity, batch.after, batch.until, self._me.prefix.encode())
        if repeated:
            stream.own = self._read_back(name, batch.identity, stream.task.after, stream.since, self._me.own_prefix)
        self._streams[name] = stream
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._renew_all, name="mama-batch-lease", daemon=True)
            self._keeper.start()

    def _take_batch(self, name: str, first: Marker, bounds: Bounds) -> tuple[BatchMarker | None, int]:
        """Have the batch marker name this run; None: the batch is published without a look at what is stored. And the
        last sequence of the stream at a moment before this partition is published.

        :param first: the marker; ``bounds``: of the stream, at the same time
        """
        key, me, last = self._me.key(name, "batch"), self._me, bounds.last
        seen, known = _Seen(self._clock), [first]
        while True:
            marker = known.pop() if known else self._patiently(lambda: self._ledger.marker(key))
            found = protocol.batch_marker(marker.value)
            step, still = protocol.step_of_batch(me, found), seen.still(marker.revision)
            if found is None or step is Step.NEW:
                new = protocol.new_batch(me, bounds.identity, last)
                if self._try_set(key, new, marker) is not None:
                    return new, last
            elif step is Step.OLDER:
                self._removed(
                    f"batch {me.batch} is older than batch {found.batch}, which was published last to stream {name!r}: "
                    "where it began is not known any more"
                )
                return None, last
            elif step is Step.SUPERSEDED:
                raise Superseded(f"another run of the same write has taken batch {me.batch} over")
            else:
                protocol.check_same_write(me, found)
                if step is Step.GO:
                    return found, last
                if step is Step.SEIZE:
                    self._try_set(key, protocol.seized(me, found), marker)
                elif still < self._rules.lease:
                    self._sleep(min(_POLL, self._rules.lease - still))
                else:
                    last = self._patiently(lambda: self._ledger.bounds(name)).last
                    self._try_set(key, protocol.opened(found, last), marker)

    def _take_task(self, name: str, after: int, look: Marker) -> tuple[_Stream, bool]:
        """Have the task marker name this attempt; and whether there was one before it in this run.

        :param after: last sequence of the stream at some moment before
        :param look: the marker at some moment before: if it has changed, it is not replaced
        """
        key, me = self._me.key(name, "task", self._me.partition), self._me
        seen, first, began, known = _Seen(self._clock), True, self._clock(), [look]
        while True:
            marker = known.pop() if known else self._patiently(lambda: self._ledger.marker(key))
            found = protocol.task_marker(marker.value)
            step, still = protocol.step_of_task(me, found), seen.still(marker.revision)
            if step is Step.WAIT and still < self._rules.lease:
                if still == 0.0:
                    logger.info("partition %d waits until nobody else publishes it any more", me.partition)
                self._sleep(min(_POLL, self._rules.lease - still))
                continue
            began = began if step is Step.GO else self._clock()
            if found is None or step is Step.NEW:
                mine = protocol.new_task(me, after)
            elif step is Step.GO:
                mine = found
            else:
                mine, first = protocol.taken(me, found), False
            revision = marker.revision if step is Step.GO else self._try_set(key, mine, marker)
            if revision is None:
                continue
            last = mine.after if first else self._patiently(lambda: self._ledger.bounds(name)).last
            return _Stream(name, key, mine, revision, last, began + _SURE * self._rules.lease), not first

    def _try_set(self, key: str, value: BatchMarker | TaskMarker, read: Marker) -> int | None:
        """The new revision; None: it has changed meanwhile, or nobody knows."""
        try:
            return self._patiently(lambda: self._ledger.set_marker(key, protocol.encode(value), read.revision))
        except MarkerChanged:
            return None  # which may have been a repetition of the same request

    def _patiently(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except Unavailable as e:
                if not self._rules.wait:
                    raise
                logger.warning("waiting until markers can be read and written: %s", e)
                self._sleep(1.0)

    # --- reading back --------------------------------------------------------------------------------------------

    def _read_back(self, name: str, identity: str, after: int, up_to: int, prefix: bytes) -> StoredRows:
        """What is stored of the batch (its prefix), or of this partition of it."""
        began, reader = self._clock(), self._rules.reader
        rows, read = StoredRows(after, len(self._me.prefix)), 0

        def look() -> Iterator[StoredIds]:
            wanted = prefix if reader.prefixed else b""
            return self._ledger.read(name, after, up_to, wanted, records=reader.unpack is not None)

        for some in look():
            read += some.read
            reader.add(rows, some)
        rows.finish()
        self._check_complete(name, identity, after, up_to)
        logger.info(
            "partition %d, stream %s: %s rows of batch %d are stored already (%s messages read back in %.1f s, from "
            "sequence %d to %d)",
            self._me.partition, name, f"{len(rows):,}", self._me.batch, f"{read:,}", self._clock() - began,
            after + 1, up_to,
        )  # fmt: skip
        return rows

    def _check_complete(self, name: str, identity: str, after: int, up_to: int) -> None:
        bounds = self._patiently(lambda: self._ledger.bounds(name))
        if bounds.identity != identity:
            self._removed(f"stream {name!r} was deleted and made again since batch {self._me.batch} began")
            return
        missing = self._patiently(lambda: self._ledger.missing(name, after, up_to))
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
        return any(stream.tables() for stream in self._streams.values())

    def serve(self, topics: pa.DictionaryArray, keys: Keys) -> tuple[Found, list[StoredFlights]]:
        """Which of these rows are stored already; each stored row serves one row.

        :returns: for each row, and the same by stream
        """
        found, parts = _nothing(len(keys)), []
        for stream, rows in self._by_stream(topics):
            wanted = keys.take(rows)
            for table, shared in ((stream.own, False), (stream.earlier, self._rules.reader.prefixed)):
                left = np.flatnonzero(found.sequence[rows] < 0)
                if table is not None and len(left) and len(table.rows):
                    some = self._serve(stream, table.rows, Distinct.of(wanted.take(left)), shared=shared)
                    at = rows[left]
                    found.sequence[at], found.partition[at] = some.sequence, some.partition
                    found.number[at] = some.number
            served = rows[found.sequence[rows] >= 0]
            if len(served):
                parts.append(StoredFlights(stream.name, served, found.sequence[served]))
                self.found += len(served)
        return found, parts

    def _serve(self, stream: _Stream, table: FoundRows, rows: Distinct, *, shared: bool) -> Found:
        while True:
            plan = table.plan(rows)
            wanted = plan.claims()
            if not shared or not len(wanted.keys):
                return table.take(plan)
            part = claims.parts(wanted)[0]
            self._claim(stream, table, part)

    def _claim(self, stream: _Stream, table: FoundRows, part: Distinct) -> None:
        """Write the next claim of the log, or read the one that is there."""
        me = self._me
        key = me.key(stream.name, "claim", stream.claims_read)
        mine = claims.encode(claims.Claim(me.batch, me.run, me.partition, part))
        marker = self._patiently(lambda: self._ledger.marker(key))
        found = claims.decode(marker.value)
        if found is None or (found.batch, found.run) != (me.batch, me.run):
            try:
                self._patiently(lambda: self._ledger.set_marker(key, mine, marker.revision))
            except MarkerChanged:
                return  # by another task, or by a repetition of the same request: it is read next
            table.claim(part, mine=True)
        else:
            table.claim(found.contents, mine=found.partition == me.partition)
        stream.claims_read += 1

    def letters(self, batch: MessageBatch) -> list[StoredFlights]:
        """Those of these messages that are stored under the same id: for dead letters."""
        assert batch.ids is not None
        if not self._rules.reader.prefixed:
            return self.serve(batch.topics, keys_of_ids(batch.ids.cast(pa.binary()).to_pylist()))[1]
        texts, parts = [text.encode() for text in batch.ids.to_pylist()], []
        for stream, rows in self._by_stream(batch.topics):
            known = {text: sequence for table in stream.tables() for text, sequence in table.others.items()}
            here = [(row, known[texts[row]]) for row in rows.tolist() if texts[row] in known]
            if here:
                served, sequences = (np.array(column, np.int64) for column in zip(*here, strict=True))
                parts.append(StoredFlights(stream.name, served, sequences))
                self.found += len(served)
        return parts

    def renumber(self, topics: pa.DictionaryArray, keys: Keys, numbers: Int64s) -> Int64s:
        """Numbers for the ids of rows that are published: none that a stored message of this partition has.

        :param numbers: how many rows of the same content were published before each
        """
        result = numbers.copy()
        for stream, rows in self._by_stream(topics):
            wanted = keys.take(rows)
            taken = [table.rows.numbers(wanted, self._me.partition) for table in stream.tables()]
            _renumber(result, rows, taken)
        return result

    def renumber_packs(self, topics: pa.DictionaryArray, digests: npt.NDArray[np.uint8], numbers: Int64s) -> Int64s:
        """As :meth:`renumber`, for packs."""
        result = numbers.copy()
        for stream, rows in self._by_stream(topics):
            taken = [table.pack_numbers(digests[rows], self._me.partition) for table in stream.tables()]
            _renumber(result, rows, taken)
        return result

    def _by_stream(self, topics: pa.DictionaryArray) -> Iterator[tuple[_Stream, Int64s]]:
        names = [self._stream_of.get(topic) for topic in topics.dictionary.to_pylist()]
        if len(set(names)) == 1 and not topics.null_count:
            if names[0] in self._streams:
                yield self._streams[names[0]], np.arange(len(topics))
            return
        codes = topics.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
        for name, stream in self._streams.items():
            mine = np.array([*(one == name for one in names), False], np.bool_)
            rows = np.flatnonzero(mine[codes])
            if len(rows):
                yield stream, rows

    # --- the publisher's thread ------------------------------------------------------------------------------------

    def may_send(self) -> bool:
        """See :class:`~mama_spark.publishing.batch_config.SendGuard`."""
        if self._lost is not None:
            raise self._lost
        now = self._clock()
        return all(now < stream.sure_until for stream in list(self._streams.values()))

    @property
    def certain_for(self) -> float:
        """See :class:`~mama_spark.publishing.window.send_loop.StoredCheck`."""
        windows = [self._ledger.duplicate_window(name) for name in list(self._streams)]
        return known_for(min(windows, default=0.0))

    def stored(self, messages: MessageBatch) -> list[StoredFlights]:
        """See :class:`~mama_spark.publishing.window.send_loop.StoredCheck`."""
        assert messages.ids is not None
        texts = [text.encode() for text in messages.ids.to_pylist()]
        parts = []
        for stream, rows in self._by_stream(messages.topics):
            wanted = {texts[row]: row for row in rows.tolist()}
            found = dict[int, int]()
            prefix = self._me.own_prefix if self._rules.reader.prefixed else b""
            up_to = self._ledger.bounds(stream.name).last
            for some in self._ledger.read(stream.name, stream.since, up_to, prefix):
                for text, sequence in zip(some.ids, some.sequences.tolist(), strict=True):
                    if text in wanted:
                        found.setdefault(wanted[text], sequence)
            logger.info("of %d messages without an answer, %d are stored", len(wanted), len(found))
            if found:
                at = np.array(sorted(found), np.int64)
                parts.append(StoredFlights(stream.name, at, np.array([found[row] for row in at.tolist()], np.int64)))
        return parts

    # --- the lease ---------------------------------------------------------------------------------------------------

    def _renew_all(self) -> None:
        while not self._closed.wait(self._rules.lease * _RENEW):
            for stream in list(self._streams.values()):
                try:
                    with stream.lock:
                        self._renew(stream)
                except (Superseded, ConfigError) as e:
                    self._lost = e
                    return
                except MamaError as e:  # nothing is sent until it succeeds
                    logger.info("the marker of partition %d is not renewed: %s", self._me.partition, e)

    def _renew(self, stream: _Stream) -> None:
        if self._closed.is_set():
            return
        me, began = self._me, self._clock()
        batch = protocol.batch_marker(self._ledger.marker(me.key(stream.name, "batch")).value)
        if batch is None or (batch.batch, batch.run) != (me.batch, me.run):
            raise Superseded(f"another run of the same write has taken batch {me.batch} over")
        mine = protocol.renewed(stream.task)
        try:
            stream.revision = self._ledger.set_marker(stream.key, protocol.encode(mine), stream.revision)
        except MarkerChanged:
            marker = self._ledger.marker(stream.key)
            found = protocol.task_marker(marker.value)
            if found is None or found.owner != me.owner:
                raise Superseded(f"another attempt publishes partition {me.partition} by now") from None
            stream.revision = marker.revision
        stream.task, stream.sure_until = mine, began + _SURE * self._rules.lease

    def close(self) -> None:
        """Nothing is published any more: the next attempt need not wait. Never raises."""
        self._closed.set()
        for stream in list(self._streams.values()):
            with stream.lock:
                value = protocol.encode(protocol.released(stream.task))
                self._ledger.release_marker(stream.key, value, stream.revision)
        self._streams.clear()


class _Seen:
    """For how long a marker has stood still, by our own clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._revision, self._since = clock, -1, 0.0

    def still(self, revision: int) -> float:
        """Seconds; 0 for a revision that was not seen before."""
        if revision != self._revision:
            self._revision, self._since = revision, self._clock()
            return 0.0
        return self._clock() - self._since


def _nothing(n: int) -> Found:
    return Found(np.full(n, -1, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))


def _renumber(numbers: Int64s, rows: Int64s, taken: Sequence[dict[int, Int64s]]) -> None:
    """Change the numbers of ``rows`` to ones that are not taken."""
    for i in set().union(*taken):
        used = np.unique(np.concatenate([some[i] for some in taken if i in some]))
        at = rows[i]
        numbers[at] = free_numbers(numbers[at : at + 1], used)[0]
