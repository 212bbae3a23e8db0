"""The format ``mamasub``: messages of topics as rows, in batch and in streams.

A log keeps its records by sequence: an offset is a sequence for each stream, a task is a range of sequences, and a
range gives the same rows every time. Only Spark's checkpoint holds the position of a query.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from mama_spark.contracts.errors import ConfigError, MamaError, OptionError
from mama_spark.contracts.middlewares import imported
from mama_spark.contracts.record_log import (
    Bounds,
    Continuity,
    CurrentRecords,
    RecordLog,
    RecordLogBridge,
    Records,
    time_of,
)
from mama_spark.options import ANY_READ, BATCH_READ, STREAM_READ, SubscribeOptions, Use
from mama_spark.options.stream_names import matching_streams
from mama_spark.publishing.window.reconnecting import ask_logs

from ..features import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from ..option_loading import read_options
from ..plain_errors import plain_errors
from .log_reader import LogPartition, LogReader, most_tasks, raise_if_stream_exists, sequences_at
from .matching import BatchLimits, matching_records, next_offsets
from .offsets import (
    Offsets,
    ReadRange,
    StreamPosition,
    advance,
    backlog_of,
    from_json,
    ranges,
    reconcile,
    requested_offsets,
    to_json,
    within_snapshots,
)
from .plan_ahead import OfThisProcess, PlanAhead
from .schema import MessageColumns, message_columns_of, schema_of
from .task_ranges import split_ranges

logger = logging.getLogger("mama_spark")

Resumed = dict[str, tuple[Continuity, int]]  #: results of :func:`~mama_spark.contracts.record_log.resume` by stream

#: Seconds between two searches for streams.
STREAM_LOOKUP_INTERVAL = 5.0


def schema_for(given: dict[str, str]) -> StructType:
    """The columns for these options of Spark. All functions here raise ConfigError for a wrong option."""
    return schema_of(_options(given, ANY_READ))


def batch_reader(
    given: dict[str, str], schema: StructType, loaded_at: int, cluster_cores: int | None = None
) -> MamaSubReader:
    """Reader of a batch. ``loaded_at``: time of ``load()``, microseconds since the epoch; ``cluster_cores``: tasks that
    run at once, for the number of tasks; None = unknown."""
    options = _options(given, BATCH_READ)
    for name, value in (("Offsets", options.starting_offsets), ("Timestamp", options.starting_timestamp)):
        if value in ("latest", "now"):
            raise OptionError(f"option starting{name}={value} is for streams: a batch would read nothing")
    if options.current and options.min_partitions is not None:
        raise OptionError("option minPartitions has no effect with latestPerTopic in a batch: one task reads a stream")
    options = options.loaded_at(loaded_at).sized_for(cluster_cores)
    return MamaSubReader(options, message_columns_of(schema, options))


def stream_reader(
    given: dict[str, str], schema: StructType, loaded_at: int, cluster_cores: int | None
) -> MamaSubStreamReader:
    options = _options(given, STREAM_READ).loaded_at(loaded_at).sized_for(cluster_cores)
    return MamaSubStreamReader(options, message_columns_of(schema, options))


def _options(given: dict[str, str], use: Use) -> SubscribeOptions:
    o = read_options(SubscribeOptions, given, use).options
    if o.bucket is None:
        return o
    keys = imported(str(o.middleware.key_value))
    return replace(o, stream=keys.stream_of(o.bucket), topics=keys.topics_of(o.topics), unpack=False)


class MamaSubReader(LogReader, DataSourceReader):
    @plain_errors
    def partitions(self) -> list[LogPartition]:
        def plan(bridge: RecordLogBridge) -> list[LogPartition]:
            start, bounds = self.first(bridge)
            o = self.options
            if o.current:
                return [LogPartition(ReadRange(name, b.identity, 0, b.last, b.last)) for name, b in bounds.items()]
            logs = {} if o.ending_time is None else {name: bridge.log(name) for name in bounds}
            end = requested_offsets("endingOffsets", bounds, o.ending_offsets, sequences_at(logs, o.ending_time))
            start, losses = reconcile(start, bounds, _resumed(bridge, start, bounds))
            self.handle_losses(losses)
            return self.plan(bridge, ranges(start, end))

        return ask_logs(self.options, plan)

    def records(self, log: RecordLog, partition: LogPartition, after: int) -> Iterator[Records]:
        """Current records are yielded after the whole read: after an outage, none or all have been yielded."""
        r = partition.range
        if not self.options.current:
            return super().records(log, partition, after)
        if after > r.after:
            return iter(())
        from .current_rows import last_of_each

        distinct = log.opened.last if log.removal.all_but_last else 0
        return last_of_each(log.current(self.options.topics, r.up_to), distinct)


class MamaSubStreamReader(LogReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reads. On the driver, one object for the life of the query."""

    def __init__(
        self, options: SubscribeOptions, columns: MessageColumns, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(options, columns)
        self._clock = clock
        self._triggered_at = float("-inf")  # time of the last micro-batch's plan
        self._initial: Offsets | None = None
        self._replacing: set[str] = set()  # streams whose newer records replaced missing ones
        self._listed: OfThisProcess[tuple[str, str, int], CurrentRecords] = OfThisProcess()
        self._target: dict[str, Bounds] | None = None
        self._latest: dict[str, Bounds] = {}
        self._stream_names: set[str] = set()
        self._looked_up_at = -STREAM_LOOKUP_INTERVAL
        self._ahead: PlanAhead[list[LogPartition]] = PlanAhead()

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:
        """Spark calls this more than once, and needs the same result."""
        if self._initial is None:
            self._initial = ask_logs(self.options, self._begin)
        return to_json(self._initial)

    def _begin(self, bridge: RecordLogBridge) -> Offsets:
        start, bounds = self.first(bridge)
        self._listed.clear()  # an earlier attempt may have ended elsewhere
        for name, found in bounds.items() if self.options.current else ():
            log = bridge.log(name)
            end = log.opened.last
            if not log.removal.all_but_last:
                listed = self._list(log, end)
                end = max([end, *listed.sequences[-1:].tolist()])
                self._listed[name, log.opened.identity, end] = listed
            start[name] = replace(start[name], snapshot=end)
            if self._target is not None:  # the whole snapshot is in the first run
                self._target[name] = replace(found, last=max(found.last, end), time=None)
        return start

    def plan(self, bridge: RecordLogBridge, whole: list[ReadRange]) -> list[LogPartition]:
        tasks, other = list[LogPartition](), list[ReadRange]()
        for r in whole:
            log = None if r.snapshot is None else self.find(bridge, r)
            if log is None or log.removal.all_but_last:
                other.append(r)
                continue
            listed = self._list(log, r.snapshot).within(r.after, r.up_to)
            most = {r.stream: most_tasks(log, self.options.min_partitions)}
            parts = split_ranges([r], self._parts(log, r, len(listed)), most)
            tasks += [LogPartition(part, current=listed.within(part.after, part.up_to)) for part in parts]
        return tasks + super().plan(bridge, other)

    def _parts(self, log: RecordLog, r: ReadRange, current: int) -> int:
        """Number of tasks for a range with ``current`` records: one if these are few, because a log that sends only
        them also sends those before each part."""
        n = self.task_count(current)
        whole = log.match_range(r.after, r.up_to, self.options.topics, 2 * current) if n > 1 and current else None
        return n if whole is not None and whole.last >= r.up_to else 1

    def _list(self, log: RecordLog, snapshot: int | None) -> CurrentRecords:
        """Current records as found when this snapshot began, or at this process's first request. A later snapshot may
        have begun since, at a leader that lacked its end: Spark asks for a query's beginning until its first batch is
        complete."""
        key = log.name, log.opened.identity, snapshot or 0
        if key not in self._listed:
            from .current_rows import current_records

            self._listed[key] = current_records(log.current(self.options.topics, snapshot or 0, payloads=False))
        return self._listed[key]

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self.options.max_offsets_per_trigger, self.options.max_rows_per_trigger
        given = [n for n in limits if n is not None]
        return ReadMaxRows(min(given)) if given else ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = ask_logs(self.options, lambda bridge: self._current_bounds(bridge, {}))

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = self._position(start)
        bounds, resumed = ask_logs(self.options, lambda bridge: self._look(bridge, before))
        self._latest = bounds
        if self._target is not None:  # newer streams are for a later run; some only the checkpoint knows
            self._target = {name: bounds[name] for name in before if name in bounds} | self._target
            bounds = {name: found for name, found in bounds.items() if name in self._target}
        now, losses = reconcile(before, bounds, resumed, self._replacing)
        self.handle_losses(losses)
        if self.options.current:  # new streams have no snapshot
            now = {name: replace(p, snapshot=p.snapshot or 0) for name, p in now.items()}
        if self._target is None and not losses and self._waits_for_more(now, bounds):
            return start
        if self._target is not None:
            bounds = {name: _limited_to(found, self._target[name]) for name, found in bounds.items()}
        bounds = within_snapshots(now, bounds)
        end = to_json(self._with_times(now, self._end_of_batch(now, bounds, limit), bounds))
        if whole := ranges(before, from_json(end)):
            self._ahead.begin((start, end), lambda: self._plan_tasks(whole))
        return end

    def _position(self, given: dict[str, Any]) -> Offsets:
        """Offsets from Spark. ConfigError: they are of another kind of query, or of another bucket."""
        found, current, bucket = from_json(given), self.options.current, self.options.bucket
        if bucket is not None and (others := [name for name in found if name != self.options.stream]):
            raise ConfigError(
                f"the checkpoint is of stream {others[0]}, and this query reads bucket {bucket}: give it a "
                "checkpointLocation of its own"
            )
        if any((p.snapshot is not None) != current for p in found.values()):
            this, that = ("with", "without") if current else ("without", "with")
            raise ConfigError(
                f"the checkpoint is of a query {that} latestPerTopic, and this one is {this} it: give this one a "
                "checkpointLocation of its own, or set latestPerTopic as it was"
            )
        return found

    def _end_of_batch(self, now: Offsets, bounds: Mapping[str, Bounds], limit: ReadLimit) -> Offsets:
        o = self.options
        if not isinstance(limit, ReadMaxRows):
            return advance(now, bounds, None)
        records = limit.max_rows if o.max_rows_per_trigger is None else o.max_offsets_per_trigger
        limits, selective = BatchLimits(records, o.max_rows_per_trigger), bool(o.topics or o.pattern)

        def end(bridge: RecordLogBridge) -> Offsets:
            logs = [bridge.log(name) for name, p in now.items() if p.in_snapshot and name in bounds]
            listed = {log.name: self._list(log, now[log.name].snapshot) for log in logs if not log.removal.all_but_last}
            return next_offsets(bridge, now, bounds, o.topics, limits, selective=selective, snapshots=listed)

        return ask_logs(o, end)

    def _with_times(self, start: Offsets, end: Offsets, bounds: Mapping[str, Bounds]) -> Offsets:
        def time_in(stream: str, found: Bounds, sequence: int) -> int | None:
            if sequence == found.last and found.time is not None:
                return found.time
            return ask_logs(self.options, lambda bridge: time_of(bridge.log(stream), found, sequence))

        return {
            stream: p if p.next == start[stream].next else replace(p, time=time_in(stream, bounds[stream], p.next - 1))
            for stream, p in end.items()
        }

    def _waits_for_more(self, now: Offsets, bounds: Mapping[str, Bounds]) -> bool:
        least, at = self.options.min_offsets_per_trigger, self._clock()
        if least is not None and at < self._triggered_at + self.options.max_trigger_delay:
            there = sum(backlog_of(now, bounds).values())
            if there < least or self._count_matching(now, bounds, least, there) < least:
                return True
        self._triggered_at = at
        return False

    def _count_matching(self, now: Offsets, bounds: Mapping[str, Bounds], least: int, there: int) -> int:
        """Number of unread records that match, up to ``least``; ``there`` if the logs cannot tell."""
        o = self.options
        if not (o.topics or o.pattern):
            return there
        found = ask_logs(o, lambda bridge: matching_records(bridge, now, bounds, o.topics, least))
        return there if found is None else found

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Ends of the streams when the batch was planned, for the lag in Spark's progress."""
        return to_json({name: StreamPosition(b.last + 1, b.identity) for name, b in self._latest.items()}) or None

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogPartition]:
        if (planned := self._ahead.take((start, end))) is not None:
            return planned
        whole = ranges(self._position(start), self._position(end))
        return self._plan_tasks(whole) if whole else []

    def _plan_tasks(self, whole: list[ReadRange]) -> list[LogPartition]:
        return ask_logs(self.options, lambda bridge: self.plan(bridge, whole))

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

    def _look(self, bridge: RecordLogBridge, known: Offsets) -> tuple[dict[str, Bounds], Resumed]:
        bounds = self._current_bounds(bridge, known)
        for stream, p in known.items():
            found = bounds.get(stream)
            if found is not None and found.identity == p.identity and found.last < p.read:
                # another process has seen more, perhaps at another replica
                bounds[stream] = bridge.log(stream).bounds_with(p.read, p.identity)
        return bounds, _resumed(bridge, known, bounds)

    def _current_bounds(self, bridge: RecordLogBridge, known: Offsets) -> dict[str, Bounds]:
        if (now := time.monotonic()) >= self._looked_up_at + STREAM_LOOKUP_INTERVAL:
            self._stream_names, self._looked_up_at = self._matching(bridge), now
        found, self._replacing = {}, set()
        for name in sorted({*known, *self._stream_names}):
            try:
                log = bridge.log(name)
                found[name] = log.opened
                if self.takes_newest(log, known[name].time if name in known else None):
                    self._replacing.add(name)
            except ConfigError as e:
                raise_if_stream_exists(bridge, name, e)  # a data loss if the query has read of it
        return found

    def _matching(self, bridge: RecordLogBridge) -> set[str]:
        """Streams of any of the topics; none for a topic whose stream is gone, which the offset still names."""
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


def _resumed(bridge: RecordLogBridge, known: Offsets, bounds: Mapping[str, Bounds]) -> Resumed:
    return {s: p.resume(partial(bridge.log, s), bounds[s]) for s, p in known.items() if s in bounds}


def _limited_to(now: Bounds, target: Bounds) -> Bounds:
    """``now``, limited to the end of ``target``; empty if the stream was made again since."""
    if target.identity != now.identity:
        return Bounds(now.first, now.first - 1, now.identity)
    return replace(now, last=target.last, time=target.time) if target.last < now.last else now
