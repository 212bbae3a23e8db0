"""Opens what a partition's write needs, before its first row is sent: checks, connection, markers, and the stages."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from mama_spark.contracts.bridge import Ack, Capabilities, PublisherBridge
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.options import SinkOptions
from mama_spark.options.window_config import WindowConfig
from mama_spark.packing.codec import Codec, codec_of
from mama_spark.publishing.batch_config import BatchConfig, BatchHooks
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.exactly_once.matching import IdReader
from mama_spark.publishing.exactly_once.protocol import Attempt
from mama_spark.publishing.exactly_once.session import BatchSession, Rules
from mama_spark.publishing.ids.doubled_ids import DoubledIdCheck
from mama_spark.publishing.ids.ids import IDS_MEMORY, IdMaker
from mama_spark.publishing.outage_reporter import retry_while_unavailable
from mama_spark.registry import batch_ledger, publisher_bridge, row_codec

from ..write_counts import TaskCounts
from .announcer import SourceAnnouncer, source_record
from .encoding.row_encoder import CodecRows, RowEncoder
from .failure_policy import knows_ids, on_outage
from .job import ColumnPlan, PartitionReport, SinkJob, TaskInfo
from .last_form import FinishPacks, GiveIds, TakeIdsAway
from .marks import MarkDoubledIds, MarkUnpackable
from .match import MatchStored, unpack_digests
from .outcome_recorder import OutcomeRecorder
from .packs import MakePacks
from .progress_reporter import ProgressReporter
from .stages import Stage

if TYPE_CHECKING:
    from ...telemetry.task_metrics import PartitionMetrics
    from .encoding.headers import TraceHeaders

#: Payload bytes in flight of a partition. A stream's ingest queue holds 128 MiB for all its publishers together.
MAX_BYTES_IN_FLIGHT = 16 << 20
#: Of ids where rows are packed: packs are fewer, and memory that is touched for the first time costs more than hashes.
PACKED_IDS_MEMORY = IDS_MEMORY // 16
#: Of ids of dead letters, where rows bring ids of their own.
DEAD_LETTER_IDS_MEMORY = IDS_MEMORY // 16


@dataclass(frozen=True, slots=True)
class OpenWrite:
    """The open publisher of a task, with the steps that its rows take.

    :ivar session: finds rows that are stored already; None = without ``exactlyOnce``
    :ivar end: reports the publisher's end and gives the connection back, when nothing is in flight any more
    """

    publisher: BatchPublisher
    encoder: RowEncoder | CodecRows
    stages: Sequence[Stage]
    session: BatchSession | None
    end: Callable[[], None]


def open_write(
    job: SinkJob, task: TaskInfo, recorder: OutcomeRecorder, first: pa.RecordBatch, opened: contextlib.ExitStack
) -> OpenWrite:
    """Everything that needs I/O is checked here, before the first publish.

    :param opened: gets what closes all this, in any case: it settles what is open, and gives the connection back
    :raises ConfigError: the user must change something
    :raises Unavailable: a retry of the task may succeed
    """
    o, report, events = job.options, recorder.report, recorder.events
    _refuse_doubled_rows(o, task)
    recorder.check_tables()
    events.create()
    opened.callback(_quietly, events.flush)
    codec = None if o.pack == "off" else pack_codec(o, job.plan, first.schema)
    said_by = f"mamapub: partition {task.partition}: "
    ids = _id_maker(job, task, IDS_MEMORY if codec is None else PACKED_IDS_MEMORY)
    native = row_codec(o)
    encoder = (
        RowEncoder(job.plan, o.topic, o.topic_prefix, for_packing=codec is not None)
        if native is None
        else CodecRows(job.plan, native)
    )
    bridge, destinations = publisher_bridge(o), encoder.destinations(first)
    announcer = _announcer(job, task, report, opened) if o.announce else None

    def disconnect() -> None:
        events.destroy()
        report.duplicate_window = bridge.duplicate_window()
        bridge.close()
        events.destroyed()
        events.flush()
        if announcer is not None:
            announcer.finish()

    opened.callback(bridge.close)
    opened.callback(_quietly, disconnect)
    session = _session(job, task, ids, codec, bridge, opened) if o.exactly_once else None
    metrics = _metrics(recorder, o, opened)
    trace = _trace_headers(o, task.partition, report, opened)

    def connect() -> WindowConfig:
        """Connect on the publisher's thread, while the task's thread waits."""
        retry_while_unavailable(
            lambda: _open_bridge(bridge, destinations),
            wait=o.on_unavailable == "wait",
            say=f"{said_by}the middleware does not answer: %s; waiting until it does (onUnavailable=wait)",
        )
        check_capabilities(o, bridge.capabilities)
        if announcer is not None and announcer.start():
            report.source = announcer.record
            events.publish_to(announcer.add_events)
        events.live()
        return replace(o.window.for_bridge(bridge.capabilities, with_ids=o.dedup), max_bytes=MAX_BYTES_IN_FLIGHT)

    publisher = BatchPublisher(
        bridge,
        o.window,
        on_finished=recorder.on_finished if metrics is None else metrics.on_finished,
        config=BatchConfig(
            on_outage=on_outage(o),
            rate=o.max_rate_per_partition,
            poll_time=min(o.poll_time, o.hold_pause_time),
            name=str(task.partition),
            log_prefix=said_by,
        ),
        hooks=BatchHooks(
            open_bridge=connect,
            outgoing=trace,
            on_event=events.on_transport_event if metrics is None else metrics.on_event,
        ),
        guard=session,
    )
    opened.callback(publisher.stop)
    if metrics is not None:
        metrics.start(publisher)
    progress = _progress(o, task, recorder, publisher, announcer)  # before the connection, which may wait
    opened.callback(progress.stop)
    publisher.start()
    can = bridge.capabilities
    if trace is not None:
        trace.max_payload = can.max_payload
    if session is not None:
        session.open()
    packs = None if codec is None else MakePacks(o, codec, can.max_payload)
    with_ids = o.dedup and can.dedup
    report.stores, report.knows_ids = can.ack is Ack.STORED, knows_ids(o, can)
    dead_letter_ids = None if job.plan.id is None else _id_maker(job, task, DEAD_LETTER_IDS_MEMORY)
    recorder.begin(publisher, packs, with_ids=with_ids, content_ids=dead_letter_ids)
    stages: list[Stage | None] = [
        None if packs is None else MarkUnpackable(lines=o.pack == "lines"),
        None if job.plan.id is None else MarkDoubledIds(DoubledIdCheck(o.on_duplicate_id != "warn"), report.counts),
        None if session is None else MatchStored(session, ids.prefix, codec),
        packs,
        GiveIds(ids, None if session is None else session.free_numbers) if with_ids else TakeIdsAway(),
        None if packs is None else FinishPacks(o),
    ]

    def end() -> None:
        progress.stop()  # its last counts go before the end of the publisher
        disconnect()

    return OpenWrite(publisher, encoder, [stage for stage in stages if stage is not None], session, end)


def _refuse_doubled_rows(o: SinkOptions, task: TaskInfo) -> None:
    """Refuse a task that would publish rows twice, or numbers that other tasks use.

    :raises ConfigError: speculation without ``dedup``, or ``mamaNumbers`` with several partitions
    """
    if task.speculation and not o.dedup:
        raise ConfigError(
            "spark.speculation is on and dedup is off: a speculative attempt would publish its rows twice; "
            "set dedup=true or spark.speculation=false"
        )
    if o.mama_numbers and task.partition > 0:
        raise ConfigError(
            "option mamaNumbers: readers of OpenMAMA take one numbering a topic, and the DataFrame has several "
            "partitions, of which each would begin at 1; write with coalesce(1), or without numbers"
        )


def _write(job: SinkJob, task: TaskInfo) -> tuple[str, int]:
    """Name and number of the write in its ids: of all repetitions, or of this run alone."""
    return job.repeated_as(task.query_id, task.batch_id) or (job.run_id, 0)


def _id_maker(job: SinkJob, task: TaskInfo, memory: int) -> IdMaker:
    """Prefix and batch of default ids (see ``publishing/ids/ids.py`` for the rest)."""
    name, number = _write(job, task)
    return IdMaker(job.options.id_prefix or name, number, task.partition, memory)


def _session(
    job: SinkJob,
    task: TaskInfo,
    ids: IdMaker,
    codec: Codec | None,
    bridge: PublisherBridge,
    opened: contextlib.ExitStack,
) -> BatchSession:
    o, own_ids = job.options, job.plan.id is not None and codec is None
    if codec is None:
        form = "messages with ids of their own" if own_ids else "one message a row"
    else:
        form = f"pack={o.pack} of {codec.description}"
    run, owner = task.stream_run or job.run_id, f"{task.partition}-{uuid.uuid4().hex[:16]}"
    reader = IdReader(not own_ids, None if codec is None else unpack_digests(codec))
    session = BatchSession(
        batch_ledger(o),
        Attempt(*_write(job, task), run, task.partition, owner, ids.prefix, form, numbered_by_user=not job.streaming),
        Rules(
            o.wait_timeout, o.on_retention == "publish", o.on_unavailable == "wait", reader,
            _patience(o), o.on_silent_server == "publish",
        ),
        bridge.sent_to,
    )  # fmt: skip
    opened.callback(session.close)
    return session


def _patience(o: SinkOptions) -> float:
    """Seconds to wait for a server that may still hand on what was sent to it."""
    if o.on_silent_server == "publish":
        return o.wait_timeout
    return math.inf if o.on_unavailable == "wait" else o.retry_deadline


def _metrics(recorder: OutcomeRecorder, o: SinkOptions, opened: contextlib.ExitStack) -> PartitionMetrics | None:
    if o.metrics == "off":
        return None
    from ...telemetry.task_metrics import PartitionMetrics

    metrics = PartitionMetrics(o, recorder.on_finished, recorder.events.on_transport_event)
    opened.callback(metrics.stop)
    return metrics


def _trace_headers(
    o: SinkOptions, partition: int, report: PartitionReport, opened: contextlib.ExitStack
) -> TraceHeaders | None:
    if o.trace_context == "off":
        return None
    from .encoding.headers import TraceHeaders

    if o.trace_column is not None:
        return TraceHeaders()
    from ...telemetry.spans import PublishSpan

    span = PublishSpan(o, partition, None if o.trace_context == "true" else o.trace_context)
    opened.push(lambda _, error, __: span.end(error, report.fatal))
    return TraceHeaders(span.parent, span.state)


def _announcer(job: SinkJob, task: TaskInfo, report: PartitionReport, opened: contextlib.ExitStack) -> SourceAnnouncer:
    write_id = report.write_id
    record = source_record(
        job.options, _write(job, task)[0], streaming=job.streaming, query_name=job.query_name,
        app_name=task.app_name, app_id=task.app_id,
    )  # fmt: skip
    ids = f"{write_id.run_id}-{write_id.batch_id or 0}-{task.partition}-{task.unique_attempt}"
    announcer = SourceAnnouncer(job.options, job.discovery, record, ids)
    opened.callback(announcer.finish)
    return announcer


def _progress(
    o: SinkOptions,
    task: TaskInfo,
    recorder: OutcomeRecorder,
    publisher: BatchPublisher,
    announcer: SourceAnnouncer | None,
) -> ProgressReporter:
    write_id, events = recorder.report.write_id, recorder.events

    def announce(counts: TaskCounts) -> None:
        if recorder.report.source is not None and announcer is not None:
            announcer.set_counts(events.counts(counts))

    every = (announce, o.announce_counts) if o.announce_counts else ()
    return ProgressReporter(f"{write_id.run_id} {write_id.batch_id}", task, publisher, *every)


def _open_bridge(bridge: PublisherBridge, destinations: MessageBatch) -> None:
    """Open the bridge and have it look for where the first messages go.

    :raises ConfigError: the user must change something
    :raises Unavailable: the middleware does not answer
    """
    try:
        bridge.open()
        bridge.prepare(destinations)
    except Unavailable:
        bridge.close()
        raise


def check_capabilities(o: SinkOptions, can: Capabilities) -> None:
    """Check that the middleware carries the headers and packs that the options ask for.

    :raises ConfigError: it does not
    """
    if o.trace_context != "off" and not can.headers:
        raise ConfigError("option traceContext: this broker carries no headers; leave it out")
    if o.pack != "off" and not can.packs:
        raise ConfigError(f"option pack: the {o.bridge_name} bridge carries no packed messages; use pack=off")
    if o.pack != "off" and not can.headers:
        raise ConfigError(
            "option pack: this broker carries no headers, by which readers know a packed message; use pack=off"
        )


def pack_codec(o: SinkOptions, plan: ColumnPlan, schema: pa.Schema) -> Codec:
    """The codec for rows of the schema that Spark gives."""
    kinds = {"value": pa.binary(), "headers": HEADERS_TYPE, "id": pa.string()}
    names = ["value"]
    names += [] if plan.headers is None else ["headers"]
    names += [] if plan.id is None else ["id"]
    return codec_of(
        o.pack, pa.schema([schema.field(name) for name in plan.typed] or [(name, kinds[name]) for name in names])
    )


def _quietly(close: Callable[[], None]) -> None:
    """The error that ended the write is the one to report."""
    with contextlib.suppress(Exception):
        close()
