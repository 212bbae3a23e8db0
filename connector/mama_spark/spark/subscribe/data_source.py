"""The format ``mamasub``: the messages of topics as rows, in batch and in streams.

A log keeps its records by number, so an offset is a number for each stream, a task is a range of numbers, and a range
gives the same rows every time. Spark's checkpoint is the only truth about how far a query has come.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mama_spark.errors import ConfigError, MamaError, OptionError
from mama_spark.options import SubscribeOptions
from mama_spark.record_log import Bounds, RecordLog, RecordLogBridge

from ..option_loading import check_spark, read_options
from . import log_reader
from .offsets import (
    Loss,
    Offsets,
    ReadRange,
    StreamPosition,
    advance,
    backlog_of,
    beginning,
    ending,
    from_json,
    lost,
    parts,
    ranges,
    reconcile,
    split,
    to_json,
)
from .schema import MessageColumns, message_columns_of, schema_of

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("mama_spark")

#: Seconds between two looks for streams that have appeared.
STREAMS_EVERY = 5.0
MADE_AGAIN = "the stream was deleted and made again since"


def schema_for(given: dict[str, str]) -> StructType:
    """The columns with these options, as Spark hands them over.

    :raises ConfigError: an option is wrong; so in the functions below
    """
    return schema_of(_options(given))


def batch_reader(given: dict[str, str], schema: StructType) -> MamaSubReader:
    options = _options(given)
    if options.starting_offsets == "latest":
        raise OptionError("option startingOffsets=latest is for streams: a batch would read nothing")
    return MamaSubReader(options, message_columns_of(schema, options))


def stream_reader(given: dict[str, str], schema: StructType) -> MamaSubStreamReader:
    options = _options(given)
    if options.ending_offsets != "latest":
        raise OptionError("option endingOffsets is for batch reads: a stream has no end")
    return MamaSubStreamReader(options, message_columns_of(schema, options))


def _options(given: dict[str, str]) -> SubscribeOptions:
    check_spark("mamasub")
    return read_options(SubscribeOptions, given).options


@dataclass
class LogPartition(InputPartition):
    """What one task reads.

    :ivar gone: gaps that were known when the batch was planned, and tolerated
    """

    range: ReadRange
    gone: tuple[tuple[int, int], ...] = ()


class _LogReader:
    """What batch and streaming have in common."""

    def __init__(self, options: SubscribeOptions, shape: MessageColumns) -> None:
        self.options, self.shape = options, shape

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; on an executor, with a reader that was unpickled there."""
        if not isinstance(partition, LogPartition):  # Spark's own, when there is nothing to read
            return
        from .packed_rows import Unpacking

        o, r = self.options, partition.range

        def check(found: RecordLog) -> None:
            self._treat(_changed(found, r, partition.gone))

        unpacking = Unpacking(o, self.shape, r.stream)
        for records in log_reader.read(o, lambda bridge: self._find(bridge, r), r.after, r.up_to, o.topics, check):
            yield from unpacking.batches(records)

    def _find(self, bridge: RecordLogBridge, r: ReadRange) -> RecordLog | None:
        """The log that the range is of; None if it is lost."""
        whole = ((r.after + 1, r.up_to),)
        try:
            found = bridge.log(r.stream)
        except ConfigError as e:
            _raise_unless_gone(bridge, r.stream, e)
            self._treat([Loss(r.stream, whole, str(e))])
            return None
        if found.bounds().identity == r.identity:
            return found
        self._treat([Loss(r.stream, whole, MADE_AGAIN)])
        return None

    def _plan(self, bridge: RecordLogBridge, whole: list[ReadRange]) -> list[LogPartition]:
        """Tasks for these ranges. What is missing in them is lost already."""
        gone: dict[str, tuple[tuple[int, int], ...]] = {}
        for r in whole:
            if (found := self._find(bridge, r)) is not None:
                gone[r.stream] = gaps = tuple(found.missing(r.after, r.up_to))
                self._treat([Loss(r.stream, gaps, "deleted before they were read")] if gaps else [])
        there = [r for r in whole if r.stream in gone]
        total = round(sum(map(len, there)) * self._rows_each(bridge, there))
        n = parts(total, self.options.min_partitions, len(os.sched_getaffinity(0)))
        return [LogPartition(r, _within(gone[r.stream], r)) for r in split(there, n)]

    def _rows_each(self, bridge: RecordLogBridge, there: list[ReadRange]) -> float:
        """Rows of a sequence, about: in the longest range, where it matters for the number of tasks."""
        o = self.options
        longest = max(there, key=len, default=None)
        if longest is None or len(longest) < 2 or not o.unpack or o.tango or o.min_partitions is not None:
            return 1.0
        from .packed_rows import rows_each

        return rows_each(bridge.log(longest.stream), longest.after, longest.up_to, o.topics)

    def _treat(self, losses: Iterable[Loss]) -> None:
        """``failOnDataLoss``.

        :raises DataLost: it is on
        """
        found = list(losses)
        if found and self.options.fail_on_data_loss:
            raise lost(found)
        for loss in found:
            logger.error("mamasub: lost: %s", loss)

    def _streams(self, bridge: RecordLogBridge) -> list[str]:
        """Streams that hold the topics now.

        :raises ConfigError: a topic is in none
        """
        o = self.options
        if o.stream is None:
            return bridge.names(o.topics)
        if o.topics and o.stream not in (found := bridge.names(o.topics)):
            raise ConfigError(f"stream {o.stream!r} holds none of the topics {', '.join(o.topics)}; {found} do")
        return [o.stream]

    def _first(self, bridge: RecordLogBridge) -> tuple[Offsets, dict[str, Bounds]]:
        """Where a query without a checkpoint begins."""
        o, found = self.options, {name: bridge.log(name) for name in self._streams(bridge)}
        for one in found.values():
            for text in one.warnings():
                logger.warning("mamasub: %s", text)
        at = o.starting_timestamp
        bounds = {name: one.bounds() for name, one in found.items()}
        times = None if at is None else {name: one.at(at) for name, one in found.items()}
        return beginning(bounds, o.starting_offsets, times), bounds


class MamaSubReader(_LogReader, DataSourceReader):
    """Batch reads."""

    def partitions(self) -> list[LogPartition]:
        def plan(bridge: RecordLogBridge) -> list[LogPartition]:
            start, bounds = self._first(bridge)
            end = ending(bounds, self.options.ending_offsets)
            start, losses = reconcile(start, bounds)
            self._treat(losses)
            return self._plan(bridge, ranges(start, end))

        return log_reader.ask(self.options, plan)


class MamaSubStreamReader(_LogReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reads. On the driver, one object for the life of the query."""

    def __init__(self, options: SubscribeOptions, shape: MessageColumns) -> None:
        super().__init__(options, shape)
        self._initial: Offsets | None = None
        self._target: dict[str, Bounds] | None = None
        self._seen: dict[str, Bounds] = {}
        self._names: set[str] = set()
        self._named = -STREAMS_EVERY  # when

    def initialOffset(self) -> dict[str, Any]:
        """Spark asks more than once, and must get the same answer."""
        if self._initial is None:
            self._initial = log_reader.ask(self.options, lambda bridge: self._first(bridge)[0])
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark hands back, unless a trigger takes all there is; the limits themselves are options."""
        limits = self.options.max_offsets_per_trigger, self.options.max_rows_per_trigger
        given = [n for n in limits if n is not None]
        return ReadMaxRows(min(given)) if given else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = log_reader.ask(self.options, lambda bridge: self._look(bridge, ()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = from_json(start)
        bounds = self._seen = log_reader.ask(self.options, lambda bridge: self._look(bridge, before))
        if self._target is not None:  # what has appeared since then is for another run
            bounds = {name: found for name, found in bounds.items() if name in before or name in self._target}
        now, losses = reconcile(before, bounds)
        self._treat(losses)
        if self._target is not None:
            bounds = {name: _no_later(found, self._target.get(name)) for name, found in bounds.items()}
        most, about = limit.max_rows if isinstance(limit, ReadMaxRows) else None, self.options.max_rows_per_trigger
        if most is None or about is None:
            return to_json(advance(now, bounds, most))
        each = log_reader.ask(self.options, lambda bridge: self._sampled(bridge, now, bounds))
        return to_json(advance(now, bounds, self.options.max_offsets_per_trigger, about, each))

    def _sampled(self, bridge: RecordLogBridge, now: Offsets, bounds: dict[str, Bounds]) -> dict[str, float]:
        """Rows of a sequence, about, of each stream that has something new."""
        from .packed_rows import rows_each

        found = {}
        for stream, n in backlog_of(now, bounds).items():
            if n:
                after = now[stream].next - 1
                found[stream] = rows_each(bridge.log(stream), after, after + n, self.options.topics)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What the streams held when the batch was planned, so that the lag shows in the progress of the query."""
        return to_json({name: StreamPosition(b.last + 1, b.identity) for name, b in self._seen.items()}) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogPartition]:
        whole = ranges(from_json(start), from_json(end))
        return log_reader.ask(self.options, lambda bridge: self._plan(bridge, whole)) if whole else []

    def commit(self, end: dict[str, Any]) -> None:
        """Show the progress at the broker, if that is wanted. It is telemetry: a failure is no reason to stop."""
        name = self.options.progress_consumer
        if name is None:
            return

        def show(bridge: RecordLogBridge) -> None:
            for stream, position in from_json(end).items():
                bridge.log(stream).progress(name, position.next - 1, self.options.topics)

        try:
            log_reader.ask(self.options, show)
        except MamaError as e:
            logger.warning("mamasub: progressConsumer %r: %s", name, e)

    def _look(self, bridge: RecordLogBridge, known: Iterable[str]) -> dict[str, Bounds]:
        """Bounds of the streams that are read and of those that have appeared since."""
        if (now := time.monotonic()) >= self._named + STREAMS_EVERY:
            self._names, self._named = self._matching(bridge), now
        found = {}
        for name in sorted({*known, *self._names}):
            try:
                found[name] = bridge.log(name).bounds()
            except ConfigError as e:
                _raise_unless_gone(bridge, name, e)  # a loss if the query had come to it
        return found

    def _matching(self, bridge: RecordLogBridge) -> set[str]:
        """Streams of any of the topics. A topic may have lost its stream; the query knows which one it was."""
        o = self.options
        if o.stream is not None:
            return {o.stream}
        names = set() if o.topics else set(bridge.names(()))  # without topics, the URL names the stream
        for topic in o.topics:
            with contextlib.suppress(ConfigError):
                names |= set(bridge.names([topic]))
        return names


def _no_later(now: Bounds, target: Bounds | None) -> Bounds:
    """``now``, without what came after ``target``. A stream made again since then has nothing for this run."""
    if target is None or target.identity != now.identity:
        return Bounds(now.first, now.first - 1, now.identity)
    return Bounds(now.first, min(now.last, target.last), now.identity)


def _raise_unless_gone(bridge: RecordLogBridge, name: str, error: ConfigError) -> None:
    """What may not be looked at is still there, and no loss.

    :raises ConfigError: ``error``
    """
    try:
        names = bridge.names(())
    except ConfigError:
        raise error from None
    if name in names:
        raise error


def _changed(found: RecordLog, r: ReadRange, known: tuple[tuple[int, int], ...]) -> list[Loss]:
    """What was lost between the planning of a task and its end."""
    if found.bounds().identity != r.identity:
        return [Loss(r.stream, ((r.after + 1, r.up_to),), MADE_AGAIN)]
    gaps = tuple(found.missing(r.after, r.up_to))
    return [] if gaps == known else [Loss(r.stream, gaps, "deleted before or while they were read")]


def _within(gaps: tuple[tuple[int, int], ...], r: ReadRange) -> tuple[tuple[int, int], ...]:
    return tuple((max(a, r.after + 1), min(b, r.up_to)) for a, b in gaps if a <= r.up_to and b > r.after)
