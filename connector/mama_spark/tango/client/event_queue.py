"""Bounded queue of received events that the application has not taken yet (TG-44, TG-45).

When it is full, the oldest events are dropped and counted; the receiving thread never waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from mama_spark.errors import BackgroundTaskFailed

from .subscription_events import QueueOverflow, SubscriptionEvent, SubscriptionEventKind

OCTETS = 1 << 30  #: default bound of the memory of waiting events: an event of an image has megabytes
_TAKE_SHARE = 8  #: one call of :meth:`EventQueue.take` returns at most this part of the octets that may wait
_OVERHEAD = 700  #: octets of memory that an event takes besides its frames


def size_of(event: SubscriptionEvent) -> int:
    """Octets of memory that an event takes, approximately."""
    frames = event[3]
    return _OVERHEAD if frames is None else _OVERHEAD + len(frames[3])


class EventQueue:
    """A queue of subscription events, for any thread.

    :param limit: largest number of waiting events; 0: no limit
    :param octets: largest size of their frames together; 0: no limit. The newest event is kept, whatever its size
    :param report_overflow: report dropped events by one event of kind OVERFLOW for each subscription, in the place of
        the first that is missing; False: only count them, for users who want the newest events only
    """

    def __init__(self, limit: int, *, octets: int = 0, report_overflow: bool = True) -> None:
        self.limit, self.octets = limit, octets
        self.dropped = 0
        self._report_overflow = report_overflow
        self._queue: deque[SubscriptionEvent] = deque()
        self._queued_octets = 0  #: only counted where they are bounded
        self._overflows: dict[object, QueueOverflow] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<EventQueue {len(self._queue)} of {self.limit or 'any number'}, {self.dropped} dropped>"

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, events: Sequence[SubscriptionEvent]) -> int:
        """Append events; returns how many were dropped. Never waits for space."""
        with self._changed:
            if self._closed:
                return 0
            queue, before = self._queue, self.dropped
            queue.extend(events)
            if self.octets:
                self._queued_octets += sum(map(size_of, events))
            while (self.limit and len(queue) > self.limit) or (self._queued_octets > self.octets and len(queue) > 1):
                self._drop(self._pop())
            self._changed.notify_all()
            return self.dropped - before

    def _pop(self) -> SubscriptionEvent:
        event = self._queue.popleft()
        if self.octets:
            self._queued_octets -= size_of(event)
        return event

    def _drop(self, event: SubscriptionEvent) -> None:
        self.dropped += 1
        if not self._report_overflow:
            return
        ctr = event.ctr if event.kind is SubscriptionEventKind.EVENT else -1
        before = self._overflows.get(event.subscription)
        if before is None:
            self._overflows[event.subscription] = QueueOverflow(1, ctr, ctr)
        else:
            first = ctr if before.first < 0 else before.first
            last = before.last if ctr < 0 else ctr
            self._overflows[event.subscription] = QueueOverflow(before.size + 1, first, last)

    def take(self, limit: int, timeout: float | None = 0.0) -> list[SubscriptionEvent]:
        """Remove and return up to ``limit`` events, in order, and OVERFLOW events in addition. Where octets are
        bounded, also no more than an eighth of that bound, unless one event alone is larger. Empty: nothing arrived in
        time, or the queue is closed.

        :param timeout: seconds to wait for the first one; None: without end
        :raises BackgroundTaskFailed: the queue is empty, and closed because the receiver failed
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._queue and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            found = self._take_overflows()
            most = self.octets // _TAKE_SHARE
            if len(self._queue) <= limit and self._queued_octets <= most:
                found += self._queue
                self._queue.clear()
                self._queued_octets = 0
            else:
                until = self._queued_octets - most
                while self._queue and limit > 0:
                    found.append(self._pop())
                    limit -= 1
                    if self.octets and self._queued_octets <= until:
                        break
            if not found and self._failure is not None:
                raise BackgroundTaskFailed(f"the subscriber ended: {self._failure}") from self._failure
            return found

    def _take_overflows(self) -> list[SubscriptionEvent]:
        overflows, self._overflows = self._overflows, {}
        now = time.time_ns() if overflows else 0
        return [
            SubscriptionEvent(subscription, SubscriptionEventKind.OVERFLOW, now, None, 0, overflow)
            for subscription, overflow in overflows.items()
        ]

    def forget(self, subscription: object) -> None:
        """Discard the events of a subscription that was cancelled."""
        with self._changed:
            kept = [event for event in self._queue if event.subscription != subscription]
            self._queue = deque(kept)
            self._queued_octets = sum(map(size_of, kept)) if self.octets else 0
            self._overflows.pop(subscription, None)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, failure: BaseException | None = None) -> None:
        """Accept no more events, and wake waiting takers. What is in the queue can still be taken.

        :param failure: why the receiver ended; None: in order
        """
        with self._changed:
            self._closed, self._failure = True, failure
            self._changed.notify_all()
