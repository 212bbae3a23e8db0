"""The format ``mamadiscovery``: sources and discovery events as rows.

A batch read is the image: one row a source. A stream is the image, a row ``image_end``, then events.

**Offsets.** A new query begins with ``{"v": 1, "begin": "image"}`` (option ``startingOffsets``), unresolved, because
Spark asks for the initial offset at any time, also after a restart. The first ``latestOffset`` resolves it to a
position of the bridge and returns ``{"v": 1, "first": ..., "at": ...}``, which Spark logs: a repeated first batch reads
from ``first``, whatever the option would mean by then. All later offsets are ``{"v": 1, "at": ...}``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from mama_spark.contracts.bridge import DiscoveryBridge, DiscoveryEvent, DiscoveryEventKind, Position
from mama_spark.contracts.errors import ConfigError, DataLost, MamaError, SchemaError
from mama_spark.mama.discovery.discovery_rows import BAD_RECORD, DiscoveryRow, DiscoveryRowReader
from mama_spark.mama.messages.source_records import SourceFields
from mama_spark.mama.messages.status import Status, StatusError
from mama_spark.mama.properties import SUPPORTED
from mama_spark.options import BATCH_READ, STREAM_READ, DiscoveryOptions, Use
from mama_spark.publishing.window.reconnecting import ReconnectingBridge

from ..features import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from ..option_loading import make_discovery, read_options
from ..plain_errors import plain_errors
from .row_batches import SCHEMA, batches

Offset = dict[str, Any]

VERSION = 1


@dataclass(frozen=True)
class DiscoveryJob:
    """Options and fields, pickled to the tasks."""

    options: DiscoveryOptions
    fields: SourceFields

    @property
    def reader(self) -> DiscoveryRowReader:
        return DiscoveryRowReader.of(self.options, self.fields)

    def reconnecting_bridge(self) -> ReconnectingBridge[DiscoveryBridge]:
        o = self.options
        return ReconnectingBridge(lambda: make_discovery(o), o.wait_timeout)


def plan_discovery(options: Mapping[str, str], use: Use) -> DiscoveryJob:
    """Check the options; no I/O but that of the properties file.

    :raises OptionError, ConfigError: something is wrong with them, or with the properties file
    :raises StatusError: NOT_IMPLEMENTED if the transport, or its bridge, has no source discovery
    """
    loaded = read_options(DiscoveryOptions, options, use)
    o = loaded.options
    loaded.discovery.require_support("mamadiscovery")
    if o.middleware.in_process:
        raise StatusError(
            Status.NOT_IMPLEMENTED,
            "the discovery of the bridge memory exists in its own process only, and Spark reads in others; no "
            f"{loaded.discovery.supported_key or f'mama.memory.transport.<name>.{SUPPORTED}'} changes that",
        )
    return DiscoveryJob(o, loaded.discovery.fields)


def image_reader(given: dict[str, str], schema: StructType) -> ImageReader:
    """The reader of a batch read of ``mamadiscovery``.

    :raises ConfigError: an option or the schema is wrong
    """
    return ImageReader(_job(given, schema, BATCH_READ))


def changes_reader(given: dict[str, str], schema: StructType) -> ChangesReader:
    return ChangesReader(_job(given, schema, STREAM_READ))


def _job(given: dict[str, str], schema: StructType, use: Use) -> DiscoveryJob:
    if schema.fieldNames() != SCHEMA.names:
        raise SchemaError("mamadiscovery has a schema of its own: leave out .schema(...)")
    return plan_discovery(given, use)


class ImageReader(DataSourceReader):
    def __init__(self, job: DiscoveryJob) -> None:
        self.job = job

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(None)]

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        bridge = self.job.reconnecting_bridge()
        try:
            events = bridge.call(lambda b: b.image())
        finally:
            bridge.close()
        yield from batches(self.job.reader.image(events))


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One object in one process on the driver; ``read`` is called on unpickled copies in the tasks."""

    def __init__(self, job: DiscoveryJob) -> None:
        self.job = job
        self._reconnecting: ReconnectingBridge[DiscoveryBridge] | None = None
        self._latest: Position | None = None
        self._available_now = False  #: the query ends when it has read what there is now
        self._end: Position | None = None  #: where the query ends then; None until its first batch

    # --- on the driver ---

    @plain_errors
    def initialOffset(self) -> Offset:
        where = self.job.options.starting_offsets
        return {"v": VERSION, "begin": where if isinstance(where, str) else dict(where)}

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.job.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now, self._end = True, None

    @plain_errors
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        offset = self._begin(start, most) if "begin" in start else self._continue(start, most)
        self._latest = offset["at"]
        return offset

    def _begin(self, start: Offset, most: int | None) -> Offset:
        where = start["begin"]
        wanted = where if isinstance(where, str) else tuple(sorted(where.items()))

        def begin(bridge: DiscoveryBridge) -> tuple[Position, Position]:
            first = bridge.initial_offset(wanted)
            at = bridge.latest_offset(first, most)
            if self._available_now:
                self._end = bridge.latest_offset(at)
            return first, at

        first, at = self._bridge.call(begin)
        return {"v": VERSION, "first": first, "at": at}

    def _continue(self, start: Offset, most: int | None) -> Offset:
        at = position_of(start)

        def advance(bridge: DiscoveryBridge) -> Position:
            if self._available_now and self._end is None:
                self._end = bridge.latest_offset(at)
            return bridge.latest_offset(at, most, self._end)

        latest = at if self._available_now and at == self._end else self._bridge.call(advance)
        return start if latest == at else {"v": VERSION, "at": latest}

    @plain_errors
    def reportLatestOffset(self) -> Offset | None:
        if self._latest is None:
            return None
        known = self._latest
        try:
            return {"v": VERSION, "at": self._bridge.call(lambda bridge: bridge.latest_offset(known))}
        except MamaError:
            return None  # for the progress only: the next latestOffset raises the error

    @plain_errors
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One partition, to keep the order; there are few records."""
        first = end["first"] if "begin" in start else position_of(start)
        last = position_of(end)
        return [] if first == last else [InputPartition((first, last))]

    @property
    def _bridge(self) -> ReconnectingBridge[DiscoveryBridge]:
        if self._reconnecting is None:
            self._reconnecting = self.job.reconnecting_bridge()
        return self._reconnecting

    # --- in a task ---

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        start, end = partition.value
        o, bridge = self.job.options, self.job.reconnecting_bridge()
        try:
            events = itertools.chain.from_iterable(read_between(bridge, start, end))
            rows = self.job.reader.rows(checked_for_gaps(events, fail_on_gap=o.fail_on_data_loss), o.sources_stream)
            yield from batches(rows) if o.metrics == "off" else _counted(o, rows)
        finally:
            bridge.close()


def _counted(o: DiscoveryOptions, rows: Iterable[DiscoveryRow]) -> Iterator[pa.RecordBatch]:
    from ...telemetry.task_metrics import ReadMetrics

    metrics = ReadMetrics(o, "mamadiscovery", "")
    try:
        for made in batches(rows):
            metrics.count("rows", made.num_rows)
            metrics.count("undecodable", made["event"].to_pylist().count(BAD_RECORD))
            yield made
    finally:
        metrics.close()


def position_of(offset: Offset) -> Position:
    """The position that an offset of a checkpoint holds.

    :raises ConfigError: another format, or an incompatible version of this one, wrote the checkpoint
    """
    position = offset.get("at")
    if offset.get("v") != VERSION or not isinstance(position, dict):
        raise ConfigError(
            "the checkpoint holds no offset that this version of mamadiscovery understands; if it is of another query, "
            "give this one a checkpointLocation of its own"
        )
    return position


class _RecordsDiffer(MamaError):
    """The log holds other records than before: some were removed while they were read."""


def read_between(
    bridge: ReconnectingBridge[DiscoveryBridge], start: Position, end: Position
) -> Iterator[list[DiscoveryEvent]]:
    """Events between two positions, in order, each once, also when the connection is lost in between.

    :raises MamaError: the outage lasts too long, or the log holds other records afterwards
    """
    reading = _RangeRead(start, end)
    while (events := bridge.call(reading.next_events)) is not None:
        yield events


class _RangeRead:
    def __init__(self, start: Position, end: Position) -> None:
        self._start, self._end = start, end
        self._bridge: DiscoveryBridge | None = None
        self._lists: Iterator[list[DiscoveryEvent]] = iter(())
        self._delivered = 0
        self._last: DiscoveryEvent | None = None

    def next_events(self, bridge: DiscoveryBridge) -> list[DiscoveryEvent] | None:
        if bridge is not self._bridge:
            self._bridge, self._lists = bridge, self._remaining(bridge)
        for events in self._lists:
            if events:
                self._delivered += len(events)
                self._last = events[-1]
                return events
        return None

    def _remaining(self, bridge: DiscoveryBridge) -> Iterator[list[DiscoveryEvent]]:
        skip = self._delivered
        for events in bridge.read(self._start, self._end):
            known = min(skip, len(events))
            if known and known == skip and events[known - 1] != self._last:
                raise _RecordsDiffer("the log holds other records than before the connection was lost: read them again")
            skip -= known
            yield events[known:]


def checked_for_gaps(events: Iterable[DiscoveryEvent], *, fail_on_gap: bool) -> Iterator[DiscoveryEvent]:
    """The same events, until a gap event with ``fail_on_gap``.

    :raises DataLost: names the lost records, and what to do
    """
    for event in events:
        if event.kind is DiscoveryEventKind.GAP and fail_on_gap:
            raise DataLost(_data_lost_text(event))
        yield event


def _data_lost_text(gap: DiscoveryEvent) -> str:
    first, last = gap.gap or (0, 0)
    why = f" ({gap.info})" if gap.info else ""
    return (
        f"records {first} to {last} of {gap.origin} were gone before they were read{why}: they grew too old, were "
        "purged, or the stream was deleted. With option failOnDataLoss=false the query goes on, and the loss is a row "
        "of kind gap; or begin anew with another checkpoint. To lose nothing, let the stream keep records for longer "
        "than the query may be stopped"
    )
