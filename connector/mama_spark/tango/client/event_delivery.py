"""Delivery of received events: puts them into the queues of their subscriptions, and runs callbacks (TG-24, TG-25,
TG-44).

An event that arrives while the first value of its subscription is being read is held back until that value is
delivered.
"""

from __future__ import annotations

import logging
import threading

from mama_spark.contracts.errors import BackgroundTaskFailed

from .event_queue import EventQueue
from .subscription import Subscription
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
    :ivar shared_queue: queue of the subscriptions without a callback
    :ivar callback_queue: queue of the others
    :ivar callback_errors: number of callbacks that raised
    """

    def __init__(self, lock: threading.Lock, limit: int, octets: int) -> None:
        self._lock = lock
        self.shared_queue, self.callback_queue = EventQueue(limit, octets=octets), EventQueue(limit, octets=octets)
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
        """Forget a subscription that was cancelled."""
        self._held.pop(subscription.id, None)

    # --- in any thread ---

    @property
    def dropped(self) -> int:
        """Number of events that full queues dropped."""
        return self.shared_queue.dropped + self.callback_queue.dropped

    def close(self, failure: BaseException | None = None) -> None:
        """Close both queues, and wake threads that wait in ``take``.

        :param failure: error that closes the subscriber; None: there is none
        """
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
