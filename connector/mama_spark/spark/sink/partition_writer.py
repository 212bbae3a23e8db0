"""Writes one partition, on an executor: rows become messages, and the publisher sends them.

Runs on the task's thread; :mod:`.outcome_recorder` is its counterpart on the publisher's thread. When
:func:`publish_partition` returns, every row has its one outcome, and the flight log's events are on storage.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from mama_spark.contracts.backoff import RECONNECT
from mama_spark.contracts.batch_ledger import BatchLedger
from mama_spark.contracts.bridge import Ack, PublisherBridge
from mama_spark.contracts.errors import ConfigError, PublishError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.options.window import WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, BatchHooks
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.exactly_once.batch_session import BatchSession
from mama_spark.publishing.ids.doubled_ids import DoubledIdCheck
from mama_spark.publishing.ids.ids import IDS_MEMORY, IdMaker
from mama_spark.publishing.outage_reporter import WARNING_INTERVAL
from mama_spark.publishing.window.flight_batch import StoredFlights
from mama_spark.registry import batch_ledger, publisher_bridge, row_codec

from ..write_counts import PROPERTY, TaskCounts
from .announcer import SourceAnnouncer, source_record
from .dead_letter_queue import DeadLetterContext
from .encoding.codec_rows import CodecRows
from .encoding.row_encoder import RowEncoder
from .failure_policy import (
    advice_for_repetition,
    knows_ids,
    on_outage,
    task_must_be_retried,
)
from .job import PartitionReport, SinkJob, TaskInfo
from .outcome_recorder import OutcomeRecorder
from .packed_messages import FlightContext, PackedMessages, PublishBatch, RowMessages, pack_codec
from .progress_reporter import ProgressReporter
from .repeated_rows import BatchWithStored, RepeatedRows, attempt_of, form_of

if TYPE_CHECKING:
    from ...telemetry.spark.partition_metrics import PartitionMetrics
    from ...telemetry.spark.spans import PublishSpan
    from .encoding.trace_headers import TraceHeaders

logger = logging.getLogger("mama_spark")

#: Payload bytes in flight of a partition. A stream's ingest queue holds 128 MiB for all its publishers together.
MAX_BYTES_IN_FLIGHT = 16 << 20
#: Of ids where rows are packed: packs are fewer, and memory that is touched for the first time costs more than hashes.
PACKED_IDS_MEMORY = IDS_MEMORY // 16
#: Of ids of dead letters, where rows bring ids of their own.
DEAD_LETTER_IDS_MEMORY = IDS_MEMORY // 16


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
                "this task has no streaming query and batch in its Spark properties; is this Spark 4.2 or newer?"
            )
        batch_id = int(text)
        stream_run = context.getLocalProperty("spark.jobGroup.id")
    speculation = (context.getLocalProperty("spark.speculation") or "false").lower() == "true"
    app_name, app_id = context.getLocalProperty("spark.app.name"), context.getLocalProperty("spark.app.id")
    return TaskInfo(
        context.partitionId(), context.attemptNumber(), query_id, batch_id, stream_run, speculation, app_name, app_id,
        context.getLocalProperty(PROPERTY), context.taskAttemptId(),
    )  # fmt: skip


def open_bridge(bridge: PublisherBridge, destinations: MessageBatch, *, wait: bool) -> None:
    """Open the bridge and have it look for where the first messages go.

    :param wait: until the middleware answers, with a warning now and then
    :raises ConfigError: the user must change something
    :raises Unavailable: the middleware does not answer, and ``wait`` is off
    """
    delays, warned = RECONNECT.delays(), -WARNING_INTERVAL
    while True:
        try:
            bridge.open()
            bridge.prepare(destinations)
            return
        except Unavailable as e:
            bridge.close()
            if not wait:
                raise
            if time.monotonic() >= warned + WARNING_INTERVAL:
                warned = time.monotonic()
                logger.warning("the middleware does not answer: %s; waiting until it does (onUnavailable=wait)", e)
        time.sleep(delays.next())


def open_ledger(ledger: BatchLedger, *, wait: bool) -> None:
    """:param wait: until the middleware answers"""
    delays = RECONNECT.delays()
    while True:
        try:
            ledger.open()
            return
        except Unavailable:
            if not wait:
                raise
        time.sleep(delays.next())


def publish_partition(job: SinkJob, task: TaskInfo, batches: Iterator[pa.RecordBatch]) -> PartitionReport:
    """Publish the rows of one partition.

    :raises Unavailable: a retry of the task may succeed (broker or storage gone); everything else is in the report, so
        that one bad row does not make Spark publish the partition again
    """
    report = PartitionReport(job.write_id(task), task.partition, task.attempt)
    writer = PartitionWriter(job, task, report)
    try:
        writer.run(batches)
    except ConfigError as e:
        writer.recorder.events.partition_failed(e)
        report.fatal = str(e)
    except Exception as e:
        writer.recorder.events.partition_failed(e)
        raise
    finally:
        writer.close()
    return report


class PartitionWriter:
    """The task's side of one partition: :meth:`run` once, then :meth:`close` in any case.

    :param report: gets counts, parts and the announced source
    """

    def __init__(self, job: SinkJob, task: TaskInfo, report: PartitionReport) -> None:
        self._job, self._task, self._report, self._options = job, task, report, job.options
        self._write = job.repeated_as(task.query_id, task.batch_id) or (job.run_id, 0)
        self.recorder = OutcomeRecorder(job, task, report)
        self._announcer: SourceAnnouncer | None = None
        self._bridge: PublisherBridge | None = None
        self._publisher: BatchPublisher | None = None
        self._progress: ProgressReporter | None = None
        self._metrics: PartitionMetrics | None = None
        self._ids = self._id_maker(IDS_MEMORY if self._options.pack == "off" else PACKED_IDS_MEMORY)
        self._doubled_ids: DoubledIdCheck | None = None
        if job.plan.id is not None:
            self._doubled_ids = DoubledIdCheck(job.options.on_duplicate_id != "warn")
        self._with_ids = False
        self._ledger: BatchLedger | None = None
        self._repeated: RepeatedRows | None = None
        self._trace: TraceHeaders | None = None
        self._span: PublishSpan | None = None
        self._messages: RowMessages | PackedMessages

    def run(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Publish all rows and wait for their outcomes.

        :raises ConfigError: the user must change something
        :raises Unavailable: a retry of the task may succeed
        """
        publisher: BatchPublisher | None = None
        first_row = 0
        for rows in batches:
            if not rows.num_rows:
                continue
            if publisher is None:  # an empty partition opens nothing
                publisher = self._open(rows)
            self._publish_all(publisher, self._messages.encode(rows, first_row))
            self._count_doubled_ids()
            first_row += rows.num_rows
            self._publish_all(publisher, self._messages.take_resends())
            self._publish_dead_letters(publisher, all_of_them=False)
        if publisher is not None:
            self._publish_all(publisher, self._messages.finish())
            self.recorder.prepare_files()
            self._wait_settled(publisher)
            self._publish_dead_letters(publisher, all_of_them=True)
            publisher.drain()
            self._disconnect()
        self.recorder.close()
        self._raise_if_retry_helps()

    def close(self) -> None:
        """After success and after failure: settle what is open, stage its events, give the connection back."""
        if self._progress is not None:
            self._progress.stop()
        if self._publisher is not None:
            self._publisher.stop()
        if self._span is not None:
            self._span.end(sys.exception(), self._report.fatal)
        if self._metrics is not None:
            self._metrics.stop()
        if self._repeated is not None:
            self._repeated.session.close()
        if self._ledger is not None:
            self._ledger.close()
        with contextlib.suppress(Exception):  # the error that ended the write is the one to report
            self._disconnect()
        with contextlib.suppress(Exception):
            self.recorder.close()
        if self._bridge is not None:
            self._bridge.close()
        if self._announcer is not None:
            self._announcer.finish()

    # --- begin -----------------------------------------------------------------------------------------------

    def _open(self, first: pa.RecordBatch) -> BatchPublisher:
        """Everything that needs I/O is checked here, before the first publish."""
        o = self._options
        if self._task.speculation and not o.dedup:
            raise ConfigError(
                "spark.speculation is on and dedup is off: a speculative attempt would publish its rows twice; "
                "set dedup=true or spark.speculation=false"
            )
        if o.mama_numbers and self._task.partition > 0:
            raise ConfigError(
                "option mamaNumbers: readers of OpenMAMA take one numbering a topic, and the DataFrame has several "
                "partitions, of which each would begin at 1; write with coalesce(1), or without numbers"
            )
        self.recorder.check_tables()
        self.recorder.events.create()
        metrics = self._metrics = self._make_metrics()
        self._trace = self._make_trace()
        self._bridge = bridge = publisher_bridge(o)
        guard = self._exactly_once(first.schema) if o.exactly_once else None
        self._publisher = publisher = BatchPublisher(
            bridge,
            o.window,
            on_finished=self.recorder.on_finished if metrics is None else metrics.on_finished,
            config=BatchConfig(
                on_outage=on_outage(o),
                rate=o.max_rate_per_partition,
                poll_time=min(o.poll_time, o.hold_pause_time),
                name=str(self._task.partition),
            ),
            hooks=BatchHooks(
                open_bridge=lambda: self._connect(bridge, first),
                outgoing=self._trace,
                on_event=self.recorder.events.on_transport_event if metrics is None else metrics.on_event,
            ),
            guard=guard,
        )
        write_id = self._report.write_id
        job = f"{write_id.run_id} {write_id.batch_id}"
        if metrics is not None:
            metrics.start(publisher)
        counts = (self._announce_counts, o.announce_counts) if o.announce_counts else ()
        self._progress = ProgressReporter(job, self._task, publisher, *counts)  # before the connection, which may wait
        publisher.start()
        if self._ledger is not None:
            open_ledger(self._ledger, wait=o.on_unavailable == "wait")
        letters = None if self._job.plan.id is None else self._id_maker(DEAD_LETTER_IDS_MEMORY)
        self.recorder.begin(publisher, self._messages, with_ids=self._with_ids, content_ids=letters)
        return publisher

    def _make_metrics(self) -> PartitionMetrics | None:
        """:raises ConfigError: the option ``metrics`` names what is not there"""
        if self._options.metrics == "off":
            return None
        from ...telemetry.spark.partition_metrics import PartitionMetrics

        return PartitionMetrics(self._options, self.recorder.on_finished, self.recorder.events.on_transport_event)

    def _make_trace(self) -> TraceHeaders | None:
        """:raises ConfigError: the option ``traceContext`` cannot be followed"""
        o = self._options
        if o.trace_context == "off":
            return None
        from .encoding.trace_headers import TraceHeaders

        if o.trace_column is not None:
            return TraceHeaders()
        from ...telemetry.spark.spans import PublishSpan

        parent = None if o.trace_context == "true" else o.trace_context
        self._span = span = PublishSpan(o, self._task.partition, parent)
        return TraceHeaders(span.parent, span.state)

    def _connect(self, bridge: PublisherBridge, first: pa.RecordBatch) -> WindowConfig:
        """On the publisher's thread, while the task's thread waits: open the bridge, and do all that depends on what it
        can do, which may depend on where the topics lead."""
        o, plan = self._options, self._job.plan
        codec = row_codec(o)
        encoder = RowEncoder(plan, o.topic, o.topic_prefix) if codec is None else CodecRows(plan, codec)
        open_bridge(bridge, encoder.destinations(first), wait=o.on_unavailable == "wait")
        capabilities = bridge.capabilities
        self._with_ids = o.dedup and capabilities.dedup
        self._report.stores, self._report.knows_ids = capabilities.ack is Ack.STORED, knows_ids(o, capabilities)
        if self._trace is not None:
            if not capabilities.headers:
                raise ConfigError("option traceContext: this broker carries no headers; leave it out")
            self._trace.max_payload = capabilities.max_payload
        doubled = self._doubled_ids
        packed = None if o.pack == "off" else PackedMessages(o, plan, first.schema, capabilities, doubled)
        self._messages = RowMessages(encoder, doubled) if packed is None else packed
        if o.announce:
            self._announce()
        self.recorder.events.live()
        return replace(o.window.for_bridge(capabilities, with_ids=o.dedup), max_bytes=MAX_BYTES_IN_FLIGHT)

    def _exactly_once(self, schema: pa.Schema) -> BatchSession:
        """What says which rows are stored already; nothing is opened yet."""
        o, task, own_ids = self._options, self._task, self._job.plan.id is not None and self._options.pack == "off"
        codec = None if o.pack == "off" else pack_codec(o, self._job.plan, schema)
        form = form_of(o, own_ids=own_ids, codec=codec)
        me = attempt_of(self._ids, *self._write, task.stream_run or self._job.run_id, task.partition, form)
        self._ledger = batch_ledger(o)
        self._repeated = RepeatedRows(o, self._ledger, me, self._ids, own_ids=own_ids, codec=codec)
        return self._repeated.session

    def _announce(self) -> None:
        job, task, write_id = self._job, self._task, self._report.write_id
        record = source_record(
            self._options, self._write[0], streaming=job.streaming, query_name=job.query_name,
            app_name=task.app_name, app_id=task.app_id,
        )  # fmt: skip
        ids = f"{write_id.run_id}-{write_id.batch_id or 0}-{task.partition}-{task.unique_attempt}"
        self._announcer = SourceAnnouncer(self._options, job.discovery, record, ids)
        if self._announcer.start():
            self._report.source = record
            self.recorder.events.publish_to(self._announcer.add_events)

    def _announce_counts(self, counts: TaskCounts) -> None:
        """On the thread of the progress."""
        if self._announcer is not None:
            self._announcer.set_counts(self.recorder.events.counts(counts))

    def _id_maker(self, memory: int) -> IdMaker:
        """Prefix and batch of default ids (see ``publishing/ids/ids.py`` for the rest)."""
        name, number = self._write
        return IdMaker(self._options.id_prefix or name, number, self._task.partition, memory)

    # --- publish ---------------------------------------------------------------------------------------------

    def _publish_all(self, publisher: BatchPublisher, some: Iterator[PublishBatch] | Sequence[PublishBatch]) -> None:
        for one in some:
            for part in self._identified(one) if self._repeated is None else self._repeated.with_ids(one):
                publish = part.publish
                batch, context = self._messages.as_sent(publish.batch, publish.context)
                self._put(publisher, batch, publish.rejected, context, part.stored)

    def _identified(self, one: PublishBatch) -> Iterator[BatchWithStored]:
        """With ids, where the broker shall deduplicate."""
        batch = one.batch
        if not self._with_ids:
            batch = replace(batch, ids=None)
        elif batch.ids is None:
            batch = replace(batch, ids=self._ids.ids(batch))
        yield BatchWithStored(replace(one, batch=batch))

    def _count_doubled_ids(self) -> None:
        if self._doubled_ids is not None:
            counts = self._report.counts
            counts.doubled_ids, counts.first_doubled_id = self._doubled_ids.count, self._doubled_ids.first

    def _publish_dead_letters(self, publisher: BatchPublisher, *, all_of_them: bool) -> None:
        letters = self.recorder.take_dead_letters(all_of_them=all_of_them)
        if letters is not None:
            stored = () if self._repeated is None else self._repeated.letters(letters)
            self._put(publisher, letters, (), DeadLetterContext(), stored)

    def _put(
        self,
        publisher: BatchPublisher,
        batch: MessageBatch,
        rejected: Sequence[tuple[int, PublishError]],
        context: FlightContext | DeadLetterContext,
        stored: Sequence[StoredFlights] = (),
    ) -> None:
        self.recorder.expect()
        publisher.put(batch, rejected, context, stored)

    def _wait_settled(self, publisher: BatchPublisher) -> None:
        """Until every row has its outcome, and so every dead letter is known; each flight has its deadline."""
        if not self.recorder.may_add_messages:
            return  # to drain is enough
        self.recorder.wait_settled(publisher.check)
        while resends := self._messages.take_resends():
            self._publish_all(publisher, resends)
            self.recorder.wait_settled(publisher.check)

    # --- end -------------------------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        """Nothing is in flight any more: report the publisher's end and give the connection back. May be repeated."""
        events = self.recorder.events
        if self._progress is not None:
            self._progress.stop()  # its last counts go before the end of the publisher
        events.destroy()
        if self._bridge is not None:
            self._bridge.close()
        events.destroyed()
        events.flush()
        if self._announcer is not None:
            self._announcer.finish()

    def _raise_if_retry_helps(self) -> None:
        o, counts = self._options, self._report.counts
        if task_must_be_retried(o, counts):
            where = f"; flight log: {o.flight_log}" if o.flight_log else ""
            cause = self._publisher.outage_cause if self._publisher is not None else ""
            why = f"; nothing was acknowledged for a while: {cause}" if cause else ""
            advice = advice_for_repetition(self._job, counts, [self._report])
            raise Unavailable(f"partition {self._task.partition}: {counts.sentence()}{why}{where}{advice}")
