"""Delivery of received events: puts them into the queues of their subscriptions, and runs callbacks (TG-24, TG-25,
TG-44).

An event that arrives while the first value of its subscription is being read is held back until that value is
delivered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from mama_spark.contracts.errors import BackgroundTaskFailed

from .event_queue import EventQueue
from .subscription import Callback, Subscription
from .subscription_events import SubscriptionEvent

logger = logging.getLogger(__name__)

_CALLBACK_BATCH = 256
#: Most events of one subscription that are held back; when there are more, they are delivered before the first value.
_MAX_HELD = 10_000


class EventDelivery:
    """The queues of one subscriber.

    :param lock: lock of the subscriber; some methods need it held
    :param limit: largest number of waiting events, of the shared queue and of the queue for callbacks each
    :param octets: approximate memory of the events in each queue; 0: no limit
    :ivar shared_queue: queue of the subscriptions that have neither a callback nor a queue of their own
    :ivar callback_errors: number of callbacks that raised
    """

    def __init__(self, lock: threading.Lock, limit: int, octets: int) -> None:
        self._lock, self._octets = lock, octets
        self.shared_queue, self._callbacks = EventQueue(limit, octets=octets), EventQueue(limit, octets=octets)
        self._held: dict[int, list[SubscriptionEvent]] = {}
        self._dropped_by_ended = 0  # events that the queues of cancelled subscriptions dropped
        self.callback_errors = 0

    def queue_for(self, callback: Callback | None, size: int | None) -> EventQueue:
        """Return the queue of a new subscription.

        :param size: largest number of events in a queue of its own, 0: no limit; None: it shares a queue
        """
        if callback is not None:
            return self._callbacks
        if size is None:
            return self.shared_queue
        return EventQueue(size, octets=self._octets, report_overflow=False)

    def _has_own_queue(self, subscription: Subscription) -> bool:
        return subscription.queue not in (self.shared_queue, self._callbacks)

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
        """Forget a subscription that was cancelled."""
        self._dropped_by_ended += subscription.queue.dropped if self._has_own_queue(subscription) else 0
        self._held.pop(subscription.id, None)

    def dropped(self, subscriptions: Sequence[Subscription]) -> int:
        """Number of events that full queues dropped: of these subscriptions, and of cancelled ones."""
        own = sum(s.queue.dropped for s in subscriptions if self._has_own_queue(s))
        return self.shared_queue.dropped + self._callbacks.dropped + self._dropped_by_ended + own

    # --- in any thread ---

    def close(self, subscriptions: Sequence[Subscription] = (), failure: BaseException | None = None) -> None:
        """Close all queues, and wake threads that wait in ``take``.

        :param subscriptions: subscriptions whose own queues are closed too
        :param failure: error that closes the subscriber; None: there is none
        """
        own = (s.queue for s in subscriptions if self._has_own_queue(s))
        for queue in (self.shared_queue, self._callbacks, *own):
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
        by_queue: dict[int, list[SubscriptionEvent]] = {}
        for event in events:
            by_queue.setdefault(id(event.subscription.queue), []).append(event)
        for found in by_queue.values():
            found[0].subscription.queue.put(found)

    def run_callbacks(self) -> None:
        """Run callbacks until the queues are closed. Called in the callback thread."""
        while True:
            try:
                events = self._callbacks.take(_CALLBACK_BATCH, None)
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
