"""One long-lived process between Tango and a log: subscribes, and writes what comes down before anything else.

The loop takes what the subscriber has, makes records of it and hands them to the writer, which makes it wait while the
log is slow or away. Meanwhile the subscriber's queue fills, up to its bounds; what it drops then is told by a gap, and
so is what the log refuses. Which devices and attributes there are is asked by a thread of its own, so that a server
that is away stops nobody.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from mama_spark.errors import BackgroundTaskFailed, ConfigError, MamaError, PublishError
from mama_spark.message import MessageBatch
from mama_spark.tango.client.attributes import attribute_configs, device_names
from mama_spark.tango.client.rpc import open_device
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import SubMode, Subscription
from mama_spark.tango.client.subscription_events import SubscriptionEvent, SubscriptionEventKind, decode_notices
from mama_spark.tango.client.subscription_states import Timeouts
from mama_spark.tango.events.batch_decoder import BatchDecoder
from mama_spark.tango.log.recorder_state import RecordBuilder, RecorderState
from mama_spark.tango.log.records import RecordKind, decode
from mama_spark.tango.types import EventType

from .settings import RecorderSettings

log = logging.getLogger("mama_spark")

_AT_ONCE = 8192  #: notices of one batch
_WAIT = 0.2
_ASK_AGAIN = 5.0  #: seconds between questions to a server that did not answer
_TELL_AGAIN = 1.0  #: seconds between attempts to tell what the log refused
_COMPLAIN_AGAIN = 10.0
#: The attribute has no such events; where a wildcard found it, that is no error.
_NO_SUCH_EVENTS = frozenset(
    ("API_AttributePollingNotStarted", "API_EventPropertiesNotSet", "API_AttributeNotDataReadyEnabled")
)


class RecordWriter(Protocol):
    """Where records go, in order; see :class:`mama_spark.publisher.resilient_publisher.ResilientPublisher`."""

    stored: int

    @property
    def waiting(self) -> int: ...

    def write(self, batch: MessageBatch, give_up: Callable[[], bool] = ...) -> bool: ...

    def drain(self, timeout: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class RecorderCounts:
    """What happened since the beginning.

    :ivar recorded: records that were made; ``stored``: that the log has acknowledged
    :ivar waiting: notices that were not taken yet, and records that are not acknowledged
    :ivar dropped: notices that were dropped since the log was away for too long
    :ivar gaps: records of missing events
    :ivar refused: records that the log would not take
    """

    subscriptions: int
    recorded: int
    stored: int
    waiting: int
    dropped: int
    gaps: int
    refused: int

    def __str__(self) -> str:
        return (
            f"{self.subscriptions:,} subscriptions, {self.recorded:,} records, {self.stored:,} stored, "
            f"{self.waiting:,} waiting, {self.dropped:,} dropped, {self.gaps:,} gaps, {self.refused:,} refused"
        )


class Recorder:
    """See the module. :meth:`run` does it all, in the caller's thread.

    :param ids: messages carry ids, so that the broker stores none twice
    """

    def __init__(self, settings: RecorderSettings, writer: RecordWriter, *, ids: bool = True) -> None:
        self.settings, self._writer = settings, writer
        self.recording = RecorderState(settings.name, settings.prefix)
        self._subscriber = TangoSubscriber(
            limit=settings.buffer,
            octets=settings.buffer_octets,
            hwm=settings.hwm,
            times=Timeouts(check=settings.heartbeat, late=settings.heartbeat),
            timeout=settings.timeout,
            tell_states=True,
        )
        self._decoder = BatchDecoder()
        self._run = f"{settings.name}-{time.time_ns():x}"
        self._numbers = itertools.count(1)
        self._ids = self._more_ids if ids else None
        self._recorded = self._noted = self._refused = 0
        self._not_taken: deque[MessageBatch] = deque()
        self._tell_at = self._complain_at = 0.0
        self._failure: MamaError | None = None
        self._held: list[MessageBatch] = []  #: that the writer had no room for when the end came
        self._made: dict[tuple[str, str, EventType], Subscription] = {}
        self._found: set[int] = set()  #: subscriptions that a wildcard made
        self._devices = set(settings.named_devices)
        self._ask = set(self._devices)
        self._changed = threading.Event()
        self._ended = False

    def __repr__(self) -> str:
        return f"<Recorder {self.settings.name}, {self.counts}>"

    @property
    def counts(self) -> RecorderCounts:
        waiting = len(self._subscriber.inbox) + self._writer.waiting + sum(map(len, self._held))
        return RecorderCounts(
            len(self._made), self._recorded, self._writer.stored, waiting, self._subscriber.inbox.dropped,
            self.recording.gaps, self._refused,
        )  # fmt: skip

    def refused(self, batch: MessageBatch, errors: Sequence[PublishError]) -> None:
        """The log would not take these records, for good: gaps will say so. For any thread."""
        self._refused += len(batch)
        if not self._writer.stored:
            self._failure = ConfigError(f"the log refuses records: {errors[0]}")
        if time.monotonic() >= self._complain_at:
            self._complain_at = time.monotonic() + _COMPLAIN_AGAIN
            log.error("the log refuses records (%d so far), now because: %s", self._refused, errors[0])
        self._not_taken.append(batch)

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool], say: Callable[[str], None] = lambda text: None) -> bool:
        """Record until ``stop`` says so.

        :returns: whether the log acknowledged everything
        :raises ConfigError: the log refuses even the first record
        :raises MamaError: it cannot be written to at all, or one of the threads ended with an error
        """
        asker = threading.Thread(target=self._ask_on, name="tango-recorder-asks", daemon=True)
        try:
            with self._subscriber as subscriber:
                self._write(self.recording.started(time.time_ns(), self.settings.wants), stop)
                asker.start()
                say("ready")
                try:
                    self._loop(stop, say)
                finally:
                    self._ended = True
                    self._changed.set()
                    asker.join(2 * self.settings.timeout + 1)
            return self._finish(subscriber)
        finally:
            self._ended = True

    def _loop(self, stop: Callable[[], bool], say: Callable[[str], None]) -> None:
        o = self.settings
        state_at = time.monotonic() + o.state_every
        report_at = time.monotonic() + o.report if o.report else float("inf")
        while not stop():
            if self._failure is not None:
                raise self._failure
            self._record(self._subscriber.take(_AT_ONCE, _WAIT), stop)
            now = time.monotonic()
            if now >= state_at:
                state_at = now + o.state_every
                self._note(stop)
            if now >= report_at:
                report_at = now + o.report
                say(str(self.counts))

    def _record(self, notices: list[SubscriptionEvent], stop: Callable[[], bool]) -> None:
        if notices:
            wanted = [
                notice for notice in notices if notice.kind is SubscriptionEventKind.EVENT or self._wanted(notice)
            ]
            self._write(self.recording.take(decode_notices(wanted, self._decoder)), stop)
        if self._not_taken or self.recording.owes:
            self._tell_refused(stop)

    def _tell_refused(self, stop: Callable[[], bool]) -> None:
        while self._not_taken:
            self.recording.refused(decode(self._not_taken.popleft().payloads))
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + _TELL_AGAIN
            self._write(self.recording.tell_owed(time.time_ns()), stop)

    def _wanted(self, notice: SubscriptionEvent) -> bool:
        """Ends subscriptions that a wildcard made in vain."""
        subscription = notice.subscription
        if notice.kind is not SubscriptionEventKind.ERROR or subscription.id not in self._found:
            return True
        if not any(error.reason in _NO_SUCH_EVENTS for error in notice.errors):
            return True
        log.info("%s: no such events: %s", subscription, notice.errors[0].reason)
        self._found.discard(subscription.id)
        subscription.unsubscribe()
        return False

    def _write(self, lines: RecordBuilder, stop: Callable[[], bool]) -> None:
        if not len(lines):
            return
        messages = lines.messages(self._ids)
        self._recorded += len(lines)
        if not self._writer.write(messages, stop):
            self._held.append(messages)
        if any(kind == RecordKind.EVENT for kind in lines.kinds) and EventType.INTERFACE_CHANGE in self.settings.events:
            self._look_again(lines)

    def _look_again(self, lines: RecordBuilder) -> None:
        """A device has other attributes now."""
        for row, topic in enumerate(lines.topics):
            if lines.kinds[row] == RecordKind.EVENT and topic.endswith(".intr_change"):
                self._ask.update(self._devices)
                self._changed.set()
                return

    def _note(self, stop: Callable[[], bool]) -> None:
        """Write down what is known, if there is something new."""
        if self._recorded != self._noted:
            self._write(self.recording.state(time.time_ns()), stop)
            self._noted = self._recorded

    def _finish(self, subscriber: TangoSubscriber) -> bool:
        until = time.monotonic() + self.settings.drain

        def late() -> bool:
            return time.monotonic() > until

        held, self._held = self._held, []
        self._held = [messages for messages in held if not self._writer.write(messages, late)]
        while len(subscriber.inbox) and not late():
            self._record(subscriber.take(_AT_ONCE), late)
        self._writer.drain(max(0.0, until - time.monotonic()))  # what is refused is known then
        self._tell_at = 0.0
        self._tell_refused(late)
        self._write(self.recording.stopped(time.time_ns()), late)
        drained = self._writer.drain(max(0.0, until - time.monotonic()))
        told = not self._not_taken and not self.recording.owes
        return drained and told and not self._held and not len(subscriber.inbox)

    def _more_ids(self, count: int) -> list[str]:
        return [f"{self._run}-{number}" for number in itertools.islice(self._numbers, count)]

    # --- what is subscribed to, in a thread of its own -----------------------------------------------------------

    def _ask_on(self) -> None:
        try:
            self._subscribe()
        except Exception as error:
            log.exception("the thread that asks for devices and attributes ended")
            self._failure = BackgroundTaskFailed(f"nobody asks for devices and attributes any more: {error}")

    def _subscribe(self) -> None:
        patterns = self.settings.device_patterns
        look_at = 0.0
        while not self._ended:
            self._changed.clear()
            if patterns and time.monotonic() >= look_at:
                look_at = time.monotonic() + (self.settings.look_every if self._find(patterns) else _ASK_AGAIN)
            for device in sorted(self._ask):
                if self._ended:
                    return
                try:
                    self._subscribe_device(device)
                except MamaError as error:
                    log.info("%s: its attributes are not known yet: %s", device, error)
            waits = [_ASK_AGAIN] if self._ask else []
            waits += [max(0.0, look_at - time.monotonic())] if patterns else []
            self._changed.wait(min(waits, default=None))

    def _find(self, patterns: Sequence[str]) -> bool:
        """Ask the database which devices there are. False: it did not answer."""
        o = self.settings
        try:
            for pattern in patterns:
                found = device_names(o.host, pattern, o.timeout)
                if not found:
                    log.warning("the database %s knows no device %s", o.host, pattern)
                self._ask.update(found - self._devices)
                self._devices |= found
        except MamaError as error:
            log.warning("the database cannot say which devices there are: %s", error)
            return False
        return True

    def _subscribe_device(self, device: str) -> None:
        o = self.settings
        names, patterns = o.attributes_of(device)
        wanted = [(device, name, event) for name in names for event in o.attribute_events]
        if EventType.INTERFACE_CHANGE in o.events:
            wanted.append((device, "", EventType.INTERFACE_CHANGE))
        self._add(wanted)
        if patterns:
            with open_device(o.full_name(device), timeout=o.timeout) as found:
                there = [config.name.lower() for config in attribute_configs(found)]
            matching = [name for name in there if any(fnmatchcase(name, pattern) for pattern in patterns)]
            self._add([(device, name, event) for name in matching for event in o.attribute_events], found=True)
        self._ask.discard(device)

    def _add(self, wanted: list[tuple[str, str, EventType]], found: bool = False) -> None:
        new = [one for one in dict.fromkeys(wanted) if one not in self._made]
        if not new or self._ended:
            return
        o = self.settings
        full = [(o.full_name(device), name or None, event) for device, name, event in new]
        made = self._subscriber.subscribe_many(full, mode=SubMode.ASYNC_READ)
        self._made.update(zip(new, made, strict=True))
        if found:
            self._found.update(subscription.id for subscription in made)
