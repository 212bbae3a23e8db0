"""Recorder: subscribes to Tango events and writes them into a record log.

Its loop takes events from the subscriber, makes records, and passes them to the writer, which blocks while the log is
slow or cannot be reached. Meanwhile events wait in the queue of the subscriber. Gap records report the events that the
full queue dropped and the records that the log rejected. Subscriptions are made in
:mod:`~mama_spark.tango.recorder.device_subscriptions`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import BackgroundTaskFailed, ClientClosed, ConfigError, MamaError, PublishError
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import ReadLog, RecordLog, RecordWriter
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription_events import SubscriptionEvent, SubscriptionEventKind, decode_events
from mama_spark.tango.client.subscription_states import Timeouts
from mama_spark.tango.events.batch_decoder import BatchDecoder
from mama_spark.tango.log.record_builder import RecordBuilder
from mama_spark.tango.log.recorder_state import RecorderState
from mama_spark.tango.log.records import RecordKind, decode
from mama_spark.tango.log.recovery import restore, writer_states
from mama_spark.tango.types import EventType

from ...telemetry.progress_lines import with_progress
from ...telemetry.prometheus.exposition import Metric, counter, gauge
from .device_subscriptions import DeviceSubscriptions
from .other_recorders import OtherRecorders, about, conflict
from .settings import RecorderSettings

logger = logging.getLogger("mama_spark")

_BATCH = 8192  #: most events that are taken in one call
_TAKE_TIMEOUT = 0.2
_REPORT_PERIOD = 1.0  #: seconds between attempts to report rejected records
_LOG_PERIOD = 10.0  #: seconds between two log messages about rejected records
_LOSS_CHECK_STOP = 10.0  #: seconds that the end waits for a call that checks for losses
_INTERFACE_TOPIC = f".{EventType.INTERFACE_CHANGE.wire_name}"


@dataclass(frozen=True, slots=True)
class RecorderCounts:
    """Totals since the recorder was made.

    :ivar subscriptions: number of subscriptions
    :ivar not_accepted: of them, those that their servers refused
    :ivar recorded: number of records that were made
    :ivar stored: records that the log acknowledged
    :ivar waiting: events that were not taken yet, and records without an acknowledgement
    :ivar dropped: events that the full queue dropped
    :ivar gaps: gap records
    :ivar refused: records that the log rejected
    """

    subscriptions: int
    not_accepted: int
    recorded: int
    stored: int
    waiting: int
    dropped: int
    gaps: int
    refused: int

    def __str__(self) -> str:
        return (
            f"{self.subscriptions:,} subscriptions, {self.not_accepted:,} of them refused by servers, "
            f"{self.recorded:,} records, {self.stored:,} stored, "
            f"{self.waiting:,} waiting, {self.dropped:,} dropped, {self.gaps:,} gaps, "
            f"{self.refused:,} refused by the log"
        )

    def metrics(self, labels: dict[str, str]) -> list[Metric]:
        return [
            gauge("mama_recorder_subscriptions", "subscriptions that were made", self.subscriptions, labels),
            gauge(
                "mama_recorder_subscriptions_refused", "of them, those that servers refused", self.not_accepted, labels
            ),
            counter("mama_recorder_records_total", "records that were made", self.recorded, labels),
            counter("mama_recorder_stored_total", "records that the log acknowledged", self.stored, labels),
            gauge(
                "mama_recorder_waiting", "events and records that the log has not acknowledged", self.waiting, labels
            ),
            counter("mama_recorder_dropped_total", "events that the full queue dropped", self.dropped, labels),
            counter("mama_recorder_gaps_total", "gap records: what is known to be missing", self.gaps, labels),
            counter("mama_recorder_refused_total", "records that the log rejected", self.refused, labels),
        ]


class Recorder:
    """Recorder; :meth:`run` records in the caller's thread.

    :param writer: writes records into the log
    :param ids: give messages ids, so that the broker stores none twice
    :ivar state: its state
    :ivar started: when it was made, nanoseconds since the epoch
    """

    def __init__(self, settings: RecorderSettings, writer: RecordWriter, *, ids: bool = True) -> None:
        self.settings, self._writer = settings, writer
        # Time of day: stamps records.
        self.started = time.time_ns()
        self._run_id = f"{settings.name}-{self.started:x}"
        self.state = RecorderState(settings.name, settings.prefix, settings.error_summary)
        self.state.about = about(settings, self.started)
        self._others: OtherRecorders | None = None
        self._subscriber = TangoSubscriber(
            limit=settings.buffer,
            octets=settings.buffer_octets,
            hwm=settings.hwm,
            timeouts=Timeouts(
                check=settings.heartbeat,
                heartbeat=settings.heartbeat,
                refused=Backoff(1.0, max(1.0, settings.retry_refused), jitter=0.3),
            ),
            timeout=settings.timeout,
            report_availability=True,
            report_causes=True,
        )
        self._subscriptions = DeviceSubscriptions(settings, self._subscriber)
        self._loss_checks = _LossChecks(self._subscriber, settings.loss_check)
        self._decoder = BatchDecoder()
        self._numbers = itertools.count(1)
        self._ids = self._next_ids if ids else None
        self._recorded = self._refused = 0
        #: rejected batches that the state does not know yet, and the error of each record
        self._refused_batches: deque[tuple[MessageBatch, Sequence[PublishError]]] = deque()
        self._next_report = self._next_log = 0.0
        self._failure: MamaError | None = None
        self._unwritten: list[MessageBatch] = []  #: batches that the writer did not accept before the end

    def __repr__(self) -> str:
        return f"<Recorder {self.settings.name}, {self.counts}>"

    @property
    def counts(self) -> RecorderCounts:
        """Totals since the recorder was made."""
        waiting = len(self._subscriber.queue) + self._writer.waiting + sum(map(len, self._unwritten))
        return RecorderCounts(
            len(self._subscriptions), self._subscriptions.refused, self._recorded, self._writer.stored, waiting,
            self._subscriber.queue.dropped, self.state.gaps, self._refused,
        )  # fmt: skip

    def resume(self, read: ReadLog) -> None:
        """Restore the state that the previous recorder of the name left in the log, before :meth:`run`, which then
        watches the other recorders of the log.

        :raises ConfigError: one of them records the same devices
        """
        others = self._others = OtherRecorders(read, self.state.topic, self.started, self.settings.state_every)

        def restore_from(log: RecordLog) -> None:
            bounds = log.bounds()
            found = writer_states(log, bounds.first, bounds.last)
            reason = conflict(self.settings, self.state.topic, found, time.time_ns() // 1000)
            if reason is not None:
                raise ConfigError(reason)
            restore(self.state, log, self.settings.records)
            others.begin(found, bounds.last)

        read(restore_from)

    def refused(self, batch: MessageBatch, errors: Sequence[PublishError]) -> None:
        """Note that the log rejected these records finally; gap records will report it. May be called in any thread."""
        self._refused += len(batch)
        if not self._writer.stored:
            self._failure = ConfigError(f"the log rejects records: {errors[0]}; it stored none, so the recorder ends")
        if time.monotonic() >= self._next_log:
            self._next_log = time.monotonic() + _LOG_PERIOD
            logger.error("the log rejects records (%d so far; the recorder goes on, and records what they were as gaps "
                         "once the log takes it): %s", self._refused, errors[0])  # fmt: skip
        self._refused_batches.append((batch, errors))

    def run(self, stop: Callable[[], bool], say: Callable[[str], None] = lambda text: None) -> bool:
        """Record until ``stop`` returns True.

        :param say: gets lines about the progress
        :returns: whether the log acknowledged all records
        :raises ConfigError: the log rejects the first record
        :raises MamaError: the log cannot be written, or a thread failed
        """
        stop = with_progress(stop, self.settings.report, say, lambda: str(self.counts))
        with self._subscriber as subscriber:
            self._write(self.state.started(time.time_ns(), self.settings.wants), stop)
            self._write_state(stop)
            self._subscriptions.start()
            self._loss_checks.start()
            if self._others is not None:
                self._others.start()
            say("ready")
            try:
                self._loop(stop)
            finally:
                self._subscriptions.stop()
                self._loss_checks.stop()
                if self._others is not None:
                    self._others.stop()
        return self._finish(subscriber)

    def _loop(self, stop: Callable[[], bool]) -> None:
        next_state = time.monotonic() + self.settings.state_every
        while not stop():
            self._raise_failure()
            self._record(self._subscriber.take(_BATCH, _TAKE_TIMEOUT), stop)
            now = time.monotonic()
            if now >= next_state or self.state.is_stale:
                next_state = now + self.settings.state_every
                self._write_state(stop)

    def _raise_failure(self) -> None:
        others = self._others.failure if self._others else None
        for failure in (self._failure, self._subscriptions.failure, self._loss_checks.failure, others):
            if failure is not None:
                raise failure

    def _record(self, events: list[SubscriptionEvent], stop: Callable[[], bool]) -> None:
        if events:
            accept, kind = self._subscriptions.accept, SubscriptionEventKind.EVENT
            accepted = [event for event in events if event.kind is kind or accept(event)]
            self._write(self.state.record(decode_events(accepted, self._decoder)), stop)
        self._write(self.state.summaries(time.time_ns()), stop)
        if self._refused_batches or self.state.has_pending:
            self._report_refused(stop)

    def _report_refused(self, stop: Callable[[], bool]) -> None:
        while self._refused_batches:
            batch, errors = self._refused_batches.popleft()
            self.state.refused(decode(batch.payloads), [str(error) for error in errors])
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + _REPORT_PERIOD
            self._write(self.state.report_pending(time.time_ns()), stop)

    def _write(self, records: RecordBuilder, stop: Callable[[], bool]) -> None:
        if not len(records):
            return
        messages = records.messages(self._ids)
        self._recorded += len(records)
        if not self._writer.write(messages, stop):
            self._unwritten.append(messages)
        if EventType.INTERFACE_CHANGE in self.settings.events and _has_interface_change(records):
            self._subscriptions.interface_changed()

    def _write_state(self, stop: Callable[[], bool]) -> None:
        """Write the state, also as a sign of life for other recorders of the log."""
        if self._others is not None:
            self.state.others = dict(self._others.found)
        self._write(self.state.state(time.time_ns()), stop)

    def _finish(self, subscriber: TangoSubscriber) -> bool:
        deadline = time.monotonic() + self.settings.drain

        def late() -> bool:
            return time.monotonic() > deadline

        unwritten, self._unwritten = self._unwritten, []
        self._unwritten = [messages for messages in unwritten if not self._writer.write(messages, late)]
        while len(subscriber.queue) and not late():
            self._record(subscriber.take(_BATCH), late)
        self._writer.drain(max(0.0, deadline - time.monotonic()))  # now all rejections are known
        self._next_report = 0.0
        self._report_refused(late)
        self._write(self.state.stopped(time.time_ns()), late)
        drained = self._writer.drain(max(0.0, deadline - time.monotonic()))
        reported = not self._refused_batches and not self.state.has_pending
        return drained and reported and not self._unwritten and not len(subscriber.queue)

    def _next_ids(self, count: int) -> list[str]:
        return [f"{self._run_id}-{number}" for number in itertools.islice(self._numbers, count)]


def _has_interface_change(records: RecordBuilder) -> bool:
    kinds_and_topics = zip(records.kinds, records.topics, strict=True)
    return any(kind == RecordKind.EVENT and topic.endswith(_INTERFACE_TOPIC) for kind, topic in kinds_and_topics)


class _LossChecks:
    """A thread that checks the subscriptions for losses which no later event shows. It calls
    :meth:`TangoSubscriber.check_losses` twice within each period, since two calls make a check.

    :param period: seconds; 0: never
    :ivar failure: error that ended the thread; None: there is none
    """

    def __init__(self, subscriber: TangoSubscriber, period: float) -> None:
        self._subscriber, self._between = subscriber, period / 2
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tango-recorder-losses", daemon=True)
        self.failure: MamaError | None = None

    def start(self) -> None:
        """Start the thread, if there is a period."""
        if self._between:
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread; waits for a call in progress, some seconds at most."""
        self._stopped.set()
        if self._between:
            self._thread.join(_LOSS_CHECK_STOP)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._between):
                self._subscriber.check_losses()
        except ClientClosed:
            return
        except Exception as error:
            logger.exception("the thread that checks for losses failed")
            self.failure = BackgroundTaskFailed(f"the thread that checks for losses failed: {error}")
