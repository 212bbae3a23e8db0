"""Dispatcher of received events: finds the subscriptions of a topic, and tracks the counter of its events. Pure.

An event costs one look-up and one comparison; it is not decoded here.

A counter shows a loss when the next event comes; of the end of a series nothing comes. The loss detector finds events
that were lost after the newest one of their topic, since a server was asked about it twice. What servers can be asked
decides what is found:

- Servers of Tango 10 tell the counter of the newest event that they have sent (``QueryEventSystem``). An event that one
  check heard of, and that has not been received by the next check, is lost, if nothing of its topic was received
  between them: exact, with counters.
- Older servers can only be asked for the value. If twice it differs from the newest one that was received, and nothing
  was received in between, it is delivered. That is no proof of a loss: a device may change a value by less than its
  criteria, or without an event. A value that went and came back is not found.

The time between two checks must be longer than an event may be on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any

import numpy as np

from ..events.event_codec import BIG, LITTLE, BadEvent, Event, decode
from ..events.sequence_tracker import SequenceGap, SequenceTracker, is_counted_type, is_kept
from ..types import AttributeValue, EventType
from .subscription_events import SubscriptionEvent, SubscriptionEventKind

_Value = tuple[object, ...]


class LossDetector:
    """Compares two checks.

    :param sequences: counters of the received events; told which losses are known
    """

    def __init__(self, sequences: SequenceTracker) -> None:
        self._sequences = sequences
        #: topic -> counter that the server told at the last check, and what had been received by then
        self._sent: dict[bytes, tuple[int, object]] = {}
        #: topic -> newest event by the last check, when the value that was read differed
        self._different: dict[bytes, object] = {}
        #: topic -> newest event when a value was read and delivered, and the frames of this value
        self._delivered: dict[bytes, tuple[object, Sequence[bytes]]] = {}

    def forget(self, topic: bytes) -> None:
        """Forget a topic without subscriptions."""
        for known in (self._sent, self._different, self._delivered):
            known.pop(topic, None)

    # --- counters ---

    def check_counter(self, topic: bytes, counter: int) -> SequenceGap | int | None:
        """Compare what a server has sent with what was received.

        :param counter: of the newest event that the server has sent
        :returns: the events that are certain to be lost now; where nothing was received yet, the counter that was sent
            before the first check
        """
        newest = self._sequences.newest(topic)
        before, self._sent[topic] = self._sent.get(topic), (counter, newest)
        if before is None or before[1] is not newest:
            return None
        if newest is None:
            self._sequences.begin(topic, before[0])
            self._sent[topic] = (counter, self._sequences.newest(topic))
            return before[0]
        return self._sequences.lose(topic, before[0])

    # --- values ---

    def value_was_read(self, frames: Sequence[bytes]) -> None:
        """Note that a value was read and delivered, outside checks."""
        if is_kept(frames[3]):
            self._delivered[frames[0]] = (self._sequences.newest(frames[0]), frames)

    def check_value(self, frames: Sequence[bytes]) -> bool:
        """Whether to deliver a value that was read now.

        :param frames: of the value, as in an event
        """
        topic = frames[0]
        value, newest = _value(frames), self._sequences.newest(topic)
        known = self._known(topic, newest)
        different = value is not None and known is not None and value != known
        again = different and topic in self._different and self._different[topic] is newest
        if different:
            self._different[topic] = newest
        else:
            self._different.pop(topic, None)
        if again or (known is None and newest is None):
            self._different.pop(topic, None)
            self.value_was_read(frames)
        return again

    def _known(self, topic: bytes, newest: object) -> _Value | None:
        """The value that users know: the newest event, or a value that was delivered after it. None: neither, or it is
        too large to be kept."""
        delivered = self._delivered.get(topic)
        if delivered is not None and delivered[0] is newest:
            return _value(delivered[1])
        kept = self._sequences.newest_frames(topic)
        if kept is None:
            return None
        call, data = kept
        order = LITTLE if call[:2] != b"\0\0" else BIG  # it begins with a small number
        return _value([topic, order, call, data])


def _value(frames: Sequence[bytes]) -> _Value | None:
    """What is compared of an event: the read value and its quality, or that it is an error; None: nothing is."""
    try:
        event = decode(frames)
    except BadEvent:
        return None
    if not isinstance(event, Event):
        return None
    if event.errors:
        return ("error",)
    value = event.data
    if not isinstance(value, AttributeValue):
        return None
    read = value.read
    content = read.tobytes() if isinstance(read, np.ndarray) else repr(read)
    return value.kind, value.quality, value.r_dim, content


_COUNTER_END = 8  # size of a call info up to the end of the counter, in bytes
_LITTLE, _BIG = Struct("<4xI").unpack_from, Struct(">4xI").unpack_from  # decode the counter of a call info
_make_event: Callable[[tuple[Any, ...]], SubscriptionEvent] = partial(
    tuple.__new__, SubscriptionEvent
)  # takes half the time of the constructor


@dataclass(slots=True)
class DispatchCounts:
    """Totals of all subscriptions since the subscriber was made.

    :ivar events: delivered events, each counted once, whatever the number of its subscriptions
    :ivar duplicates: second copies of events, which were dropped
    :ivar gaps: gaps in the counters
    :ivar missed: events missing in these gaps
    :ivar restarts: restarts of counters
    :ivar unrouted: messages with a topic without a subscription
    :ivar malformed: messages that are no events
    """

    events: int = 0
    duplicates: int = 0
    gaps: int = 0
    missed: int = 0
    restarts: int = 0
    unrouted: int = 0
    malformed: int = 0


@dataclass(slots=True)
class _Route:
    counted: bool
    targets: tuple[Any, ...]


class EventDispatcher:
    """Routes from topics to subscriptions. One thread may change routes while another dispatches: a change is one
    assignment."""

    def __init__(self) -> None:
        self.counts = DispatchCounts()
        self.sequences = SequenceTracker()
        self.losses = LossDetector(self.sequences)
        self._routes: dict[bytes, _Route] = {}

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._routes

    def add(self, topic: bytes, event: EventType, target: object) -> bool:
        """Route a topic to a subscription; returns whether it is the first one of this topic."""
        route = self._routes.get(topic)
        if route is None:
            self._routes[topic] = _Route(is_counted_type(event), (target,))
            return True
        route.targets = (*route.targets, target)
        return False

    def remove(self, topic: bytes, target: object) -> bool:
        """Stop routing a topic to a subscription; returns whether it was the last one of this topic."""
        route = self._routes.get(topic)
        if route is None:
            return False
        route.targets = tuple(t for t in route.targets if t is not target)
        if route.targets:
            return False
        del self._routes[topic]
        self.sequences.forget(topic)
        self.losses.forget(topic)
        return True

    def mark_restarted(self, topics: Iterable[bytes]) -> None:
        """Note that the server restarted: the next counters of these topics do not continue the last ones."""
        for topic in topics:
            self.sequences.mark_restarted(topic)

    def dispatch(self, messages: Iterable[Sequence[bytes]], received: int) -> list[SubscriptionEvent]:
        """Return one subscription event for each message and subscription, in order; GAP and RESTART precede their
        event.

        :param messages: frames of each message
        :param received: time of arrival, nanoseconds since the epoch
        """
        dispatched: list[SubscriptionEvent] = []
        routes, track, counts, event = self._routes, self.sequences.track, self.counts, SubscriptionEventKind.EVENT
        events = 0
        for frames in messages:
            route = routes.get(frames[0])
            if route is None:
                counts.unrouted += 1
                continue
            if len(frames) != 4 or len(frames[2]) < _COUNTER_END:
                counts.malformed += 1
                continue
            topic, order, call, data = frames
            (ctr,) = _LITTLE(call) if order == LITTLE else _BIG(call)
            if route.counted:
                result = track(topic, ctr, call, data)
                if not result.deliver:
                    counts.duplicates += 1
                    continue
                if result.marker is not None:
                    kind = self._count(result.marker)
                    dispatched += [
                        SubscriptionEvent(target, kind, received, None, 0, result.marker) for target in route.targets
                    ]
            events += 1
            for target in route.targets:
                dispatched.append(_make_event((target, event, received, frames, ctr, None)))
        counts.events += events
        return dispatched

    def check_counters(self, sent: Mapping[bytes, int], received: int) -> list[SubscriptionEvent]:
        """Return GAP for events that were lost after the newest one, and CHECK for topics without an event so far.

        :param sent: topic -> counter of the newest event that its server has sent
        """
        events: list[SubscriptionEvent] = []
        for topic, counter in sent.items():
            route = self._routes.get(topic)
            found = self.losses.check_counter(topic, counter) if route and route.counted else None
            if route is None or found is None:
                continue
            if isinstance(found, SequenceGap):
                self._count(found)
            for target in route.targets:
                if isinstance(found, SequenceGap):
                    events.append(SubscriptionEvent(target, SubscriptionEventKind.GAP, received, None, 0, found))
                else:
                    events.append(SubscriptionEvent(target, SubscriptionEventKind.CHECK, received, None, found))
        return events

    def check_values(self, values: Iterable[Sequence[bytes]], received: int) -> list[SubscriptionEvent]:
        """Return CHECK for values that differ from what was received.

        :param values: frames of values that were read now, with the counter 0
        """
        return [
            SubscriptionEvent(target, SubscriptionEventKind.CHECK, received, frames)
            for frames in values
            if (route := self._routes.get(frames[0])) and self.losses.check_value(frames)
            for target in route.targets
        ]

    def _count(self, marker: object) -> SubscriptionEventKind:
        if isinstance(marker, SequenceGap):
            self.counts.gaps += 1
            self.counts.missed += marker.size
            return SubscriptionEventKind.GAP
        self.counts.restarts += 1
        return SubscriptionEventKind.RESTART
