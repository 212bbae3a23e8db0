"""The format ``mamadiscovery``: sources and what happens to them, as rows.

A batch read is the image: one row a source. A stream is the image, a row ``image_end``, then changes.

**Offsets.** A new query begins with what the user asked for, as words: ``{"v": 1, "begin": "image"}``. Nothing is
looked up for it, because Spark asks for the first offset again whenever it likes, also after a restart. The first
``latestOffset`` turns the words into a position of the bridge and returns ``{"v": 1, "first": ..., "at": ...}``, which
Spark writes into its log: whoever runs the first batch again reads from ``first``, and not from what the words would
mean by then. All later offsets are ``{"v": 1, "at": ...}``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mama_spark.bridge import DiscoveryBridge, Position
from mama_spark.bridges.reconnecting import ReconnectingBridge
from mama_spark.errors import ConfigError, MamaError, OptionError, SchemaError

from .job import DiscoveryJob, plan_discovery
from .range_reader import replayed, wanted
from .rows import SCHEMA, batches

Offset = dict[str, Any]

VERSION = 1


def image_reader(given: dict[str, str], schema: StructType) -> ImageReader:
    """
    :param given: the options, as Spark hands them over
    :raises ConfigError: an option or the schema is wrong
    """
    job = _job(given, schema)
    if job.options.starting_offsets != "image":
        raise OptionError("option startingOffsets is for streams: a batch read is the image of the sources there are")
    return ImageReader(job)


def changes_reader(given: dict[str, str], schema: StructType) -> ChangesReader:
    """As :func:`image_reader`."""
    return ChangesReader(_job(given, schema))


def _job(given: dict[str, str], schema: StructType) -> DiscoveryJob:
    if schema.fieldNames() != SCHEMA.names:
        raise SchemaError("mamadiscovery has a schema of its own: leave out .schema(...)")
    return plan_discovery(given)


class ImageReader(DataSourceReader):
    """Batch reads."""

    def __init__(self, job: DiscoveryJob) -> None:
        self.job = job

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        reach = self.job.reach()
        try:
            changes = reach.call(lambda bridge: bridge.image())
        finally:
            reach.close()
        yield from batches(self.job.reader.image(changes))


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams. Lives in one process on the driver, but ``read`` is called on fresh copies in the tasks."""

    def __init__(self, job: DiscoveryJob) -> None:
        self.job = job
        self._reach: ReconnectingBridge[DiscoveryBridge] | None = None
        self._known: Position | None = None  #: the last position that was returned
        self._ends = False  #: a query that reads what there is now, and ends
        self._until: Position | None = None  #: where it ends, once it has begun

    # --- on the driver ---

    def initialOffset(self) -> Offset:
        where = self.job.options.starting_offsets
        return {"v": VERSION, "begin": where if isinstance(where, str) else dict(where)}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.job.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends, self._until = True, None

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        offset = self._begin(start, most) if "begin" in start else self._go_on(start, most)
        self._known = offset["at"]
        return offset

    def _begin(self, start: Offset, most: int | None) -> Offset:
        where = start["begin"]
        words = where if isinstance(where, str) else tuple(sorted(where.items()))

        def begin(bridge: DiscoveryBridge) -> tuple[Position, Position]:
            first = bridge.initial_offset(words)
            at = bridge.latest_offset(first, most)
            if self._ends:
                self._until = bridge.latest_offset(at)
            return first, at

        first, at = self._bridge.call(begin)
        return {"v": VERSION, "first": first, "at": at}

    def _go_on(self, start: Offset, most: int | None) -> Offset:
        at = position_of(start)

        def go_on(bridge: DiscoveryBridge) -> Position:
            if self._ends and self._until is None:
                self._until = bridge.latest_offset(at)
            return bridge.latest_offset(at, most, self._until)

        newest = at if self._ends and at == self._until else self._bridge.call(go_on)
        return start if newest == at else {"v": VERSION, "at": newest}

    def reportLatestOffset(self) -> Offset | None:
        """Up to where there is something, for the query's progress: less what was read, the lag."""
        if self._known is None:
            return None
        known = self._known
        try:
            return {"v": VERSION, "at": self._bridge.call(lambda bridge: bridge.latest_offset(known))}
        except MamaError:
            return None  # progress is only told: the next latestOffset says what is wrong

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One, for the order: a reader of all these records is bounded by their number, which is small."""
        first = end["first"] if "begin" in start else position_of(start)
        last = position_of(end)
        return [] if first == last else [InputPartition((first, last))]

    @property
    def _bridge(self) -> ReconnectingBridge[DiscoveryBridge]:
        if self._reach is None:
            self._reach = self.job.reach()
        return self._reach

    # --- in a task ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        start, end = partition.value
        o, reach = self.job.options, self.job.reach()
        try:
            changes = itertools.chain.from_iterable(replayed(reach, start, end))
            told = self.job.reader.rows(wanted(changes, fail_on_gap=o.fail_on_data_loss), o.sources_stream)
            yield from batches(told)
        finally:
            reach.close()


def position_of(offset: Offset) -> Position:
    """:raises ConfigError: the checkpoint was written by something else"""
    position = offset.get("at")
    if offset.get("v") != VERSION or not isinstance(position, dict):
        raise ConfigError("the checkpoint holds no offset that this version of mamadiscovery understands")
    return position
