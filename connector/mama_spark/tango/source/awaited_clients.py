"""Clients that were subscribed before a source restarted: which ones have come back, and what was not delivered to the
others. Pure.

Neither of two numbers alone tells whether a client is back. It negotiates before its subscription reaches the socket,
and the connections of a socket do not say whose they are. So a subscription is complete when as many clients as before
have negotiated it *again*, and as many connections as before have subscribed to its topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..types import EventType

Place = tuple[str, str, EventType]  #: device, name of the attribute in topics, event type


@dataclass(frozen=True, slots=True)
class AwaitedSubscription:
    """A subscription to one attribute and event type: ``connections`` that had subscribed to its topic, and identities
    of the ``clients`` that had negotiated it; more than connections if some have left, empty: unknown."""

    connections: int
    clients: frozenset[str] = frozenset()

    def missing(self, connections: int, clients: frozenset[str]) -> int:
        """Number of clients that have not come back, by the connections that have subscribed to the topic now and the
        identities of the clients that have negotiated the subscription now."""
        again = len(self.clients & clients) if self.clients else self.connections
        needed = min(self.connections, len(self.clients)) if self.clients else self.connections
        return max(self.connections - connections, needed - again, 0)


@dataclass(slots=True)
class Undelivered:
    """Events that were not delivered, one for each event and missing client; sequences of the first and last record
    whose events these are; and number of clients that missed the last one."""

    first: int
    last: int
    events: int = 0
    missing: int = 0


@dataclass
class AwaitedClients:
    """Subscriptions that a source waits for: ``wanted`` of clients that have not all come back, and the number of
    events that were not delivered, one for each event and missing client."""

    wanted: dict[Place, AwaitedSubscription] = field(default_factory=dict)
    not_delivered: int = 0
    _undelivered: dict[Place, Undelivered] = field(default_factory=dict)

    def missing(self, connections: Mapping[Place, int], clients: Mapping[Place, frozenset[str]]) -> dict[Place, int]:
        """Subscription -> number of clients that have not come back, where that is not 0."""
        found = {
            place: awaited.missing(connections.get(place, 0), clients.get(place, frozenset()))
            for place, awaited in self.wanted.items()
        }
        return {place: missing for place, missing in found.items() if missing}

    def pushed(self, events: Mapping[Place, int], first: int, last: int, missing: Mapping[Place, int]) -> None:
        """Note how many ``events`` of each subscription the records ``first`` to ``last`` gave while clients were
        missing."""
        for place, absent in missing.items():
            if events.get(place):
                found = self._undelivered.setdefault(place, Undelivered(first, last))
                found.last, found.missing = last, absent
                found.events += absent * events[place]
                self.not_delivered += absent * events[place]

    def lines(self, missing: Mapping[Place, int]) -> list[str]:
        """Take what was not delivered, one text for each subscription, and forget subscriptions whose clients are all
        back. ``missing`` is the number of clients that have not come back."""
        found = [
            f"not_delivered: records {one.first} to {one.last} to {one.missing} of {self.wanted[place].connections} "
            f"clients of {place[2].wire_name} events of {place[0]}/{place[1]}"
            for place, one in self._undelivered.items()
        ]
        self._undelivered.clear()
        self.wanted = {place: awaited for place, awaited in self.wanted.items() if place in missing}
        return found
