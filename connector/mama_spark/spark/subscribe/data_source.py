"""The format ``mamasub``: the messages of topics as rows, in batch and in streams.

A log keeps its records by number, so an offset is a number for each stream, a task is a range of numbers, and a range
gives the same rows every time. The position of a query is in Spark's checkpoint only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mama_spark.contracts.errors import ConfigError, MamaError, OptionError
from mama_spark.contracts.record_log import Bounds, RecordLog, RecordLogBridge, time_of, went_back
from mama_spark.options import ANY_READ, BATCH_READ, STREAM_READ, SubscribeOptions, Use
from mama_spark.options.stream_names import matching_streams
from mama_spark.publishing.window.reconnecting import ask_logs
from mama_spark.registry import logs_to_read

from ..gc_freeze import exempt_modules
from ..option_loading import read_options
from ..plain_errors import plain_errors
from . import log_reader
from .matching import BatchLimits, matching_records, next_offsets
from .offsets import (
    Loss,
    Offsets,
    ReadRange,
    StreamPosition,
    advance,
    backlog_of,
    data_lost,
    ending_offsets,
    from_json,
    ranges,
    reconcile,
    split_ranges,
    starting_offsets,
    task_count,
    to_json,
)
from .plan_ahead import PlanAhead
from .schema import MessageColumns, message_columns_of, schema_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ...telemetry.spark.read_metrics import ReadMetrics
    from ...telemetry.spark.spans import ReceiveSpan

logger = logging.getLogger("mama_spark")

#: Seconds between two lookups of new streams.
STREAM_LOOKUP_INTERVAL = 5.0
STREAM_RECREATED = "the stream was deleted and made again since"


def schema_for(given: dict[str, str]) -> StructType:
    """The columns with these options from Spark.

    :raises ConfigError: an option is wrong; so in the functions below
    """
    return schema_of(_options(given, ANY_READ))


def batch_reader(
    given: dict[str, str], schema: StructType, loaded_at: int, cluster_cores: int | None = None
) -> MamaSubReader:
    """
    :param loaded_at: microseconds since the epoch, of ``load()``
    :param cluster_cores: tasks that run at once, for the number of tasks; None = not known
    """
    options = _options(given, BATCH_READ)
    for name, value in (("Offsets", options.starting_offsets), ("Timestamp", options.starting_timestamp)):
        if value in ("latest", "now"):
            raise OptionError(f"option starting{name}={value} is for streams: a batch would read nothing")
    options = options.loaded_at(loaded_at).sized_for(cluster_cores)
    return MamaSubReader(options, message_columns_of(schema, options))


def stream_reader(
    given: dict[str, str], schema: StructType, loaded_at: int, cluster_cores: int | None = None
) -> MamaSubStreamReader:
    """As :func:`batch_reader`."""
    options = _options(given, STREAM_READ).loaded_at(loaded_at).sized_for(cluster_cores)
    return MamaSubStreamReader(options, message_columns_of(schema, options))


def _options(given: dict[str, str], use: Use) -> SubscribeOptions:
    return read_options(SubscribeOptions, given, use).options


@dataclass
class LogPartition(InputPartition):
    """The range that one task reads.

    :ivar known_gaps: gaps that were known, and tolerated, when the batch was planned
    """

    range: ReadRange
    known_gaps: tuple[tuple[int, int], ...] = ()


class _LogReader:
    """What batch and streaming have in common."""

    def __init__(self, options: SubscribeOptions, columns: MessageColumns) -> None:
        self.options, self.columns = options, columns

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; on an executor, with a reader that was unpickled there."""
        if self.options.gc_freeze:
            exempt_modules()
        if not isinstance(partition, LogPartition):  # Spark's own, when there is nothing to read
            return
        if self.options.metrics == "off":
            yield from self._rows(partition, None)
            return
        from ...telemetry.spark.read_metrics import ReadMetrics

        metrics = ReadMetrics(self.options, "mamasub", partition.range.stream)
        try:
            yield from self._rows(partition, metrics)
        finally:
            metrics.close()

    def _rows(self, partition: LogPartition, metrics: ReadMetrics | None) -> Iterator[pa.RecordBatch]:
        from .message_columns import trace_column
        from .packed_rows import RowUnpacker

        o, r = self.options, partition.range

        def check(found: RecordLog) -> None:
            self._handle_losses(_losses_while_reading(found, r, partition.known_gaps))

        unpacking = RowUnpacker(o, self.columns, r.stream)
        find, span = partial(self._find, r=r), self._span(r)
        try:
            for records in log_reader.read_range(o, find, r.after, r.up_to, o.topics, check, metrics):
                if span is not None:
                    span.add(trace_column(records))
                for made in unpacking.batches(records):
                    if metrics is not None:
                        metrics.count("rows", made.num_rows)
                    yield made
            unpacking.finish()
        finally:
            if metrics is not None:
                metrics.count("undecodable", unpacking.undecodable)
            if span is not None:
                span.end()

    def _span(self, r: ReadRange) -> ReceiveSpan | None:
        if self.options.trace_context != "links":
            return None
        from ...telemetry.spark.spans import ReceiveSpan

        return ReceiveSpan(self.options, r.stream)

    def _find(self, bridge: RecordLogBridge, r: ReadRange) -> RecordLog | None:
        """The log that the range is of; None if it is lost."""
        whole = ((r.after + 1, r.up_to),)
        try:
            found = bridge.log(r.stream)
        except ConfigError as e:
            _raise_if_stream_exists(bridge, r.stream, e)
            self._handle_losses([Loss(r.stream, whole, str(e))])
            return None
        if found.opened.identity == r.identity:
            return found
        self._handle_losses([Loss(r.stream, whole, STREAM_RECREATED)])
        return None

    def _plan(self, bridge: RecordLogBridge, whole: list[ReadRange]) -> list[LogPartition]:
        """Tasks for these ranges. Records that are missing in them now are lost."""
        gaps_by_stream: dict[str, tuple[tuple[int, int], ...]] = {}
        logs: dict[str, RecordLog] = {}
        most: dict[str, int | None] = {}
        for r in whole:
            if (found := self._find(bridge, r)) is not None:
                logs[r.stream], most[r.stream] = found, log_reader.most_tasks(found, self.options.min_partitions)
                gaps_by_stream[r.stream] = gaps = tuple(found.missing_when_opened(r.after, r.up_to))
                self._handle_losses([Loss(r.stream, gaps, "deleted before they were read")] if gaps else [])
        there = [r for r in whole if r.stream in gaps_by_stream]
        total = round(sum(map(len, there)) * self._rows_per_sequence(logs, there))
        cores = self.options.parallelism or len(os.sched_getaffinity(0))
        n = task_count(total, self.options.min_partitions, cores)
        return [LogPartition(r, _within(gaps_by_stream[r.stream], r)) for r in split_ranges(there, n, most)]

    def _rows_per_sequence(self, logs: Mapping[str, RecordLog], there: list[ReadRange]) -> float:
        """Estimate of the rows of a sequence, from the longest range, for the number of tasks."""
        o = self.options
        longest = max(there, key=len, default=None)
        packed = o.unpack and (self.columns.decoded is None or self.columns.decoded.packed)
        if longest is None or len(longest) < 2 or not packed or o.min_partitions is not None:
            return 1.0
        from .packed_rows import rows_per_sequence

        return rows_per_sequence(logs[longest.stream], longest.after, longest.up_to, o.topics)

    def _handle_losses(self, losses: Iterable[Loss]) -> None:
        """Raise or log, as ``failOnDataLoss`` says.

        :raises DataLost: it is true
        """
        found = list(losses)
        if found and self.options.fail_on_data_loss:
            raise data_lost(found, selective=bool(self.options.topics or self.options.pattern))
        for loss in found:
            logger.error("mamasub: lost: %s", loss)

    def _first(self, bridge: RecordLogBridge) -> tuple[Offsets, dict[str, Bounds]]:
        """Where a query without a checkpoint begins."""
        o = self.options
        found = {name: bridge.log(name) for name in logs_to_read(o, bridge)}
        for one in found.values():
            for text in one.warnings(o.topics if o.stream is not None else ()):
                logger.warning("mamasub: %s", text)
        bounds = {name: one.bounds() for name, one in found.items()}
        return starting_offsets(bounds, o.starting_offsets, _sequences_at(found, o.starting_time)), bounds


class MamaSubReader(_LogReader, DataSourceReader):
    """Batch reads."""

    @plain_errors
    def partitions(self) -> list[LogPartition]:
        def plan(bridge: RecordLogBridge) -> list[LogPartition]:
            start, bounds = self._first(bridge)
            o = self.options
            logs = {} if o.ending_time is None else {name: bridge.log(name) for name in bounds}
            end = ending_offsets(bounds, o.ending_offsets, _sequences_at(logs, o.ending_time))
            start, losses = reconcile(start, bounds)
            self._handle_losses(losses)
            return self._plan(bridge, ranges(start, end))

        return ask_logs(self.options, plan)


class MamaSubStreamReader(_LogReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reads. On the driver, one object for the life of the query."""

    def __init__(
        self, options: SubscribeOptions, columns: MessageColumns, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(options, columns)
        self._clock = clock
        self._triggered_at = float("-inf")  # when the last micro-batch was planned
        self._initial: Offsets | None = None
        self._target: dict[str, Bounds] | None = None
        self._latest: dict[str, Bounds] = {}
        self._stream_names: set[str] = set()
        self._looked_up_at = -STREAM_LOOKUP_INTERVAL  # when
        self._ahead: PlanAhead[list[LogPartition]] = PlanAhead()

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:
        """Spark calls this more than once, and needs the same result."""
        if self._initial is None:
            self._initial = ask_logs(self.options, lambda bridge: self._first(bridge)[0])
        return to_json(self._initial)

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark passes to ``latestOffset``, unless a trigger takes all there is."""
        limits = self.options.max_offsets_per_trigger, self.options.max_rows_per_trigger
        given = [n for n in limits if n is not None]
        return ReadMaxRows(min(given)) if given else ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = ask_logs(self.options, lambda bridge: self._current_bounds(bridge, ()))

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = from_json(start)
        bounds, back = ask_logs(self.options, lambda bridge: self._look(bridge, before))
        self._latest = bounds
        if self._target is not None:  # streams that are newer are for another run
            bounds = {name: found for name, found in bounds.items() if name in before or name in self._target}
        now, losses = reconcile(before, bounds, back)
        self._handle_losses(losses)
        if self._target is None and not losses and self._waits_for_more(now, bounds):
            return start
        if self._target is not None:
            bounds = {name: _limited_to(found, self._target.get(name)) for name, found in bounds.items()}
        end = to_json(self._with_times(now, self._end_of_batch(now, bounds, limit), bounds))
        if whole := ranges(before, from_json(end)):
            self._ahead.begin((start, end), lambda: self._plan_tasks(whole))
        return end

    def _end_of_batch(self, now: Offsets, bounds: Mapping[str, Bounds], limit: ReadLimit) -> Offsets:
        o = self.options
        if not isinstance(limit, ReadMaxRows):
            return advance(now, bounds, None)
        records = limit.max_rows if o.max_rows_per_trigger is None else o.max_offsets_per_trigger
        limits, selective = BatchLimits(records, o.max_rows_per_trigger), bool(o.topics or o.pattern)
        return ask_logs(o, lambda bridge: next_offsets(bridge, now, bounds, o.topics, limits, selective=selective))

    def _with_times(self, start: Offsets, end: Offsets, bounds: Mapping[str, Bounds]) -> Offsets:
        """``end``, with the time of the last record of each stream."""

        def time_in(stream: str, found: Bounds, sequence: int) -> int | None:
            if sequence == found.last and found.time is not None:
                return found.time
            return ask_logs(self.options, lambda bridge: time_of(bridge.log(stream), found, sequence))

        return {
            stream: p if p.next == start[stream].next else replace(p, time=time_in(stream, bounds[stream], p.next - 1))
            for stream, p in end.items()
        }

    def _waits_for_more(self, now: Offsets, bounds: Mapping[str, Bounds]) -> bool:
        """Whether there are fewer records than ``minOffsetsPerTrigger``, and ``maxTriggerDelay`` is not over yet."""
        least, at = self.options.min_offsets_per_trigger, self._clock()
        if least is not None and at < self._triggered_at + self.options.max_trigger_delay:
            there = sum(backlog_of(now, bounds).values())
            if there < least or self._count_matching(now, bounds, least, there) < least:
                return True
        self._triggered_at = at
        return False

    def _count_matching(self, now: Offsets, bounds: Mapping[str, Bounds], least: int, there: int) -> int:
        """Of ``there`` records those that are read, counted up to ``least``, if the logs can tell."""
        o = self.options
        if not (o.topics or o.pattern):
            return there
        found = ask_logs(o, lambda bridge: matching_records(bridge, now, bounds, o.topics, least))
        return there if found is None else found

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Ends of the streams when the batch was planned, from which Spark computes the lag in the progress."""
        return to_json({name: StreamPosition(b.last + 1, b.identity) for name, b in self._latest.items()}) or None

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogPartition]:
        if (planned := self._ahead.take((start, end))) is not None:
            return planned
        whole = ranges(from_json(start), from_json(end))
        return self._plan_tasks(whole) if whole else []

    def _plan_tasks(self, whole: list[ReadRange]) -> list[LogPartition]:
        return ask_logs(self.options, lambda bridge: self._plan(bridge, whole))

    @plain_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Store the progress at the broker, if ``progressConsumer`` is set. Telemetry: errors are only logged."""
        name = self.options.progress_consumer
        if name is None:
            return

        def show(bridge: RecordLogBridge) -> None:
            for stream, position in from_json(end).items():
                bridge.log(stream).progress(name, position.next - 1, self.options.topics)

        try:
            ask_logs(self.options, show)
        except MamaError as e:
            logger.warning("mamasub: progressConsumer %r: %s", name, e)

    def _look(self, bridge: RecordLogBridge, known: Offsets) -> tuple[dict[str, Bounds], dict[str, int]]:
        """Bounds of the streams, and where to go on in those of ``known`` whose sequences went back."""
        bounds = self._current_bounds(bridge, known)
        back = {}
        for stream, p in known.items():
            found = bounds.get(stream)
            if found is None or found.identity != p.identity or p.time is None:
                continue
            if (at := went_back(partial(bridge.log, stream), found, p.next, p.time)) is not None:
                back[stream] = at
        return bounds, back

    def _current_bounds(self, bridge: RecordLogBridge, known: Iterable[str]) -> dict[str, Bounds]:
        """Bounds of the streams that are read and of new ones."""
        if (now := time.monotonic()) >= self._looked_up_at + STREAM_LOOKUP_INTERVAL:
            self._stream_names, self._looked_up_at = self._matching(bridge), now
        found = {}
        for name in sorted({*known, *self._stream_names}):
            try:
                found[name] = bridge.log(name).opened
            except ConfigError as e:
                _raise_if_stream_exists(bridge, name, e)  # a data loss if the query has read of it
        return found

    def _matching(self, bridge: RecordLogBridge) -> set[str]:
        """Streams of any of the topics. The stream of a topic may be gone; the offset still names it."""
        o = self.options
        if o.stream is not None:
            return {o.stream}
        if o.streams:
            return set(matching_streams(o.streams, bridge.names(())))
        names = set() if o.topics else set(bridge.names(()))  # without topics, the URL names the stream
        for topic in o.topics:
            with contextlib.suppress(ConfigError):
                names |= set(bridge.names([topic]))
        return names


def _sequences_at(logs: Mapping[str, RecordLog], time: int | str | None) -> dict[str, int] | None:
    """The first sequence of each log at or after a time; None where there is no time."""
    return {name: log.at(time) for name, log in logs.items()} if isinstance(time, int) else None


def _limited_to(now: Bounds, target: Bounds | None) -> Bounds:
    """``now``, limited to the end of ``target``. A stream that was made again since is empty for this run."""
    if target is None or target.identity != now.identity:
        return Bounds(now.first, now.first - 1, now.identity)
    return replace(now, last=target.last, time=target.time) if target.last < now.last else now


def _raise_if_stream_exists(bridge: RecordLogBridge, name: str, error: ConfigError) -> None:
    """A stream that exists but cannot be read (no permission) is no data loss.

    :raises ConfigError: ``error``, if the stream exists
    """
    try:
        names = bridge.names(())
    except ConfigError:
        raise error from None
    if name in names:
        raise error


def _losses_while_reading(found: RecordLog, r: ReadRange, known: tuple[tuple[int, int], ...]) -> list[Loss]:
    """Records that were lost between the planning of a task and its end."""
    bounds, gaps = found.inspect_range(r.after, r.up_to)
    if bounds.identity != r.identity:
        return [Loss(r.stream, ((r.after + 1, r.up_to),), STREAM_RECREATED)]
    return [] if tuple(gaps) == known else [Loss(r.stream, tuple(gaps), "deleted before or while they were read")]


def _within(gaps: tuple[tuple[int, int], ...], r: ReadRange) -> tuple[tuple[int, int], ...]:
    return tuple((max(a, r.after + 1), min(b, r.up_to)) for a, b in gaps if a <= r.up_to and b > r.after)
