"""Dispatcher of received events: finds the subscriptions of a topic, and tracks the counter of its events. Pure.

An event costs one look-up and one comparison; it is not decoded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any

from ..events.event_codec import LITTLE
from ..events.sequence_tracker import SequenceGap, SequenceTracker, is_counted_type
from ..types import EventType
from .loss_detector import LossDetector
from .subscription_events import SubscriptionEvent, SubscriptionEventKind

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
    :ivar missed: events missing in the gaps of counters
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
        event. ``received``: time of arrival, nanoseconds since the epoch."""
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
        """Return GAP for events that were lost after the newest one that its server has ``sent`` (topic -> counter),
        and CHECK for topics without an event so far."""
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
        """Return CHECK for values read now (frames with the counter 0) that differ from what was received."""
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
