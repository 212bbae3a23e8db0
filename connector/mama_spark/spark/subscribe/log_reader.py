"""Plans and reads ranges of record logs, for the batch and the streaming reader of ``mamasub``.

A bridge is open for one call or one range, because Spark moves readers between processes; the process pools
connections. While the broker is away, calls and ranges are retried.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql.datasource import InputPartition

from mama_spark.contracts.errors import ConfigError, OptionError, Unavailable
from mama_spark.contracts.record_log import PUT, Bounds, CurrentRecords, RecordLog, RecordLogBridge, Records, time_of
from mama_spark.options import ReadOptions, SubscribeOptions
from mama_spark.publishing.window.outage_timer import OutageTimer
from mama_spark.registry import log_bridge, logs_to_read

from ..gc_freeze import exempt_modules
from ..plain_errors import plain_errors
from .offsets import Loss, Offsets, ReadRange, data_lost, requested_offsets
from .schema import MessageColumns
from .task_ranges import split_ranges, task_count

if TYPE_CHECKING:
    import pyarrow as pa

    from ...telemetry.spans import ReceiveSpan
    from ...telemetry.task_metrics import ReadMetrics

logger = logging.getLogger("mama_spark")

STREAM_RECREATED = "the stream was deleted and made again since"


@dataclass
class LogPartition(InputPartition):
    """The range that one task reads. ``known_gaps``: known and tolerated when the batch was planned; ``current``:
    records of a snapshot to read, if the log has others in the range."""

    range: ReadRange
    known_gaps: tuple[tuple[int, int], ...] = ()
    current: CurrentRecords | None = None


ReadLog = Callable[[RecordLog, int], Iterator[Records]]


class LogReader:
    def __init__(self, options: SubscribeOptions, columns: MessageColumns) -> None:
        self.options, self.columns = options, columns

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one task; called on an executor, on an unpickled reader."""
        if self.options.gc_freeze:
            exempt_modules()
        if not isinstance(partition, LogPartition):  # Spark's own, when there is nothing to read
            return
        if self.options.metrics == "off":
            yield from self._rows(partition, None)
            return
        from ...telemetry.task_metrics import ReadMetrics

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
            if (gaps := self._gaps(found, r)) and gaps != partition.known_gaps:
                self.handle_losses([Loss(r.stream, gaps, "deleted before or while they were read")])

        def read(found: RecordLog, after: int) -> Iterator[Records]:
            records = self.records(found, partition, after)
            return records if r.snapshot is None or o.include_deleted else map(self._puts, records)

        unpacking = RowUnpacker(o, self.columns, r.stream)
        find, span = partial(self.find, r=r), self._span(r)
        try:
            for records in read_range(o, find, r.after, read, check, metrics):
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

    def records(self, log: RecordLog, partition: LogPartition, after: int) -> Iterator[Records]:
        r, topics = partition.range, self.options.topics
        if partition.current is None:
            return log.read_views(after, r.up_to, topics)
        left = partition.current.within(after, r.up_to)
        return log.read_current(left, topics) if len(left) else iter(())

    def _puts(self, records: Records) -> Records:
        """Drop the records that delete their topics."""
        import pyarrow.compute as pc  # not at import: a driver finds the format without Arrow's functions

        from .message_columns import operations_of

        puts = pc.equal(operations_of(records, self.columns.operations), PUT)
        return records.take(np.flatnonzero(puts.to_numpy(zero_copy_only=False)))

    def _gaps(self, log: RecordLog, r: ReadRange) -> tuple[tuple[int, int], ...]:
        """Sequences missing in a range when its log was opened, without those replaced by records that the query reads.
        A record missing in a snapshot is not current any more."""
        if r.snapshot is not None or self.takes_newest(log, r.time):
            return ()
        gaps = tuple(log.missing_at_open(r.after, r.up_to))
        if gaps and self.takes_newest(log, sys.maxsize):  # perhaps: the first present record may tell
            first = log.opened.first
            if self.takes_newest(log, time_of(log, log.opened, first)):
                return tuple(gap for gap in gaps if gap[0] < first)
        return gaps

    def takes_newest(self, log: RecordLog, time: int | None = None) -> bool:
        """Whether records missing behind one of this time were replaced by records that the query reads."""
        since = log.removal.replaced_since
        newest = self.options.current or self.options.bucket is not None
        return newest and since is not None and (time or 0) >= since

    def _span(self, r: ReadRange) -> ReceiveSpan | None:
        if self.options.trace_context != "links":
            return None
        from ...telemetry.spans import ReceiveSpan

        return ReceiveSpan(self.options, r.stream)

    def find(self, bridge: RecordLogBridge, r: ReadRange) -> RecordLog | None:
        """The log of the range; None if it is lost."""
        whole = ((r.after + 1, r.up_to),)
        try:
            found = bridge.log(r.stream)
        except ConfigError as e:
            raise_if_stream_exists(bridge, r.stream, e)
            self.handle_losses([Loss(r.stream, whole, str(e))])
            return None
        if found.opened.identity == r.identity:
            return found
        self.handle_losses([Loss(r.stream, whole, STREAM_RECREATED)])
        return None

    def plan(self, bridge: RecordLogBridge, whole: list[ReadRange]) -> list[LogPartition]:
        """The tasks of these ranges; records missing now are reported as lost, by :meth:`handle_losses`."""
        gaps_by_stream: dict[str, tuple[tuple[int, int], ...]] = {}
        logs: dict[str, RecordLog] = {}
        most: dict[str, int | None] = {}
        for r in whole:
            if (found := self.find(bridge, r)) is not None:
                logs[r.stream], most[r.stream] = found, most_tasks(found, self.options.min_partitions)
                gaps = self._gaps(found, r)
                gaps_by_stream[r.stream] = gaps
                self.handle_losses([Loss(r.stream, gaps, "deleted before they were read")] if gaps else [])
        there = [r for r in whole if r.stream in gaps_by_stream]
        total = round(sum(map(len, there)) * self._rows_per_sequence(logs, there))
        parts = split_ranges(there, self.task_count(total), most)
        return [LogPartition(r, _within(gaps_by_stream[r.stream], r)) for r in parts]

    def task_count(self, rows: int) -> int:
        cores = self.options.parallelism or len(os.sched_getaffinity(0))
        return task_count(rows, self.options.min_partitions, cores)

    def _rows_per_sequence(self, logs: Mapping[str, RecordLog], there: list[ReadRange]) -> float:
        """Estimate from the longest range, for the number of tasks."""
        o = self.options
        longest = max(there, key=len, default=None)
        packed = o.unpack and (self.columns.decoded is None or self.columns.decoded.packed)
        if longest is None or len(longest) < 2 or not packed or o.min_partitions is not None:
            return 1.0
        from .packed_rows import rows_per_sequence

        return rows_per_sequence(logs[longest.stream], longest.after, longest.up_to, o.topics)

    def handle_losses(self, losses: Iterable[Loss]) -> None:
        """Raise DataLost or log the losses, by ``failOnDataLoss``."""
        found = list(losses)
        if found and self.options.fail_on_data_loss:
            raise data_lost(found, selective=bool(self.options.topics or self.options.pattern))
        for loss in found:
            logger.error("mamasub: lost: %s", loss)

    def first(self, bridge: RecordLogBridge) -> tuple[Offsets, dict[str, Bounds]]:
        """Start of a query without a checkpoint, and the bounds of its streams."""
        o = self.options
        found = {name: bridge.log(name) for name in logs_to_read(o, bridge)}
        for one in found.values():
            for text in () if self.takes_newest(one) else one.warnings(o.topics if o.stream is not None else ()):
                logger.warning("mamasub: %s", text)
        bounds = {name: one.bounds() for name, one in found.items()}
        at = sequences_at(found, o.starting_time)
        return requested_offsets("startingOffsets", bounds, o.starting_offsets, at), bounds


def read_range(
    o: ReadOptions,
    find: Callable[[RecordLogBridge], RecordLog | None],
    after: int,
    read: ReadLog,
    check: Callable[[RecordLog], None],
    metrics: ReadMetrics | None,
) -> Iterator[Records]:
    """Records of a range; after an outage, those behind the last yielded one. Payloads may be binary_view arrays.

    :param find: returns the log; None ends the read
    :param read: reads the log's records behind a sequence
    :param check: called with the log after the last record
    :raises Unavailable: no record came for ``waitTimeout``
    """
    outage = OutageTimer(o.wait_timeout)
    while True:
        try:
            with contextlib.closing(log_bridge(o, o.wait_timeout)) as bridge:
                bridge.open()
                log = find(bridge)
                if log is None:
                    return
                batches = read(log, after)
                for records in batches if metrics is None else metrics.watched(batches):
                    if len(records):
                        yield records
                        after = max(after, int(records.sequences[-1]))  # changed records come last
                    outage.succeeded()
                if (log := find(bridge)) is not None:
                    check(log)
                return
        except Unavailable as e:
            if metrics is not None:
                metrics.lost_connection()
            outage.wait(e)


def most_tasks(log: RecordLog, at_least: int | None) -> int | None:
    """Maximum number of tasks that can read a log at once; None = any number.

    :param at_least: number of tasks that ``minPartitions`` wants
    :raises OptionError: the log allows fewer
    """
    limit = log.most_readers()
    if limit is None:
        return None
    most, why = limit
    if at_least is not None and at_least > most:
        raise OptionError(
            f"option minPartitions={at_least}: {why}, so {most} tasks can read it at once. Set minPartitions to {most} "
            "or less, or raise that limit"
        )
    return most


def sequences_at(logs: Mapping[str, RecordLog], time: int | str | None) -> dict[str, int] | None:
    return {name: log.sequence_at(time) for name, log in logs.items()} if isinstance(time, int) else None


def raise_if_stream_exists(bridge: RecordLogBridge, name: str, error: ConfigError) -> None:
    """Raise ``error`` if the stream exists: an unreadable stream (no permission) is no data loss."""
    try:
        names = bridge.names(())
    except ConfigError:
        raise error from None
    if name in names:
        raise error


def _within(gaps: tuple[tuple[int, int], ...], r: ReadRange) -> tuple[tuple[int, int], ...]:
    return tuple((max(a, r.after + 1), min(b, r.up_to)) for a, b in gaps if a <= r.up_to and b > r.after)
