"""Subscription, the object that ``subscribe`` returns; EventSubMode, the modes of subscribing; and EventDelivery, which
puts received events into the queues of their subscriptions, and runs callbacks (TG-24, TG-25, TG-44).

An event that arrives while the first value of its subscription is being read is held back until that value is
delivered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from mama_spark.contracts.errors import BackgroundTaskFailed, MamaError

from ..giop.ior import DeviceName
from ..types import DevError, EventType
from .event_dispatcher import DispatchCounts
from .event_queue import EventQueue
from .subscription_events import SubscriptionEvent, SubscriptionEventKind
from .subscription_states import SubscriptionState

logger = logging.getLogger(__name__)

_CALLBACK_BATCH = 256
#: Most events of one subscription that are held back; when there are more, they are delivered before the first value.
_MAX_HELD = 10_000
Callback = Callable[[SubscriptionEvent], object]


class EventSubMode(IntEnum):
    """Mode of ``subscribe``: when it returns and whether it raises. EventSubMode of Tango 10.1, with the same numbers.

    ========== ======================== ============================= ====================================
    mode       returns                  when the negotiation fails    first event
    ========== ======================== ============================= ====================================
    SYNC       when negotiated          raises                        the next event
    SYNC_READ  when the value was read  raises                        the value, INITIAL
    ASYNC      at once                  delivers ERROR, retries       the next event
    ASYNC_READ at once                  delivers ERROR, retries       the value, INITIAL
    STATELESS  after the first attempt  delivers ERROR, retries       the value, INITIAL, or an ERROR
    ========== ======================== ============================= ====================================
    """

    SYNC = 1
    SYNC_READ = 2
    ASYNC = 3
    ASYNC_READ = 4
    STATELESS = 5

    @property
    def reads(self) -> bool:
        """Whether the value is read first and delivered as INITIAL."""
        return self not in (EventSubMode.SYNC, EventSubMode.ASYNC)

    @property
    def waits(self) -> bool:
        """Whether ``subscribe`` waits for the first attempt."""
        return self not in (EventSubMode.ASYNC, EventSubMode.ASYNC_READ)

    @property
    def raises(self) -> bool:
        """Whether ``subscribe`` raises when the first attempt fails."""
        return self in (EventSubMode.SYNC, EventSubMode.SYNC_READ)


@dataclass(frozen=True, slots=True)
class SubscriberCounts:
    """Totals of a subscriber: events dropped by full queues, callbacks that raised, channels reconnected."""

    dispatched: DispatchCounts
    dropped: int
    callback_errors: int
    reconnects: int


class SubscriptionOwner(Protocol):
    """The calls that a subscription needs: an :class:`~mama_spark.tango.client.event_consumer.EventConsumer`."""

    def state(self, subscription: Subscription) -> SubscriptionState: ...

    def topic(self, subscription: Subscription) -> str | None: ...

    def cancel(self, subscription: Subscription) -> None: ...


class Subscription:
    """One subscription; :meth:`~mama_spark.tango.client.subscriber.TangoSubscriber.subscribe` returns it.

    :ivar idl: IDL version of the device
    :ivar queue: queue of its events; subscriptions without a callback share one
    :ivar raises_errors: ``subscribe`` raises errors; until the first negotiation succeeds they are not delivered
    :ivar ready: set when ``subscribe`` may return: the first negotiation has ended, and the value was read
    :ivar failure: why the last negotiation or confirmation failed; None: the server accepted it
    """

    __slots__ = (
        "_owner", "attribute", "callback", "cancelled", "device", "event", "failure", "id", "idl", "queue",
        "raises_errors", "ready",
    )  # fmt: skip

    def __init__(
        self,
        owner: SubscriptionOwner,
        device: DeviceName,
        attribute: str,
        event: EventType,
        queue: EventQueue,
        callback: Callback | None,
    ) -> None:
        self._owner = owner
        self.id = 0
        self.device, self.attribute, self.event = device, attribute, event
        self.idl = 5
        self.queue, self.callback = queue, callback
        self.cancelled = False
        self.raises_errors = False
        self.ready = threading.Event()
        self.failure: MamaError | None = None

    def __repr__(self) -> str:
        return f"<Subscription {self} {self.state.value}>"

    def __str__(self) -> str:
        name, hash_, suffix = str(self.device).partition("#")
        return f"{name}{'/' if self.attribute else ''}{self.attribute}{hash_}{suffix}.{self.event.wire_name}"

    @property
    def state(self) -> SubscriptionState:
        return self._owner.state(self)

    @property
    def topic(self) -> str | None:
        """Topic of its events; None before the first negotiation."""
        return self._owner.topic(self)

    def report(self, kind: SubscriptionEventKind, errors: tuple[DevError, ...] | None) -> None:
        """Deliver an event without frames."""
        # Time of day: stamps events.
        self.queue.put([SubscriptionEvent(self, kind, time.time_ns(), None, 0, errors)])

    def unsubscribe(self) -> None:
        """Cancel the subscription and discard its waiting events. May be called twice and in a callback."""
        self._owner.cancel(self)


class EventDelivery:
    """The queues of one subscriber.

    :param lock: lock of the subscriber; some methods need it held
    :param limit: largest number of waiting events, of the shared queue and of the queue for callbacks each
    :param max_bytes: approximate memory of the events in each queue; 0: no limit
    :ivar shared_queue: queue of the subscriptions without a callback
    :ivar callback_queue: queue of the others
    """

    def __init__(self, lock: threading.Lock, limit: int, max_bytes: int) -> None:
        self._lock = lock
        self.shared_queue = EventQueue(limit, max_bytes=max_bytes)
        self.callback_queue = EventQueue(limit, max_bytes=max_bytes)
        self._held: dict[int, list[SubscriptionEvent]] = {}
        self.callback_errors = 0

    # --- with the lock held ---

    def hold(self, subscription: Subscription) -> None:
        """Hold back the events of a subscription until :meth:`release`."""
        self._held[subscription.id] = []

    def release(self, subscription: Subscription, events: list[SubscriptionEvent]) -> None:
        """Deliver these events, then the events that were held back."""
        if not subscription.cancelled:
            subscription.queue.put(events + self._held.get(subscription.id, []))
        self._held.pop(subscription.id, None)  # last: deliver() takes no lock when nothing is held

    def end(self, subscription: Subscription) -> None:
        self._held.pop(subscription.id, None)

    # --- in any thread ---

    @property
    def dropped(self) -> int:
        return self.shared_queue.dropped + self.callback_queue.dropped

    def close(self, failure: BaseException | None = None) -> None:
        """Close both queues, and wake threads that wait in ``take``; ``failure`` is why, None: no error."""
        for queue in (self.shared_queue, self.callback_queue):
            queue.close(failure)

    def deliver(self, events: list[SubscriptionEvent]) -> None:
        """Put received events into their queues, in order. Called in the receiving thread only."""
        if self._held:
            with self._lock:
                self._put(self._without_held(events))
        else:
            self._put(events)

    def _without_held(self, events: list[SubscriptionEvent]) -> list[SubscriptionEvent]:
        """Hold back the events of subscriptions that wait for a first value; returns the other events."""
        free = []
        for event in events:
            held = self._held.get(event.subscription.id)
            if held is None:
                free.append(event)
                continue
            held.append(event)
            if len(held) >= _MAX_HELD:
                self.release(event.subscription, [])
        return free

    def _put(self, events: list[SubscriptionEvent]) -> None:
        if events and all(event[0].queue is self.shared_queue for event in events):
            self.shared_queue.put(events)
            return
        for queue in (self.shared_queue, self.callback_queue):
            queue.put([event for event in events if event.subscription.queue is queue])

    def run_callbacks(self) -> None:
        """Run callbacks until the queues are closed. Called in the callback thread."""
        while True:
            try:
                events = self.callback_queue.take(_CALLBACK_BATCH, None)
            except BackgroundTaskFailed:
                return
            if not events:
                return
            for event in events:
                subscription: Subscription = event.subscription
                if subscription.cancelled or subscription.callback is None:
                    continue
                try:
                    subscription.callback(event)
                except Exception:
                    self.callback_errors += 1
                    logger.exception("the callback of %s raised", subscription)
