"""From what a subscriber delivers to records of a log, and what a recorder must know for it. Pure.

Events become records as they came. What the counters of events tell about the time between two recorders is decided
here, by what the log says was the last event of each topic; so is the life of each device:

========== ================================================================================
state      heartbeats of its server
========== ================================================================================
ONLINE     come
SUSPECT    come, but a value was INVALID, or an error instead, and no better one came since
OFFLINE    do not come, or never came
========== ================================================================================

A record is written when the state changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from mama_spark.errors import MamaError
from mama_spark.message import MessageBatch

from ..client import subscription_events as told
from ..client.subscription_events import Batch, QueueOverflow, SubscriptionEvent
from ..events.counters import WRAP, SequenceGap, SequenceRestart
from ..events.events import Event, write_except
from ..events.frames import LITTLE, usual_call
from ..topics import BadEventTopic, Topic, event_topic, parse, read_topic
from ..types import DevError, EventType, Quality, Severity
from .pending_gaps import PendingGaps
from .records import (
    PREFIX,
    UNKNOWN_COUNT,
    DecodedRecords,
    GapCause,
    RecordFrames,
    RecordHeads,
    RecordKind,
    device_topic,
    encode,
    record_topic,
    writer_topic,
)

STATE_VERSION = 1
#: topics in one record of the state, so that it fits into a message
_TOPICS_IN_PART = 4000
_USERS_OWN = EventType.DATA_READY  #: whose counter is not the server's
_UNCOUNTED = f".{_USERS_OWN.wire_name}".encode()
_LIVES = (RecordKind.ONLINE, RecordKind.SUSPECT, RecordKind.OFFLINE)
_NO_FRAMES = (b"", b"", b"", b"")
FrameRow = Sequence[bytes]


class RecordedDevice(NamedTuple):
    """What tells one device from another."""

    tango_host: str
    name: str
    dbase: bool


class BadState(MamaError):
    """What a recorder wrote down of its knowledge cannot be read."""


@dataclass(slots=True)
class RecordBuilder:
    """Records on their way, as columns that grow."""

    topics: list[str] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    ctrs: list[int] = field(default_factory=list)
    frames: list[FrameRow] = field(default_factory=list)
    gaps: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)  # row -> first, last, count, cause

    def __len__(self) -> int:
        return len(self.topics)

    def add(self, kind: RecordKind, topic: str, received: int, frames: FrameRow = _NO_FRAMES, ctr: int = 0) -> None:
        self.topics.append(topic)
        self.kinds.append(kind)
        self.received.append(received)
        self.ctrs.append(ctr)
        self.frames.append(frames if len(frames) == 4 else (*frames, *_NO_FRAMES[len(frames) :]))

    def messages(self, ids: Callable[[int], list[str]] | None = None) -> MessageBatch:
        """All of them, which are at least one.

        :param ids: so many, for brokers that deduplicate
        """
        columns = {name: np.zeros(len(self), np.int64) for name in ("first", "last", "count", "cause")}
        for row, numbers in self.gaps.items():
            for column, number in zip(columns.values(), numbers, strict=True):
                column[row] = number
        heads = RecordHeads(np.array(self.kinds), np.array(self.received), np.array(self.ctrs), **columns)
        frames = RecordFrames(*(list(column) for column in zip(*self.frames, strict=True)))
        made = None if ids is None else pa.array(ids(len(self)), pa.string())
        topics = pa.array(self.topics, pa.string()).dictionary_encode()
        return MessageBatch(topics, encode(heads, frames), ids=made)


class RecorderState:
    """What one recorder knows.

    :param name: of the recorder
    :param prefix: of the topics in the log
    """

    def __init__(self, name: str, prefix: str = PREFIX) -> None:
        self.name, self.prefix = name, prefix
        self.topic = writer_topic(name, prefix)
        self.gaps = 0  #: records of missing events so far
        self._last: dict[bytes, int] = {}
        self._resumed: set[bytes] = set()  #: topics whose last event stands in the log, and none came since
        self._devices: dict[RecordedDevice, RecordKind] = {}
        self._online: dict[RecordedDevice, bool] = {}
        self._bad: dict[RecordedDevice, dict[bytes, tuple[DevError, ...]]] = {}
        self._hosts: dict[str, str] = {}  #: address as given -> as the server's topics call it
        self._places: dict[bytes, tuple[str, bool, RecordedDevice]] = {}
        self._owed = PendingGaps()
        self._unknown: set[RecordedDevice] = set()  #: whose state the log would not take

    def __repr__(self) -> str:
        counts = {kind: sum(k is kind for k in self._devices.values()) for kind in _LIVES}
        lives = ", ".join(f"{n} {kind.name.lower()}" for kind, n in counts.items() if n)
        return f"<RecorderState {self.name}, {len(self._last)} topics, devices: {lives or 'none'}>"

    @property
    def devices(self) -> dict[RecordedDevice, RecordKind]:
        """What each one is now."""
        return dict(self._devices)

    # --- what the log tells -----------------------------------------------------------------------------------

    def restore(self, state: dict[str, Any] | None, tail: Iterable[DecodedRecords]) -> None:
        """Go on where the last recorder of this name ended.

        :param state: that it wrote last; None: the log has none
        :param tail: all records behind that
        :raises BadState: it is none
        """
        if state is not None:
            try:
                self._last = {topic.encode("latin-1"): int(ctr) for topic, ctr in state["counters"].items()}
                self._devices = {RecordedDevice(h, d, bool(b)): RecordKind[k] for h, d, b, k in state["devices"]}
                self._hosts = {str(k): str(v) for k, v in state["hosts"].items()}
                self._owed.restore(state.get("owed", ()))
            except (KeyError, TypeError, ValueError, AttributeError, UnicodeEncodeError) as error:
                raise BadState(f"no state of a recorder: {error!r}") from None
        for recorded in tail:
            self._replay(recorded)
        self._resumed = set(self._last)

    def _replay(self, recorded: DecodedRecords) -> None:
        topics = recorded.frames.topics
        for row, kind in enumerate(recorded.kind.tolist()):
            topic_of = topics[row]
            if kind == RecordKind.EVENT and recorded.ctr[row] and not topic_of.endswith(_UNCOUNTED):
                ctr = int(recorded.ctr[row])
                self._last[topic_of] = self._owed.replay(topic_of, ctr, self._last.get(topic_of, 0))
            elif kind == RecordKind.RESTART:
                self._last[topic_of] = 0
            elif kind == RecordKind.GAP:
                self._replay_gap(topic_of, int(recorded.last[row]), recorded.cause[row] == GapCause.REFUSED)
            elif kind in _LIVES:
                try:
                    topic = read_topic(topics[row])
                except BadEventTopic:
                    continue
                self._devices[RecordedDevice(topic.tango_host, topic.device, topic.dbase)] = RecordKind(kind)

    def _replay_gap(self, topic: bytes, last: int, refused: bool) -> None:
        if refused:
            self._owed.forget(topic)
            last = max(last, self._last.get(topic, 0))
        if last:
            self._last[topic] = last

    # --- of the recorder itself ---------------------------------------------------------------------------------

    def started(self, now: int, wanted: Callable[[str], bool]) -> RecordBuilder:
        """It begins.

        :param wanted: whether it records a device of this name; the others end
        """
        lines = RecordBuilder()
        lines.add(RecordKind.STARTED, self.topic, now)
        for device in [device for device in self._devices if not wanted(device.name)]:
            self._end(lines, device, now, "it is not recorded any more")
        return lines

    def stopped(self, now: int) -> RecordBuilder:
        """It ends in order."""
        lines = self.state(now)
        lines.add(RecordKind.STOPPED, self.topic, now)
        return lines

    def state(self, now: int) -> RecordBuilder:
        """What is known, in as many records as it takes."""
        lines, topics = RecordBuilder(), list(self._last.items())
        parts = [topics[at : at + _TOPICS_IN_PART] for at in range(0, len(topics), _TOPICS_IN_PART)] or [[]]
        for number, part in enumerate(parts):
            known = {
                "v": STATE_VERSION,
                "part": number,
                "of": len(parts),
                "counters": {topic.decode("latin-1"): ctr for topic, ctr in part},
                "devices": [(*device, kind.name) for device, kind in self._devices.items()] if not number else [],
                "hosts": self._hosts if not number else {},
                "owed": self._owed.state() if not number else [],
            }
            lines.add(RecordKind.STATE, self.topic, now, (self.topic.encode(), LITTLE, b"", orjson.dumps(known)))
        return lines

    # --- what came ---------------------------------------------------------------------------------------------

    def take(self, batch: Batch) -> RecordBuilder:
        """The records of these notices, in their order."""
        lines = RecordBuilder()
        health = self._health(batch)
        event, resumed, last = told.SubscriptionEventKind.EVENT, self._resumed, self._last
        for row, notice in enumerate(batch.notices):
            _, kind, received, frames, ctr, _ = notice
            if kind is event and frames is not None:
                topic = frames[0]
                place, counted, _ = self._places.get(topic) or self._place(topic)
                if counted:
                    if resumed and topic in resumed:
                        self._resume(lines, topic, ctr, received)
                    last[topic] = ctr
                lines.add(RecordKind.EVENT, place, received, frames, ctr)
            else:
                _TAKE[kind](self, lines, notice)
            if health is not None and frames is not None:
                self._judge(lines, frames[0], health[row], received)
        return lines

    # --- what the log would not take ---

    def refused(self, recorded: DecodedRecords) -> None:
        """These records are not in the log."""
        self._owed.refuse(recorded)
        for row in np.flatnonzero(np.isin(recorded.kind, _LIVES)).tolist():
            topic = read_topic(recorded.frames.topics[row])
            self._unknown.add(RecordedDevice(topic.tango_host, topic.device, topic.dbase))

    @property
    def owes(self) -> bool:
        """Something was refused, and not told."""
        return bool(len(self._owed) or self._unknown)

    def tell_owed(self, now: int) -> RecordBuilder:
        """What was refused, as gaps; and devices anew whose state was."""
        lines = RecordBuilder()
        for topic, numbers in self._owed.take():
            with contextlib.suppress(BadEventTopic):  # somebody else's record
                self._gap(lines, read_topic(topic), now, numbers)
        for device in self._unknown & self._devices.keys():
            del self._devices[device]
            self._settle(lines, device, now)
        self._unknown.clear()
        return lines

    # --- parts of records ---

    def _place(self, frame: bytes) -> tuple[str, bool, RecordedDevice]:
        """Topic in the log, whether its counters count, device."""
        topic = read_topic(frame)
        counted = topic.event is not _USERS_OWN
        found = (record_topic(topic, self.prefix), counted, RecordedDevice(topic.tango_host, topic.device, topic.dbase))
        self._places[frame] = found
        return found

    def _resume(self, lines: RecordBuilder, topic: bytes, ctr: int, now: int) -> None:
        """The first event since the recorder was away."""
        self._resumed.discard(topic)
        before = self._last[topic]
        if not ctr or not before or ctr == (before + 1) % WRAP:
            return
        if ctr > before:
            self._gap(lines, read_topic(topic), now, (before + 1, ctr - 1, ctr - 1 - before, GapCause.AWAY))
        else:
            self._gap(lines, read_topic(topic), now, (before, ctr, UNKNOWN_COUNT, GapCause.AWAY), RecordKind.RESTART)

    def _gap(
        self,
        lines: RecordBuilder,
        topic: Topic,
        now: int,
        numbers: tuple[int, int, int, int],
        kind: RecordKind = RecordKind.GAP,
    ) -> None:
        self.gaps += kind is RecordKind.GAP
        lines.gaps[len(lines)] = numbers
        lines.add(kind, record_topic(topic, self.prefix, kind), now, (topic.encode(), LITTLE, usual_call(0)))

    # --- notices that are no events; by kind, see _TAKE ---

    def _read(self, lines: RecordBuilder, notice: SubscriptionEvent) -> None:
        frames = notice.frames
        assert frames is not None
        kind = RecordKind.INITIAL if notice.kind is told.SubscriptionEventKind.INITIAL else RecordKind.RESUBSCRIBED
        place, _, _ = self._places.get(frames[0]) or self._place(frames[0])
        lines.add(kind, place, notice.received, frames)

    def _missing(self, lines: RecordBuilder, notice: SubscriptionEvent) -> None:
        topic, detail = self._topic(notice.subscription, lines, notice.received), notice.detail
        self._resumed.discard(topic.encode())
        if isinstance(detail, SequenceGap):
            self._gap(lines, topic, notice.received, (detail.first, detail.last, detail.size, GapCause.WAY))
        elif isinstance(detail, SequenceRestart):
            numbers = (detail.last, detail.first, UNKNOWN_COUNT, GapCause.WAY)
            self._gap(lines, topic, notice.received, numbers, RecordKind.RESTART)
        elif isinstance(detail, QueueOverflow):
            numbers = (max(detail.first, 0), max(detail.last, 0), int(detail[0]), GapCause.BUFFER)
            self._gap(lines, topic, notice.received, numbers)

    def _error(self, lines: RecordBuilder, notice: SubscriptionEvent) -> None:
        topic = self._topic(notice.subscription, lines, notice.received)
        errors = notice.errors
        frame = topic.encode()
        frames = (frame, LITTLE, usual_call(0, True), write_except(errors))
        place, _, device = self._places.get(frame) or self._place(frame)
        lines.add(RecordKind.ERROR, place, notice.received, frames)
        self._bad.setdefault(device, {})[frame] = errors
        self._settle(lines, device, notice.received)

    def _life(self, lines: RecordBuilder, notice: SubscriptionEvent) -> None:
        topic = self._topic(notice.subscription, lines, notice.received)
        device = RecordedDevice(topic.tango_host, topic.device, topic.dbase)
        self._online[device] = notice.kind is told.SubscriptionEventKind.ONLINE
        if self._online[device]:
            self._bad.get(device, {}).pop(topic.encode(), None)
        self._settle(lines, device, notice.received)

    def _topic(self, subscription: Any, lines: RecordBuilder, now: int) -> Topic:
        """Before a server told its topic, one as it should be."""
        name = subscription.device
        given = str(name.address).lower()
        if subscription.topic is not None:
            topic = parse(subscription.topic)
            if given not in self._hosts and given != topic.tango_host:
                self._hosts[given] = topic.tango_host
                for device in [d for d in self._devices if d.tango_host == given and d.dbase == name.dbase]:
                    self._end(lines, device, now, f"its server calls itself {topic.tango_host}")
            return topic
        attribute = subscription.attribute or None
        return event_topic(self._hosts.get(given, given), name.device, attribute, subscription.event, name.dbase)

    # --- lives of devices ---------------------------------------------------------------------------------------

    def _health(self, batch: Batch) -> list[tuple[DevError, ...] | None] | None:
        """Of each notice with frames: why its device is suspect; None where all is well, and was."""
        columns = batch.columns
        bad: dict[int, tuple[DevError, ...]] = {}
        for row in np.flatnonzero(columns.quality == Quality.INVALID).tolist():
            bad[row] = (DevError("API_AttrQualityInvalid", Severity.ERR, "the quality is INVALID", ""),)
        for row, event in columns.others.items():
            if isinstance(event, Event) and event.errors:
                bad[row] = event.errors
        if not bad and not any(self._bad.values()):
            return None
        found: list[tuple[DevError, ...] | None] = [None] * len(batch)
        for row, errors in bad.items():
            found[int(batch.rows[row])] = errors
        return found

    def _judge(self, lines: RecordBuilder, topic: bytes, errors: tuple[DevError, ...] | None, now: int) -> None:
        device = self._places[topic][2]
        known = self._bad.get(device)
        if errors is not None:
            self._bad.setdefault(device, {})[topic] = errors
        elif known is None or known.pop(topic, None) is None:
            return
        self._settle(lines, device, now)

    def _settle(self, lines: RecordBuilder, device: RecordedDevice, now: int) -> None:
        """Write down what the device is, if it is not what it was."""
        bad = self._bad.get(device)
        errors = next(iter(bad.values())) if bad else ()
        kind = (RecordKind.SUSPECT if bad else RecordKind.ONLINE) if self._online.get(device) else RecordKind.OFFLINE
        if kind is RecordKind.OFFLINE and not errors:
            errors = (DevError("API_EventTimeout", Severity.ERR, "no heartbeat in time", ""),)
        if self._devices.get(device) is not kind:
            self._devices[device] = kind
            self._write_life(lines, device, kind, errors, now)

    def _end(self, lines: RecordBuilder, device: RecordedDevice, now: int, why: str) -> None:
        if self._devices.pop(device) is not RecordKind.OFFLINE:
            self._write_life(lines, device, RecordKind.OFFLINE, (DevError("NotRecorded", Severity.WARN, why, ""),), now)
        self._online.pop(device, None)
        self._bad.pop(device, None)

    def _write_life(
        self, lines: RecordBuilder, device: RecordedDevice, kind: RecordKind, errors: tuple[DevError, ...], now: int
    ) -> None:
        topic = device_topic(*device)
        data = write_except(errors) if errors and kind is not RecordKind.ONLINE else b""
        frames = (topic.encode(), LITTLE, usual_call(0, bool(data)), data)
        lines.add(kind, record_topic(topic, self.prefix), now, frames)


_TAKE: dict[told.SubscriptionEventKind, Callable[[RecorderState, RecordBuilder, SubscriptionEvent], None]] = {
    told.SubscriptionEventKind.INITIAL: RecorderState._read,
    told.SubscriptionEventKind.RESUBSCRIPTION: RecorderState._read,
    told.SubscriptionEventKind.ERROR: RecorderState._error,
    told.SubscriptionEventKind.GAP: RecorderState._missing,
    told.SubscriptionEventKind.RESTART: RecorderState._missing,
    told.SubscriptionEventKind.OVERFLOW: RecorderState._missing,
    told.SubscriptionEventKind.ONLINE: RecorderState._life,
    told.SubscriptionEventKind.OFFLINE: RecorderState._life,
}


def merge_states(parts: Sequence[bytes]) -> dict[str, Any] | None:
    """The newest whole state among the parts that a recorder wrote, in their order; None: there is none."""
    open_parts: list[dict[str, Any]] = []
    newest: dict[str, Any] | None = None
    for data in parts:
        try:
            part = orjson.loads(data)
            number, of = int(part["part"]), int(part["of"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            open_parts = []
            continue
        if part.get("v") != STATE_VERSION or number != len(open_parts):
            open_parts = []
        if number == len(open_parts):
            open_parts.append(part)
        if len(open_parts) == of:
            newest = {**open_parts[0], "counters": {k: v for p in open_parts for k, v in p["counters"].items()}}
            open_parts = []
    return newest
