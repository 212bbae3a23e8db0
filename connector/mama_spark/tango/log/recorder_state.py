"""State of a recorder, which makes log records from subscription events. Pure.

Events are recorded as received. After a restart of the recorder, the counter of the first event of each topic is
compared with the last one in the log: missing events were lost while no recorder ran.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from mama_spark.contracts.errors import MamaError

from ..client.subscription_events import EventBatch, QueueOverflow, SubscriptionEvent, SubscriptionEventKind
from ..client.subscription_states import NO_SUCH_EVENTS
from ..events.event_codec import LITTLE, Event, usual_call, write_except
from ..events.sequence_tracker import (
    UNCOUNTED_TOPIC_ENDS,
    SequenceGap,
    SequenceRestart,
    discontinuity,
    is_counted,
    is_counted_type,
    next_counter,
)
from ..topics import BadEventTopic, Topic, event_topic, parse, read_topic
from ..types import DevError, Quality, Severity
from .device_states import DeviceStates, Errors, RecordedDevice
from .record_builder import RecordBuilder
from .records import (
    DEVICE_STATES,
    PREFIX,
    UNKNOWN_COUNT,
    DecodedRecords,
    GapCause,
    GapNumbers,
    RecordKind,
    record_topic,
    state_parts,
    writer_topic,
)
from .unrecorded import RECORD_REFUSED, ErrorSeries, PendingGaps

_OF_READS = {
    SubscriptionEventKind.INITIAL: RecordKind.INITIAL,
    SubscriptionEventKind.RESUBSCRIPTION: RecordKind.RESUBSCRIBED,
    SubscriptionEventKind.CHECK: RecordKind.CHECKED,
}
_INVALID = (DevError("API_AttrQualityInvalid", Severity.ERR, "the quality of the value is INVALID", ""),)


class BadState(MamaError):
    """The STATE records of a recorder cannot be read."""


class RecorderState:
    """Counters, pending gaps and device states of one recorder.

    :param error_period: seconds between two summaries of a series of errors; 0: every error is a record
    :ivar topic: topic of the records about the recorder itself
    :ivar gaps: number of gap records so far
    :ivar about: entry of the state about the recorder, for others that write into the same log
    :ivar others: topic of another recorder of the log -> first and last sequence of its last state
    :ivar is_stale: the state should be written again soon, since readers of the last one would misunderstand records
    """

    def __init__(self, name: str, prefix: str = PREFIX, error_period: float = 0.0) -> None:
        self.name, self.prefix = name, prefix
        self.topic = writer_topic(name, prefix)
        self.gaps = 0
        self._last: dict[bytes, int] = {}  #: topic -> counter of its last event
        self._resumed: set[bytes] = set()  #: topics with events in the log and none since the restart
        self._devices = DeviceStates(prefix)
        self._hosts: dict[str, str] = {}  #: configured address -> host in topics of the server
        self._info = cache(self._topic_info)
        self._series = ErrorSeries(int(error_period * 1e9), lambda topic: self._info(topic)[0])
        self._pending_gaps = PendingGaps()
        self.about: dict[str, Any] = {}
        self.others: dict[str, tuple[int, int]] = {}
        self.is_stale = False

    def restore(
        self,
        state: dict[str, Any] | None,
        tail: Iterable[DecodedRecords],
        is_recorded: Callable[[RecordedDevice], bool] = lambda device: True,
    ) -> None:
        """Restore the state of the last recorder of this name.

        :param state: its last state; None: the log contains none
        :param tail: all records after that state
        :param is_recorded: whether a device is this recorder's, not that of another one
        :raises BadState: the state is invalid
        """
        if state is not None:
            try:
                self._last = {topic.encode("latin-1"): int(ctr) for topic, ctr in state["counters"].items()}
                self._devices.restore(state["devices"])
                self._hosts = {str(k): str(v) for k, v in state["hosts"].items()}
                self._pending_gaps.restore(state.get("owed", ()))
            except (KeyError, TypeError, ValueError, AttributeError, UnicodeEncodeError) as error:
                raise BadState(f"the state of the recorder is invalid: {error!r}") from None

        configured = {renamed: address for address, renamed in self._hosts.items()}

        @cache
        def is_own(frame: bytes) -> bool:
            """Whether the topic is of a recorded device. Servers without a database have another host in topics."""
            try:
                device = RecordedDevice.of(read_topic(frame))
            except BadEventTopic:
                return True
            host = configured.get(device.tango_host, device.tango_host)
            return device in self._devices.as_dict() or is_recorded(device._replace(tango_host=host))

        for records in tail:
            self._replay(records, is_own)
        self._resumed = set(self._last)

    def _replay(self, records: DecodedRecords, is_own: Callable[[bytes], bool]) -> None:
        for row, kind in enumerate(records.kind.tolist()):
            frame = records.frames.topics[row]
            if not is_own(frame):
                continue
            ctr = int(records.ctr[row])
            if kind == RecordKind.EVENT and is_counted(ctr) and not frame.endswith(UNCOUNTED_TOPIC_ENDS):
                self._last[frame] = self._pending_gaps.replay(frame, ctr, self._last.get(frame, 0))
            elif kind == RecordKind.RESTART:
                self._last[frame] = 0
            elif kind == RecordKind.ERROR and is_counted(int(records.last[row])):
                self._last[frame] = int(records.last[row])
            elif kind == RecordKind.GAP:
                self._replay_gap(frame, int(records.last[row]), records.cause[row] == GapCause.REFUSED)
            elif kind in DEVICE_STATES:
                with contextlib.suppress(BadEventTopic):
                    self._devices.replay(RecordedDevice.of(read_topic(frame)), RecordKind(kind))

    def _replay_gap(self, topic: bytes, last: int, refused: bool) -> None:
        if refused:
            self._pending_gaps.forget(topic)
            last = max(last, self._last.get(topic, 0))
        if is_counted(last):
            self._last[topic] = last

    def started(self, now: int, is_recorded: Callable[[str], bool]) -> RecordBuilder:
        """Return STARTED, and OFFLINE for devices no longer recorded. ``now`` is nanoseconds since the epoch."""
        records = RecordBuilder()
        records.add(RecordKind.STARTED, self.topic, now)
        self._devices.end_unless(records, lambda d: is_recorded(d.name), "the device is no longer recorded", now)
        return records

    def stopped(self, now: int) -> RecordBuilder:
        """Return summaries of errors, the STATE records, and STOPPED."""
        records = RecordBuilder()
        self._series.end(records, *self._series.open)
        self._add_state(records, now)
        records.add(RecordKind.STOPPED, self.topic, now)
        return records

    def state(self, now: int) -> RecordBuilder:
        records = RecordBuilder()
        self._add_state(records, now)
        return records

    def _add_state(self, records: RecordBuilder, now: int) -> None:
        self.is_stale = False
        more = {
            "devices": self._devices.state(), "hosts": self._hosts, "owed": self._pending_gaps.state(),
            "recorder": self.about, "others": self.others,
        }  # fmt: skip
        for part in state_parts(self._last, more):
            records.add(RecordKind.STATE, self.topic, now, (self.topic.encode(), LITTLE, b"", part))

    def record(self, batch: EventBatch) -> RecordBuilder:
        records = RecordBuilder()
        errors = self._errors_of(batch)
        event_kind, resumed, last = SubscriptionEventKind.EVENT, self._resumed, self._last
        open_series = self._series.open
        for row, event in enumerate(batch.events):
            _, kind, received, frames, ctr, _ = event
            if kind is event_kind and frames is not None:
                topic = frames[0]
                name, counted, _ = self._info(topic)
                if counted:
                    if resumed and topic in resumed:
                        self._resume(records, topic, ctr, received)
                    last[topic] = ctr
                found = None if errors is None else errors.get(row)
                if found is not None and found is not _INVALID:
                    if not self._series.begins(records, topic, found, received, frames, ctr):
                        self._update_device(records, topic, found, received)
                        continue
                elif topic in open_series:
                    self._series.end(records, topic)
                records.add(RecordKind.EVENT, name, received, frames, ctr)
            else:
                _RECORD[kind](self, records, event)
            if errors is not None and frames is not None:
                self._update_device(records, frames[0], errors.get(row), received)
        return records

    def summaries(self, now: int) -> RecordBuilder:
        """Return summaries of the series of errors that go on, as far as they are due."""
        records = RecordBuilder()
        self._series.due(records, now)
        return records

    def _topic_info(self, frame: bytes) -> tuple[str, bool, RecordedDevice]:
        """Facts of a Tango topic: the topic of its records, whether its events have counters, and its device."""
        topic = read_topic(frame)
        return record_topic(topic, self.prefix), is_counted_type(topic.event), RecordedDevice.of(topic)

    def _resume(self, records: RecordBuilder, topic: bytes, ctr: int, now: int) -> None:
        self._resumed.discard(topic)
        last = self._last[topic]
        missing = discontinuity(last, ctr) if is_counted(ctr) and is_counted(last) else None
        if missing is not None:
            self._record_missing(records, read_topic(topic), now, missing, GapCause.AWAY)

    def _record_missing(
        self, records: RecordBuilder, topic: Topic, now: int, missing: SequenceGap | SequenceRestart, cause: GapCause
    ) -> None:
        if isinstance(missing, SequenceGap):
            self._record_gap(records, topic, now, GapNumbers(missing.first, missing.last, missing.size, cause))
        else:
            numbers = GapNumbers(missing.last, missing.first, UNKNOWN_COUNT, cause)
            self._record_gap(records, topic, now, numbers, RecordKind.RESTART)

    def _record_gap(
        self, records: RecordBuilder, topic: Topic, now: int, numbers: GapNumbers, kind: RecordKind = RecordKind.GAP
    ) -> None:
        self.gaps += kind is RecordKind.GAP
        frames = (topic.encode(), LITTLE, usual_call(0))
        records.add_gap(kind, record_topic(topic, self.prefix, kind), now, frames, numbers)

    def _record_read(self, records: RecordBuilder, event: SubscriptionEvent) -> None:
        frames = event.frames
        assert frames is not None
        name, _, _ = self._info(frames[0])
        records.add(_OF_READS[event.kind], name, event.received, frames)

    def _record_check(self, records: RecordBuilder, event: SubscriptionEvent) -> None:
        if event.frames is not None:
            self._record_read(records, event)
            return
        topic = self._topic(event.subscription, records, event.received).encode()
        if topic in self._resumed:
            self._resume(records, topic, next_counter(event.ctr), event.received)
        self._last[topic] = event.ctr

    def _record_lost(self, records: RecordBuilder, event: SubscriptionEvent) -> None:
        topic, detail = self._topic(event.subscription, records, event.received), event.detail
        self._resumed.discard(topic.encode())
        if isinstance(detail, QueueOverflow):
            numbers = GapNumbers(max(detail.first, 0), max(detail.last, 0), detail.size, GapCause.BUFFER)
            self._record_gap(records, topic, event.received, numbers)
        elif isinstance(detail, SequenceGap | SequenceRestart):
            self._record_missing(records, topic, event.received, detail, GapCause.WAY)
            if isinstance(detail, SequenceGap):  # by a check, no event follows
                self._last[topic.encode()] = detail.last

    def _record_error(self, records: RecordBuilder, event: SubscriptionEvent) -> None:
        frame = self._topic(event.subscription, records, event.received).encode()
        errors = event.errors
        frames = (frame, LITTLE, usual_call(0, True), write_except(errors))
        name, _, device = self._info(frame)
        if self._series.begins(records, frame, errors, event.received, frames, 0):
            records.add(RecordKind.ERROR, name, event.received, frames)
        if not any(error.reason in NO_SUCH_EVENTS for error in errors):  # that says nothing about the device
            self._devices.failed(records, device, frame, errors, event.received)

    def _record_availability(self, records: RecordBuilder, event: SubscriptionEvent) -> None:
        topic = self._topic(event.subscription, records, event.received)
        online = event.kind is SubscriptionEventKind.ONLINE
        if online:
            self._series.end(records, topic.encode())
        self._devices.availability(records, topic, online, event.received, event.errors)

    def _topic(self, subscription: Any, records: RecordBuilder, now: int) -> Topic:
        """Topic of a subscription; before the first negotiation, the topic that is expected."""
        name = subscription.device
        address = str(name.address).lower()
        if subscription.topic is not None:
            topic = parse(subscription.topic)
            if address not in self._hosts and address != topic.tango_host:
                self._hosts[address] = topic.tango_host
                self.is_stale = True
                renamed = (address, name.dbase)
                reason = f"the host in topics of its server is {topic.tango_host}"
                self._devices.end_unless(records, lambda d: (d.tango_host, d.dbase) != renamed, reason, now)
            return topic
        attribute = subscription.attribute or None
        return event_topic(self._hosts.get(address, address), name.device, attribute, subscription.event, name.dbase)

    def _errors_of(self, batch: EventBatch) -> dict[int, Errors] | None:
        """Event -> errors that make its device SUSPECT. None if no event has errors and no device is SUSPECT."""
        columns = batch.columns
        errors: dict[int, Errors] = dict.fromkeys(np.flatnonzero(columns.quality == Quality.INVALID).tolist(), _INVALID)
        for row, event in columns.others.items():
            if isinstance(event, Event) and event.errors:
                errors[row] = event.errors
        if not errors and not self._devices.any_errors():
            return None
        return {int(batch.rows[row]): some for row, some in errors.items()}

    def _update_device(self, records: RecordBuilder, topic: bytes, errors: Errors | None, now: int) -> None:
        _, _, device = self._info(topic)
        if errors is None:
            self._devices.succeeded(records, device, topic, now)
        else:
            self._devices.failed(records, device, topic, errors, now)

    def refused(self, records: DecodedRecords, reasons: Sequence[str] = ()) -> None:
        """Note that the log rejected these records, and why: one text a record; empty: unknown."""
        self._pending_gaps.refused(records, reasons)
        for row in np.flatnonzero(np.isin(records.kind, DEVICE_STATES)).tolist():
            self._devices.refused(RecordedDevice.of(read_topic(records.frames.topics[row])))

    def report_pending(self, now: int) -> RecordBuilder:
        """Gap records for the rejected records, one error with the reason for each topic, and the rejected device
        states."""
        records = RecordBuilder()
        for topic, reason in self._pending_gaps.take_reasons():
            errors = (DevError(RECORD_REFUSED, Severity.ERR, f"the log does not take it: {reason}", self.name),)
            name, _, _ = self._info(topic)
            records.add(RecordKind.ERROR, name, now, (topic, LITTLE, usual_call(0, True), write_except(errors)))
        for topic, numbers in self._pending_gaps.take():
            with contextlib.suppress(BadEventTopic):  # a record about a recorder, not of a Tango topic
                self._record_gap(records, read_topic(topic), now, numbers)
        self._devices.write_refused(records, now)
        return records


_RECORD: dict[SubscriptionEventKind, Callable[[RecorderState, RecordBuilder, SubscriptionEvent], None]] = {
    SubscriptionEventKind.INITIAL: RecorderState._record_read,
    SubscriptionEventKind.RESUBSCRIPTION: RecorderState._record_read,
    SubscriptionEventKind.CHECK: RecorderState._record_check,
    SubscriptionEventKind.ERROR: RecorderState._record_error,
    SubscriptionEventKind.GAP: RecorderState._record_lost,
    SubscriptionEventKind.RESTART: RecorderState._record_lost,
    SubscriptionEventKind.OVERFLOW: RecorderState._record_lost,
    SubscriptionEventKind.ONLINE: RecorderState._record_availability,
    SubscriptionEventKind.OFFLINE: RecorderState._record_availability,
}
