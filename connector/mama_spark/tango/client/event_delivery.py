"""Puts received events into the queues of their subscriptions, and runs callbacks (TG-24, TG-25, TG-44).

An event that arrives while the first value of its subscription is being read is held back until that is delivered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from mama_spark.errors import BackgroundTaskFailed

from .event_queue import EventQueue
from .subscription import Callback, Subscription
from .subscription_events import SubscriptionEvent

logger = logging.getLogger(__name__)

_CALLBACK_BATCH = 256
#: Events of one subscription that are held back for its first value; when there are more, they are delivered before it.
_MAX_HELD = 10_000


class EventDelivery:
    """The queues of one subscriber.

    :param lock: of the subscriber; methods that need it say so
    :param limit: largest number of waiting events, in the shared queue and in that of callbacks each
    :param octets: memory of the events in these, and in each queue of a subscription, approximately; 0: no limit
    :ivar shared_queue: of the subscriptions that have neither a callback nor a queue of their own
    :ivar callback_errors: callbacks that raised
    """

    def __init__(self, lock: threading.Lock, limit: int, octets: int) -> None:
        self._lock, self._octets = lock, octets
        self.shared_queue, self._callbacks = EventQueue(limit, octets=octets), EventQueue(limit, octets=octets)
        self._held: dict[int, list[SubscriptionEvent]] = {}
        self._dropped_by_ended = 0  # events that queues of ended subscriptions had dropped
        self.callback_errors = 0

    def queue_for(self, callback: Callback | None, size: int | None) -> EventQueue:
        """The queue of a new subscription.

        :param size: of a queue of its own, 0: unbounded; None: it shares one
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
        """Hold back its events until :meth:`release`."""
        self._held[subscription.id] = []

    def release(self, subscription: Subscription, events: list[SubscriptionEvent]) -> None:
        """Deliver these events, and after them the ones that were held back."""
        if not subscription.cancelled:
            subscription.queue.put(events + self._held.get(subscription.id, []))
        self._held.pop(subscription.id, None)  # last: deliver() takes no lock when nothing is held

    def end(self, subscription: Subscription) -> None:
        """The subscription was cancelled."""
        self._dropped_by_ended += subscription.queue.dropped if self._has_own_queue(subscription) else 0
        self._held.pop(subscription.id, None)

    def dropped(self, subscriptions: Sequence[Subscription]) -> int:
        """Events that full queues dropped, of these subscriptions and of those that ended."""
        own = sum(s.queue.dropped for s in subscriptions if self._has_own_queue(s))
        return self.shared_queue.dropped + self._callbacks.dropped + self._dropped_by_ended + own

    # --- of any thread ---

    def close(self, subscriptions: Sequence[Subscription] = (), failure: BaseException | None = None) -> None:
        """Close all queues, and wake waiting takers.

        :param subscriptions: whose own queues are closed as well
        """
        own = (s.queue for s in subscriptions if self._has_own_queue(s))
        for queue in (self.shared_queue, self._callbacks, *own):
            queue.close(failure)

    def deliver(self, events: list[SubscriptionEvent]) -> None:
        """Queue received events, in order. Only for the receiving thread."""
        if self._held:
            with self._lock:
                self._put(self._without_held(events))
        else:
            self._put(events)

    def _without_held(self, events: list[SubscriptionEvent]) -> list[SubscriptionEvent]:
        """Hold back what must wait for a first value, and return the rest."""
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
        """Run callbacks until the queues are closed; the work of the callback thread."""
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
