"""From frames to notices: who wants an event, and what its counter tells. Pure; this is what each event costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import Any, Protocol

from ..events.counters import SequenceGap, SequenceTracker
from ..events.frames import LITTLE
from ..types import EventType
from .subscription_events import SubscriptionEvent, SubscriptionEventKind

_HAS_COUNTER = 8  # octets of a call info up to the end of the counter
_LITTLE, _BIG = Struct("<4xI").unpack_from, Struct(">4xI").unpack_from  # the counter
_made: Callable[[tuple[Any, ...]], SubscriptionEvent] = partial(
    tuple.__new__, SubscriptionEvent
)  # of all fields: half the time


class EventTarget(Protocol):
    """A subscription, as far as events need it."""

    inbox: Any


@dataclass(slots=True)
class DispatchCounts:
    """What came over all subscriptions since the beginning.

    :ivar events: delivered, once for each topic
    :ivar copies: second copies, dropped
    :ivar gaps: of ``missed`` events together
    :ivar restarts: counters that began anew
    :ivar strays: events that nobody wants any more
    :ivar bad: messages that are no events
    """

    events: int = 0
    copies: int = 0
    gaps: int = 0
    missed: int = 0
    restarts: int = 0
    strays: int = 0
    bad: int = 0


@dataclass(slots=True)
class _Route:
    counted: bool
    targets: tuple[EventTarget, ...] = field(default=())


class EventDispatcher:
    """Topics and who listens to them. One thread changes it while another one delivers: a change is one assignment."""

    def __init__(self) -> None:
        self.counts = DispatchCounts()
        self.counters = SequenceTracker()
        self._routes: dict[bytes, _Route] = {}

    def __repr__(self) -> str:
        return f"<EventDispatcher of {len(self._routes)} topics>"

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._routes

    def add(self, topic: bytes, event: EventType, target: EventTarget) -> bool:
        """True: the first one of this topic."""
        route = self._routes.get(topic)
        if route is None:
            self._routes[topic] = _Route(event is not EventType.DATA_READY, (target,))
            return True
        route.targets = (*route.targets, target)
        return False

    def remove(self, topic: bytes, target: EventTarget) -> bool:
        """True: nobody listens to this topic any more."""
        route = self._routes.get(topic)
        if route is None:
            return False
        route.targets = tuple(t for t in route.targets if t is not target)
        if route.targets:
            return False
        del self._routes[topic]
        self.counters.forget(topic)
        return True

    def restarted(self, topics: Iterable[bytes]) -> None:
        """The server is another process now: the next counters do not go on from the last ones."""
        for topic in topics:
            self.counters.restarted(topic)

    def number(self, messages: Iterable[Sequence[bytes]], received: int) -> list[SubscriptionEvent]:
        """What came, in order, as notices; markers before their event."""
        notices: list[SubscriptionEvent] = []
        routes, see, counts, event = self._routes, self.counters.see, self.counts, SubscriptionEventKind.EVENT
        events = 0
        for frames in messages:
            route = routes.get(frames[0])
            if route is None:
                counts.strays += 1
                continue
            if len(frames) != 4 or len(frames[2]) < _HAS_COUNTER:
                counts.bad += 1
                continue
            topic, order, call, data = frames
            (ctr,) = _LITTLE(call) if order == LITTLE else _BIG(call)
            if route.counted:
                seen = see(topic, ctr, call, data)
                if not seen.deliver:
                    counts.copies += 1
                    continue
                if seen.marker is not None:
                    kind = self._count(seen.marker)
                    notices += [SubscriptionEvent(t, kind, received, None, 0, seen.marker) for t in route.targets]
            events += 1
            for target in route.targets:
                notices.append(_made((target, event, received, frames, ctr, None)))
        counts.events += events
        return notices

    def _count(self, marker: object) -> SubscriptionEventKind:
        if isinstance(marker, SequenceGap):
            self.counts.gaps += 1
            self.counts.missed += marker.size
            return SubscriptionEventKind.GAP
        self.counts.restarts += 1
        return SubscriptionEventKind.RESTART
