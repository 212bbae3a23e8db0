"""Bounded queue of received events that the application has not taken yet (TG-44, TG-45).

A full queue drops and counts its oldest events, so the receiving thread never waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from mama_spark.contracts.errors import BackgroundTaskFailed

from ..events.sequence_tracker import SequenceGap
from .subscription_events import QueueOverflow, SubscriptionEvent, SubscriptionEventKind

MAX_BYTES = 1 << 30  #: default of the memory of waiting events; an event with an image takes megabytes
_TAKE_SHARE = 8  #: :meth:`EventQueue.take` returns at most this fraction of ``max_bytes`` (1/8) in one call
_OVERHEAD = 700  #: memory of an event besides its data, in bytes


def _missing_with(event: SubscriptionEvent) -> QueueOverflow:
    """The events that are missing when this one is dropped: with a GAP, also those that it reports."""
    if isinstance(event.detail, SequenceGap):
        return QueueOverflow(event.detail.size, event.detail.first, event.detail.last)
    ctr = event.ctr if event.kind is SubscriptionEventKind.EVENT else -1
    return QueueOverflow(1, ctr, ctr)


def size_of(event: SubscriptionEvent) -> int:
    """Approximate memory of an event in bytes."""
    frames = event[3]
    return _OVERHEAD if frames is None else _OVERHEAD + len(frames[3])


class EventQueue:
    """Queue of subscription events. Methods may be called in any thread.

    :param limit: largest number of waiting events; 0: no limit
    :param max_bytes: approximate memory of waiting events; 0: no limit. The newest event is kept, whatever its size
    :ivar dropped: number of dropped events, which one OVERFLOW event for each subscription reports
    """

    def __init__(self, limit: int, *, max_bytes: int = 0) -> None:
        self.limit, self.max_bytes = limit, max_bytes
        self.dropped = 0
        self._queue: deque[SubscriptionEvent] = deque()
        self._queued_bytes = 0  #: 0 unless ``max_bytes`` is a limit
        self._overflows: dict[object, QueueOverflow] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, events: Sequence[SubscriptionEvent]) -> int:
        """Append events; returns the number of dropped events. Never waits for space."""
        with self._changed:
            if self._closed:
                return 0
            queue, before = self._queue, self.dropped
            queue.extend(events)
            if self.max_bytes:
                self._queued_bytes += sum(map(size_of, events))
            while (self.limit and len(queue) > self.limit) or (self._queued_bytes > self.max_bytes and len(queue) > 1):
                self._drop(self._pop())
            self._changed.notify_all()
            return self.dropped - before

    def _pop(self) -> SubscriptionEvent:
        event = self._queue.popleft()
        if self.max_bytes:
            self._queued_bytes -= size_of(event)
        return event

    def _drop(self, event: SubscriptionEvent) -> None:
        self.dropped += 1
        size, first, last = _missing_with(event)
        before = self._overflows.get(event.subscription)
        if before is not None:
            first = first if before.first < 0 else before.first
            last = before.last if last < 0 else last
            size += before.size
        self._overflows[event.subscription] = QueueOverflow(size, first, last)

    def take(self, limit: int, timeout: float | None = 0.0) -> list[SubscriptionEvent]:
        """Remove and return up to ``limit`` events, in order, after OVERFLOW events, which do not count. The events
        take at most an eighth of ``max_bytes``, unless one event is larger. The list is empty if nothing arrived in
        time or the queue is closed.

        :param timeout: seconds to wait for the first event; None: no limit
        :raises BackgroundTaskFailed: the queue is empty, and closed because a thread of the subscriber failed
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._queue and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            found = self._take_overflows()
            most = self.max_bytes // _TAKE_SHARE
            if len(self._queue) <= limit and self._queued_bytes <= most:
                found += self._queue
                self._queue.clear()
                self._queued_bytes = 0
            else:
                until = self._queued_bytes - most
                while self._queue and limit > 0:
                    found.append(self._pop())
                    limit -= 1
                    if self.max_bytes and self._queued_bytes <= until:
                        break
            if not found and self._failure is not None:
                raise BackgroundTaskFailed(f"the subscriber failed: {self._failure}") from self._failure
            return found

    def _take_overflows(self) -> list[SubscriptionEvent]:
        overflows, self._overflows = self._overflows, {}
        # Time of day: stamps events.
        now = time.time_ns() if overflows else 0
        return [
            SubscriptionEvent(subscription, SubscriptionEventKind.OVERFLOW, now, None, 0, overflow)
            for subscription, overflow in overflows.items()
        ]

    def forget(self, subscription: object) -> None:
        with self._changed:
            kept = [event for event in self._queue if event.subscription != subscription]
            self._queue = deque(kept)
            self._queued_bytes = sum(map(size_of, kept)) if self.max_bytes else 0
            self._overflows.pop(subscription, None)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, failure: BaseException | None = None) -> None:
        """Accept no more events, and wake threads that wait in :meth:`take`. It returns the rest, and raises after
        that if there is a ``failure``."""
        with self._changed:
            self._closed, self._failure = True, failure
            self._changed.notify_all()
