"""One partition's write, on an executor: publish, settle, log. Flush is part of it: when :func:`publish_partition`
returns, every row has its one outcome and its event is on storage."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from mama_spark.bridge import PublisherBridge
from mama_spark.bridges import publisher_bridge, row_codec
from mama_spark.errors import ConfigError, PublishError, Unavailable
from mama_spark.flightlog.dead_letters import DeadLetterStaging
from mama_spark.flightlog.parts import Part
from mama_spark.flightlog.schema import Level
from mama_spark.flightlog.staging import Staging, WriteId
from mama_spark.mama.messages.source_records import SourceRecord
from mama_spark.mama.publisher.partition_events import PartitionEvents
from mama_spark.message import Bools, MessageBatch
from mama_spark.options import SinkOptions
from mama_spark.publisher.batch_publisher import BatchPublisher
from mama_spark.publisher.clock import WallClock
from mama_spark.publisher.ids import IDS_MEMORY, IdMaker
from mama_spark.sending.flight import FlightState
from mama_spark.sending.flight_batch import FlightBatch
from mama_spark.sending.send_loop import messages_of

from ..option_loading import DiscoveryProperties
from .announcer import SourceAnnouncer, source_record
from .codec_rows import CodecRows
from .columns import ColumnPlan
from .dead_letters import DeadLetterContext, DeadLetters
from .event_reporter import EventReporter
from .outcomes import OutcomeCounts, flight_columns, is_row_error, joined_ids, published_columns
from .packed_messages import FlightContext, PackedMessages, PublishBatch, RowMessages, rows_apart
from .progress import Progress
from .row_encoder import RowEncoder

#: Payload bytes in flight of a partition. A stream's ingest queue holds 128 MiB for all its publishers together.
MAX_BYTES_IN_FLIGHT = 16 << 20
#: Of ids where rows are packed: packs are fewer, and memory that is touched for the first time costs more than hashes.
PACKED_IDS_MEMORY = IDS_MEMORY // 16
#: Seconds between looks at whether the publisher is still alive.
_LOOK_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class SinkJob:
    """What every task of a write needs; made on the driver, pickled."""

    options: SinkOptions
    plan: ColumnPlan
    streaming: bool
    run_id: str
    log_fields: tuple[pa.Field, ...]
    discovery: DiscoveryProperties = field(default_factory=DiscoveryProperties)
    query_name: str | None = None


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What only the task knows."""

    partition: int
    attempt: int
    query_id: str | None
    batch_id: int | None
    stream_run: str | None
    speculation: bool
    app_name: str | None = None
    app_id: str | None = None


@dataclass
class PartitionReport(WriterCommitMessage):
    """The commit message: counts and file names, a few kilobytes at most.

    :ivar fatal: what only the user can change was found; nothing was published by this task after it
    :ivar source: what the task announced
    """

    run: WriteId
    partition: int
    attempt: int
    tally: OutcomeCounts = field(default_factory=OutcomeCounts)
    parts: list[Part] = field(default_factory=list)
    dead_parts: list[Part] = field(default_factory=list)
    fatal: str | None = None
    source: SourceRecord | None = None


def task_info(streaming: bool) -> TaskInfo:
    """Read from Spark's task context. The names of the properties are internals of Spark, read only here.

    :raises ConfigError: a streaming task does not know its query or batch
    """
    context = TaskContext.get()
    if context is None:
        raise ConfigError("mamapub writes inside Spark tasks only")
    query_id = batch_id = stream_run = None
    if streaming:  # a batch write inside foreachBatch sees the stream's properties, too, and must not use them
        query_id = context.getLocalProperty("sql.streaming.queryId")
        text = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or text is None:
            raise ConfigError(
                "Spark does not tell this task its streaming query and batch; is this Spark 4.2 or newer?"
            )
        batch_id = int(text)
        stream_run = context.getLocalProperty("spark.jobGroup.id")
    speculation = (context.getLocalProperty("spark.speculation") or "false").lower() == "true"
    app_name, app_id = context.getLocalProperty("spark.app.name"), context.getLocalProperty("spark.app.id")
    return TaskInfo(
        context.partitionId(), context.attemptNumber(), query_id, batch_id, stream_run, speculation, app_name, app_id
    )


def run_of(job: SinkJob, facts: TaskInfo) -> WriteId:
    """Whose rows these are, in the words of the flight log."""
    o = job.options
    if facts.query_id is not None:
        return WriteId(facts.query_id, facts.stream_run or facts.query_id, facts.batch_id, o.bridge_name)
    return WriteId(None, job.run_id, o.txn_version, o.bridge_name)


def publish_partition(job: SinkJob, facts: TaskInfo, batches: Iterator[pa.RecordBatch]) -> PartitionReport:
    """Publish the rows of one partition.

    :raises Unavailable: for trouble that a retry of the task may cure (broker or storage gone); everything else travels
        in the report, so that one bad row does not make Spark publish the partition again
    """
    session = _PartitionWriter(job, facts)
    try:
        return session.run(batches)
    except ConfigError as e:
        session.reporter.failed(e)
        session.report.fatal = str(e)
        return session.report
    except Exception as e:
        session.reporter.failed(e)
        raise
    finally:
        session.close()


class _PartitionWriter:
    def __init__(self, job: SinkJob, facts: TaskInfo) -> None:
        o = job.options
        run = run_of(job, facts)
        self.report = PartitionReport(run, facts.partition, facts.attempt)
        self._job, self._facts, self._options = job, facts, o
        self._tally = self.report.tally
        self._staging: Staging | None = None
        if o.flight_log is not None:
            self._staging = Staging(
                o.flight_log, o.storage_options, run, facts.partition, facts.attempt,
                extra=job.log_fields, level=Level(o.flight_log_level),
            )  # fmt: skip
        self._dead_staging: DeadLetterStaging | None = None
        if o.dead_letter_table is not None:
            self._dead_staging = DeadLetterStaging(
                o.dead_letter_table, o.storage_options, run, facts.partition, facts.attempt
            )
        self._clock = WallClock.anchored()
        events = PartitionEvents(o.topic_events, f"{run.prefix}/{facts.partition}/{facts.attempt}")
        self.reporter = EventReporter(events, self._clock, self._staging)
        self._announcer: SourceAnnouncer | None = None
        self._bridge: PublisherBridge | None = None
        self._publisher: BatchPublisher | None = None
        self._dead: DeadLetters | None = None
        self._ids = self._id_maker()
        self._loader: RowMessages | PackedMessages
        self._rows = 0
        self._unsettled = 0
        self._settled = threading.Condition()

    # --- the task's thread -----------------------------------------------------------------------------------

    def run(self, batches: Iterator[pa.RecordBatch]) -> PartitionReport:
        publisher: BatchPublisher | None = None
        for rows in batches:
            if not rows.num_rows:
                continue
            if publisher is None:  # an empty partition opens nothing
                publisher = self._open(rows)
            for load in self._loader.add(rows, self._rows):
                self._ship(publisher, load)
            self._rows += rows.num_rows
            self._ship_again(publisher)
            self._put_dead_letters(publisher, all_of_them=False)
        if publisher is not None:
            for load in self._loader.finish():
                self._ship(publisher, load)
            self._wait_settled(publisher)
            self._put_dead_letters(publisher, all_of_them=True)
            publisher.drain()
            self._end()
        self._close_files()
        self._raise_retryable()
        return self.report

    def _open(self, first: pa.RecordBatch) -> BatchPublisher:
        """Everything that needs I/O is checked here, before the first publish."""
        o, plan = self._options, self._job.plan
        if self._facts.speculation and not o.dedup:
            raise ConfigError(
                "spark.speculation is on and dedup is off: a speculative attempt would publish its rows twice; "
                "set dedup=true or spark.speculation=false"
            )
        for staging in (self._staging, self._dead_staging):
            if staging is not None:
                staging.check()
        self.reporter.create()
        self._bridge = publisher_bridge(o)
        self._bridge.open()
        codec = row_codec(o)
        encoder = RowEncoder(plan, o.topic, o.topic_prefix) if codec is None else CodecRows(plan, codec)
        self._bridge.prepare(encoder.places(first))  # what the bridge can do may depend on where the topics lead
        packs = None if o.pack == "off" else PackedMessages(o, plan, first.schema, self._bridge.capabilities)
        self._loader = RowMessages(encoder) if packs is None else packs
        if o.on_error == "deadletter":
            self._dead = DeadLetters(o.dead_letter_topic, self._dead_staging, self._with_ids)
        if o.announce:
            self._announce()
        self.reporter.live()
        self._publisher = BatchPublisher(
            self._bridge,
            replace(o.window.for_bridge(self._bridge.capabilities, with_ids=o.dedup), max_bytes=MAX_BYTES_IN_FLIGHT),
            on_finished=self._finished,
            rate=o.max_rate_per_partition,
            poll_time=min(o.poll_time, o.hold_pause_time),
            name=str(self._facts.partition),
            survive_outage=o.error_tolerance == "all" and o.on_error != "fail",
            on_event=self.reporter.transport,
        )
        self._publisher.start()
        self._progress = Progress(self._facts.partition, self._publisher)
        return self._publisher

    def _announce(self) -> None:
        job, facts, run = self._job, self._facts, self.report.run
        identity = facts.query_id or self._options.txn_app_id or job.run_id
        record = source_record(
            self._options, identity, streaming=job.streaming, query_name=job.query_name,
            app_name=facts.app_name, app_id=facts.app_id,
        )  # fmt: skip
        ids = f"{run.run_id}-{run.batch_id or 0}-{facts.partition}-{facts.attempt}"
        self._announcer = SourceAnnouncer(self._options, job.discovery, record, ids)
        if self._announcer.start():
            self.report.source = record
            self.reporter.announce(self._announcer.tell)

    @property
    def _with_ids(self) -> bool:
        return self._options.dedup and self._bridge is not None and self._bridge.capabilities.dedup

    def _id_maker(self) -> IdMaker:
        """Prefix and batch of default ids (see ``publisher/ids.py`` for the rest)."""
        o, facts = self._options, self._facts
        memory = IDS_MEMORY if o.pack == "off" else PACKED_IDS_MEMORY
        if facts.query_id is not None:
            return IdMaker(o.id_prefix or facts.query_id, facts.batch_id or 0, facts.partition, memory)
        if o.txn_app_id is not None and o.txn_version is not None:
            return IdMaker(o.id_prefix or o.txn_app_id, o.txn_version, facts.partition, memory)
        return IdMaker(o.id_prefix or self._job.run_id, 0, facts.partition, memory)

    def _ship(self, publisher: BatchPublisher, load: PublishBatch) -> None:
        batch = load.batch
        if not self._with_ids:
            batch = replace(batch, ids=None)
        elif batch.ids is None:
            batch = replace(batch, ids=self._ids.ids(batch))
        self._put(publisher, batch, load.bad, load.cargo)

    def _ship_again(self, publisher: BatchPublisher) -> bool:
        loads = self._loader.again()
        for load in loads:
            self._ship(publisher, load)
        return bool(loads)

    def _put(
        self, publisher: BatchPublisher, batch: MessageBatch, bad: Sequence[tuple[int, PublishError]], tag: object
    ) -> None:
        with self._settled:
            self._unsettled += 1
        publisher.put(batch, bad, tag)

    def _put_dead_letters(self, publisher: BatchPublisher, *, all_of_them: bool) -> None:
        letters = self._dead.take(all_of_them=all_of_them) if self._dead is not None else None
        if letters is not None:
            self._put(publisher, letters, (), DeadLetterContext())

    def _wait_settled(self, publisher: BatchPublisher) -> None:
        """Until every row has its outcome, and so every dead letter is known. Each flight has its deadline; what has
        none is a pump that died, and then some blocks are never told."""
        if self._dead is None and self._options.pack == "off":
            return  # to drain is enough
        more = True
        while more:
            with self._settled:
                while not self._settled.wait_for(lambda: self._unsettled == 0, _LOOK_EVERY):
                    publisher.check()
            more = self._ship_again(publisher)

    def _raise_retryable(self) -> None:
        o, tally = self._options, self._tally
        tolerated = o.error_tolerance == "all" and o.on_error != "fail"
        if not tally.outage or tolerated or (o.on_uncertain == "report" and not o.dedup):
            return  # with onUncertain=report a retry would publish again what the user wants reported
        where = f"; flight log: {o.flight_log}" if o.flight_log else ""
        raise Unavailable(f"partition {self._facts.partition}: {tally.sentence()}{where}")

    # --- the pump's thread -----------------------------------------------------------------------------------

    def _finished(self, block: FlightBatch) -> None:
        try:
            batch, cargo = messages_of(block), block.context
            apart = self._loader.split(block, batch, cargo) if isinstance(cargo, FlightContext) else None
            self.reporter.finished(block, batch, apart)
            if isinstance(cargo, DeadLetterContext):
                self._check_dead_letters(block)
            elif isinstance(cargo, FlightContext):
                self._log(block, batch, cargo, apart)
        finally:
            with self._settled:
                self._unsettled -= 1
                self._settled.notify_all()

    def _log(self, block: FlightBatch, batch: MessageBatch, cargo: FlightContext, apart: Bools | None) -> None:
        """:param apart: flights whose rows go on in others"""
        assert self._publisher is not None
        assert self._bridge is not None
        flight_id = batch.ids if batch.ids is not None else cargo.ids
        if flight_id is None:
            head = f"{self._job.run_id}-{self._facts.partition}-{self._facts.attempt}-"
            flight_id = joined_ids(head, cargo.numbers)
        dead = self._dead_letters_of(block, batch, flight_id, cargo, apart)
        rows = cargo.rows
        self._tally.count(block, batch, flight_id, rows if apart is None or rows is None else np.where(apart, 0, rows))
        if self._staging is None:
            return
        columns = flight_columns(
            block, batch, flight_id, self._publisher.window.streams, self._clock, self._bridge.capabilities,
            extra=cargo.columns, dead_lettered=dead, payload=self._options.flight_log_payload,
        )  # fmt: skip
        if rows is not None:
            sends = block.sends if cargo.sends is None else block.sends + cargo.sends
            columns = replace(columns, rows=rows, sends=sends)
        if apart is not None:
            columns = columns.take(np.flatnonzero(~apart))
        if self._options.flight_log_level == "all":
            published = published_columns(columns)
            if published is not None:
                self._staging.flights(published)
        self._staging.flights(columns)

    def _dead_letters_of(
        self, block: FlightBatch, batch: MessageBatch, flight_id: pa.Array, cargo: FlightContext, apart: Bools | None
    ) -> Bools | None:
        if self._dead is None or not block.errors:
            return None
        bad = np.flatnonzero((block.state != FlightState.ACKED) & (block.state != FlightState.PUBLISHED))
        if apart is not None:
            bad = bad[~apart[bad]]
        if self._options.error_tolerance == "data":
            bad = np.array([row for row in bad.tolist() if is_row_error(block.errors[row])], np.int64)
        if not len(bad):
            return None
        errors = [block.errors[row] for row in bad.tolist()]
        at = self._clock.micros(block.settled[bad])
        self._tally.dead_lettered += self._dead.add(
            *rows_apart(batch.take(bad), flight_id.take(pa.array(bad)), cargo, errors, at)
        )
        mask = np.zeros(block.n, np.bool_)
        mask[bad] = True
        return mask

    def _check_dead_letters(self, block: FlightBatch) -> None:
        if not block.errors:
            return
        failed = np.flatnonzero((block.state != FlightState.ACKED) & (block.state != FlightState.PUBLISHED))
        for row in failed.tolist():
            error = block.errors[row]
            text = f"deadLetterTopic {self._options.dead_letter_topic!r} does not take what failed: {error}"
            raise ConfigError(text) if is_row_error(error) else Unavailable(text)

    # --- the end ---------------------------------------------------------------------------------------------

    def _close_files(self) -> None:
        if self._staging is not None:
            self.report.parts = self._staging.close()
        if self._dead_staging is not None:
            self.report.dead_parts = self._dead_staging.close()

    def _end(self) -> None:
        """Nothing is in flight any more: the publisher says good-bye, the connection goes back. May be repeated."""
        self.reporter.destroy()
        if self._bridge is not None:
            self._bridge.close()
        self.reporter.destroyed()
        self.reporter.flush()
        if self._announcer is not None:
            self._announcer.finish()

    def close(self) -> None:
        """After success and after failure: what is open is settled, its events are staged, the connection goes back."""
        if self._publisher is not None:
            self._progress.stop()
            self._publisher.stop()
        with contextlib.suppress(Exception):  # the error that brought us here is the one to report
            self._end()
        with contextlib.suppress(Exception):
            self._close_files()
        if self._bridge is not None:
            self._bridge.close()
        if self._announcer is not None:
            self._announcer.finish()
