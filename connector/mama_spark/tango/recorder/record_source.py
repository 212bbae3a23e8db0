"""Source of a recorder of Tango events: subscribes, and makes records of the events.

Events wait in the queue of the subscriber until they are taken. Gap records report the events that the full queue
dropped and the records that the log rejected.

A thread makes the subscriptions to the configured devices and attributes. The database resolves patterns of devices,
and each device resolves patterns of its attributes. A server that cannot be reached is called again later; it delays
only its own subscriptions.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError, MamaError, PublishError
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import ReadLog, RecordLog
from mama_spark.recording.background_task import BackgroundTask
from mama_spark.recording.recorder import RecorderCounts, RecorderSettings

from ..client.device_proxy import device_names, open_device
from ..client.keep_alive import Timeouts
from ..client.subscriber import TangoSubscriber
from ..client.subscription import EventSubMode, Subscription
from ..client.subscription_events import SubscriptionEvent, SubscriptionEventKind, decode_events
from ..client.subscription_states import NO_SUCH_EVENTS
from ..errors import ServerAway
from ..events.batch_decoder import BatchDecoder
from ..log.record_builder import RecordBuilder
from ..log.recorder_state import RecorderState
from ..log.records import RecordKind, decode
from ..log.recovery import restore, writer_states
from ..types import EventType
from .other_recorders import OtherRecorders, about, conflict
from .settings import TangoRecorderSettings

logger = logging.getLogger("mama_spark")

_RETRY = 5.0  #: seconds until a database or device that did not answer is called again


class DeviceSubscriptions:
    """Subscriptions of one recorder; the thread ``task`` makes them."""

    def __init__(self, settings: TangoRecorderSettings, subscriber: TangoSubscriber) -> None:
        self._settings, self._subscriber = settings, subscriber
        self._subscriptions: dict[tuple[str, str, EventType], Subscription] = {}
        self._by_pattern: set[int] = set()  #: ids of subscriptions to attributes that a pattern matched
        self._refused: set[int] = set()  #: of these, those whose refusal was recorded
        self._devices = set(settings.named_devices)
        self._pending = set(self._devices)  #: devices to subscribe to, or to read attributes of again
        self._changed = threading.Event()
        self.task = BackgroundTask(
            "tango-recorder-subscribe", "subscribes to devices", self._subscribe_all, 2 * settings.timeout + 1
        )

    def __len__(self) -> int:
        return len(self._subscriptions)

    @property
    def refused(self) -> int:
        """Number of subscriptions that servers refused when they were last asked."""
        return sum(
            one.failure is not None and not isinstance(one.failure, ServerAway)
            for one in list(self._subscriptions.values())
        )

    def stop(self) -> None:
        """Stop the thread; waits until it has stopped, at most for two timeouts of a call and one second."""
        self.task.stopping.set()
        self._changed.set()
        self.task.stop()

    def interface_changed(self) -> None:
        """Read the attributes of all devices again, and confirm subscriptions, since the interface of one changed."""
        self._subscriber.interface_changed()
        self._pending.update(self._devices)
        self._changed.set()

    def accept(self, event: SubscriptionEvent) -> bool:
        """Whether to record a subscription event. A pattern may match attributes that do not send events of this type;
        their subscriptions are tried again, and only the first refusal is recorded."""
        subscription = event.subscription
        if event.kind is not SubscriptionEventKind.ERROR or subscription.id not in self._by_pattern:
            return True
        if not any(error.reason in NO_SUCH_EVENTS for error in event.errors) or subscription.id in self._refused:
            return subscription.id not in self._refused
        self._refused.add(subscription.id)
        reason = event.errors[0].reason
        logger.info(
            "%s is not recorded yet: the attribute sends no such events (%s); trying again", subscription, reason
        )
        return True

    # --- in the thread ---

    def _subscribe_all(self) -> None:
        patterns = self._settings.device_patterns
        next_scan = 0.0
        while not self.task.stopping.is_set():
            self._changed.clear()
            if patterns and time.monotonic() >= next_scan:
                found = self._find_devices(patterns)
                next_scan = time.monotonic() + (self._settings.look_every if found else _RETRY)
            for device in sorted(self._pending):
                if self.task.stopping.is_set():
                    return
                try:
                    self._subscribe_device(device)
                except MamaError as error:
                    logger.info("the attributes of %s cannot be read yet: %s", device, error)
            waits = [_RETRY] if self._pending else []
            waits += [max(0.0, next_scan - time.monotonic())] if patterns else []
            self._changed.wait(min(waits, default=None))

    def _find_devices(self, patterns: Sequence[str]) -> bool:
        """Whether the database answered."""
        settings = self._settings
        try:
            for pattern in patterns:
                found = device_names(settings.databases, pattern, settings.timeout)
                if not found:
                    logger.warning("the database %s has no device that matches %s", settings.databases, pattern)
                self._pending.update(found - self._devices)
                self._devices |= found
        except MamaError as error:
            logger.warning("the devices cannot be read from the database %s: %s", settings.databases, error)
            return False
        return True

    def _subscribe_device(self, device: str) -> None:
        settings = self._settings
        names, patterns = settings.attributes_of(device)
        requests = [(device, name, event) for name in names for event in settings.attribute_events]
        if EventType.INTERFACE_CHANGE in settings.events:
            requests.append((device, "", EventType.INTERFACE_CHANGE))
        self._add(requests)
        if patterns:
            with open_device(settings.full_name(device), timeout=settings.timeout) as proxy:
                attributes = [config.name.lower() for config in proxy.attribute_configs()]
            matching = [name for name in attributes if any(fnmatchcase(name, pattern) for pattern in patterns)]
            requests = [(device, name, event) for name in matching for event in settings.attribute_events]
            self._add(requests, by_pattern=True)
        self._pending.discard(device)

    def _add(self, requests: list[tuple[str, str, EventType]], by_pattern: bool = False) -> None:
        new = [request for request in dict.fromkeys(requests) if request not in self._subscriptions]
        if not new or self.task.stopping.is_set():
            return
        full = [(self._settings.full_name(device), name or None, event) for device, name, event in new]
        subscriptions = self._subscriber.subscribe_many(full, mode=EventSubMode.ASYNC_READ)
        self._subscriptions.update(zip(new, subscriptions, strict=True))
        if by_pattern:
            self._by_pattern.update(subscription.id for subscription in subscriptions)


_BATCH = 8192  #: most events that are taken in one call
_TAKE_TIMEOUT = 0.2
_LOSS_CHECK_STOP = 10.0  #: seconds that the end waits for a call that checks for losses
_INTERFACE_TOPIC = f".{EventType.INTERFACE_CHANGE.wire_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TangoRecorderCounts(RecorderCounts):
    """Counts of a recorder: ``not_accepted`` subscriptions, which their servers refused; events ``dropped`` by the full
    queue."""

    METRICS: ClassVar = {
        "subscriptions": ("subscriptions", "subscriptions that were made"),
        "not_accepted": ("subscriptions_refused", "subscriptions that servers refused"),
        "dropped": ("dropped_total", "events that the full queue dropped"),
        **RecorderCounts.METRICS,
    }

    subscriptions: int
    not_accepted: int
    dropped: int

    def __str__(self) -> str:
        return (
            f"{self.subscriptions:,} subscriptions, {self.not_accepted:,} of them refused by servers, "
            f"{self.recorded:,} records, {self.stored:,} stored, "
            f"{self.waiting:,} waiting, {self.dropped:,} dropped, {self.gaps:,} gaps, "
            f"{self.refused:,} refused by the log"
        )


class TangoRecordSource:
    """See :class:`~mama_spark.recording.recorder.RecordSource`; ``started``: nanoseconds since the epoch."""

    settings_class: ClassVar[type[RecorderSettings]] = TangoRecorderSettings

    def __init__(self, settings: TangoRecorderSettings) -> None:
        self.settings = settings
        # Time of day: stamps records.
        self.started = time.time_ns()
        self.state = RecorderState(settings.name, settings.prefix, settings.error_summary)
        self.state.about = about(settings, self.started)
        self._others: OtherRecorders | None = None
        self._subscriber = TangoSubscriber(
            limit=settings.buffer,
            max_bytes=settings.buffer_bytes,
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
        self._losses = BackgroundTask(
            "tango-recorder-losses", "checks for losses", self._check_losses, _LOSS_CHECK_STOP
        )
        self._tasks = [self._subscriptions.task, *([self._losses] if settings.loss_check else [])]
        self._decoder = BatchDecoder()
        self._take_timeout = _TAKE_TIMEOUT
        self._next_state = math.inf

    @property
    def waiting(self) -> int:
        return len(self._subscriber.queue)

    def counts(self, *, recorded: int, stored: int, waiting: int, refused: int) -> RecorderCounts:
        return TangoRecorderCounts(
            recorded=recorded, stored=stored, waiting=waiting, gaps=self.state.gaps, refused=refused,
            subscriptions=len(self._subscriptions), not_accepted=self._subscriptions.refused,
            dropped=self._subscriber.queue.dropped,
        )  # fmt: skip

    def resume(self, read: ReadLog) -> None:
        """Restore the state that the previous recorder of the name left in the log. The other recorders of the log are
        watched from then on.

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
        self._tasks.append(others.task)

    def begin(self) -> Iterator[MessageBatch]:
        self._subscriber.start()
        yield from self._messages(self.state.started(time.time_ns(), self.settings.wants))
        yield from self._state()
        for task in self._tasks:
            task.start()

    def records(self) -> Iterator[MessageBatch]:
        events = self._subscriber.take(_BATCH, self._take_timeout)
        if events:
            accept, kind = self._subscriptions.accept, SubscriptionEventKind.EVENT
            accepted = [event for event in events if event.kind is kind or accept(event)]
            yield from self._messages(self.state.record(decode_events(accepted, self._decoder)))
        yield from self._messages(self.state.summaries(time.time_ns()))

    def due(self) -> Iterator[MessageBatch]:
        for task in self._tasks:
            task.check()
        if time.monotonic() >= self._next_state or self.state.is_stale:
            yield from self._state()

    def idle(self) -> None:
        """The subscriber receives in threads of its own."""

    def refused(self, batch: MessageBatch, errors: Sequence[PublishError]) -> None:
        self.state.refused(decode(batch.payloads), [str(error) for error in errors])

    def gaps(self) -> Iterator[MessageBatch]:
        return self._messages(self.state.report_pending(time.time_ns()))

    def stop(self) -> None:
        self.close()
        self._take_timeout = 0.0

    def end(self) -> Iterator[MessageBatch]:
        return self._messages(self.state.stopped(time.time_ns()))

    def close(self) -> None:
        self._subscriptions.stop()
        for task in self._tasks:
            task.stop()
        self._subscriber.close()

    def _state(self) -> Iterator[MessageBatch]:
        """The state, also as a sign of life for other recorders of the log."""
        self._next_state = time.monotonic() + self.settings.state_every
        if self._others is not None:
            self.state.others = dict(self._others.found)
        return self._messages(self.state.state(time.time_ns()))

    def _check_losses(self) -> None:
        """Ask the servers for losses that no later event shows. Two calls make a check."""
        while not self._losses.stopping.wait(self.settings.loss_check / 2):
            self._subscriber.check_losses()

    def _messages(self, records: RecordBuilder) -> Iterator[MessageBatch]:
        if len(records):
            if EventType.INTERFACE_CHANGE in self.settings.events and _has_interface_change(records):
                self._subscriptions.interface_changed()
            yield records.messages()


def _has_interface_change(records: RecordBuilder) -> bool:
    kinds_and_topics = zip(records.kinds, records.topics, strict=True)
    return any(kind == RecordKind.EVENT and topic.endswith(_INTERFACE_TOPIC) for kind, topic in kinds_and_topics)
