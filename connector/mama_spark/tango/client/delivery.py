"""Who gets what came: queues, callbacks, and events that wait for the value that goes first (TG-24, TG-25, TG-44)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from mama_spark.errors import BackgroundTaskFailed

from .event_queue import EventQueue
from .subscription import Callback, Subscription
from .subscription_events import SubscriptionEvent

LOG = logging.getLogger(__name__)

_CALLBACKS_AT_ONCE = 256
_HELD = 10_000  # events of one subscription that wait for its first value at most; then they go first


class EventDelivery:
    """Of one subscriber.

    :param lock: of the subscriber; what says so is called with it held
    :param limit: notices that wait to be taken at most, and for callbacks likewise
    :param octets: memory that these, and each queue of a subscription, may take, about; 0: no limit
    :ivar inbox: of the subscriptions without a callback and a queue of their own
    :ivar callback_errors: callbacks that raised
    """

    def __init__(self, lock: threading.Lock, limit: int, octets: int) -> None:
        self._lock, self._octets = lock, octets
        self.inbox, self._callbacks = EventQueue(limit, octets=octets), EventQueue(limit, octets=octets)
        self._held: dict[int, list[SubscriptionEvent]] = {}
        self._ended = 0  # notices that queues had dropped whose subscriptions ended
        self.callback_errors = 0

    def inbox_for(self, callback: Callback | None, queue: int | None) -> EventQueue:
        """Where the notices of a new subscription wait."""
        if callback is not None:
            return self._callbacks
        return self.inbox if queue is None else EventQueue(queue, octets=self._octets, tell=False)

    def _is_private(self, subscription: Subscription) -> bool:
        return subscription.inbox not in (self.inbox, self._callbacks)

    # --- with the lock held ---

    def hold(self, subscription: Subscription) -> None:
        """Its events wait for :meth:`release`."""
        self._held[subscription.id] = []

    def release(self, subscription: Subscription, notices: list[SubscriptionEvent]) -> None:
        """These, and behind them the events that were held for them."""
        if not subscription.cancelled:
            subscription.inbox.put(notices + self._held.get(subscription.id, []))
        self._held.pop(subscription.id, None)  # last: who sees nothing held puts without the lock

    def end(self, subscription: Subscription) -> None:
        """It was cancelled."""
        self._ended += subscription.inbox.dropped if self._is_private(subscription) else 0
        self._held.pop(subscription.id, None)

    def dropped(self, known: Sequence[Subscription]) -> int:
        """Notices that nobody took in time, of these subscriptions and those that ended."""
        private = sum(s.inbox.dropped for s in known if self._is_private(s))
        return self.inbox.dropped + self._callbacks.dropped + self._ended + private

    # --- of any thread ---

    def close(self, known: Sequence[Subscription] = (), death: BaseException | None = None) -> None:
        """Nothing comes any more; who waits is woken.

        :param known: whose own queues are closed as well
        """
        for inbox in (self.inbox, self._callbacks, *(s.inbox for s in known if self._is_private(s))):
            inbox.close(death)

    def deliver(self, notices: list[SubscriptionEvent]) -> None:
        """What came, in order; of the one thread that receives."""
        if self._held:
            with self._lock:
                notices = self._free(notices)
                self._put(notices)
        else:
            self._put(notices)

    def _free(self, notices: list[SubscriptionEvent]) -> list[SubscriptionEvent]:
        """Those that need not wait."""
        free = []
        for notice in notices:
            held = self._held.get(notice.subscription.id)
            if held is None:
                free.append(notice)
                continue
            held.append(notice)
            if len(held) >= _HELD:
                self.release(notice.subscription, [])
        return free

    def _put(self, notices: list[SubscriptionEvent]) -> None:
        if notices and all(notice[0].inbox is self.inbox for notice in notices):
            self.inbox.put(notices)
            return
        inboxes: dict[int, list[SubscriptionEvent]] = {}
        for notice in notices:
            inboxes.setdefault(id(notice.subscription.inbox), []).append(notice)
        for found in inboxes.values():
            found[0].subscription.inbox.put(found)

    def call_back(self) -> None:
        """Run callbacks until it is closed."""
        while True:
            try:
                notices = self._callbacks.take(_CALLBACKS_AT_ONCE, None)
            except BackgroundTaskFailed:
                return
            if not notices:
                return
            for notice in notices:
                subscription: Subscription = notice.subscription
                if subscription.cancelled or subscription.callback is None:
                    continue
                try:
                    subscription.callback(notice)
                except Exception:
                    self.callback_errors += 1
                    LOG.exception("the callback of %s raised", subscription)
