"""Where notices wait to be taken: bounded, and what does not fit is counted (TG-44, TG-45)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from mama_spark.errors import BackgroundTaskFailed

from .subscription_events import QueueOverflow, SubscriptionEvent, SubscriptionEventKind

OCTETS = 1 << 30  #: that may wait where nobody says how many: an event of an image has megabytes
_SHARE = 8  #: of the octets that may wait, so much is taken at once
_OVERHEAD = 700  #: octets of memory that a notice takes besides its frames


def size_of(notice: SubscriptionEvent) -> int:
    """Octets of memory, about."""
    frames = notice[3]
    return _OVERHEAD if frames is None else _OVERHEAD + len(frames[3])


class EventQueue:
    """A queue of notices. When it is full the oldest are dropped.

    :param limit: notices; 0: no limit
    :param octets: of the frames that wait; 0: no limit. The last notice is kept, whatever its size
    :param tell: what was dropped is told by a notice of kind OVERFLOW, one for each subscription, in the place of the
        first that is missing. False: it is only counted, for who wants the last ones
    """

    def __init__(self, limit: int, *, octets: int = 0, tell: bool = True) -> None:
        self.limit, self.octets = limit, octets
        self._waiting = 0  #: octets, where they are bounded
        self.dropped = 0
        self._tell = tell
        self._queue: deque[SubscriptionEvent] = deque()
        self._lost: dict[object, QueueOverflow] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._death: BaseException | None = None

    def __repr__(self) -> str:
        return f"<EventQueue {len(self._queue)} of {self.limit or 'any number'}, {self.dropped} dropped>"

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, notices: Sequence[SubscriptionEvent]) -> int:
        """How many were dropped for them. Never waits for who takes."""
        with self._changed:
            if self._closed:
                return 0
            queue, before = self._queue, self.dropped
            queue.extend(notices)
            if self.octets:
                self._waiting += sum(map(size_of, notices))
            while (self.limit and len(queue) > self.limit) or (self._waiting > self.octets and len(queue) > 1):
                self._drop(self._pop())
            self._changed.notify_all()
            return self.dropped - before

    def _pop(self) -> SubscriptionEvent:
        notice = self._queue.popleft()
        if self.octets:
            self._waiting -= size_of(notice)
        return notice

    def _drop(self, notice: SubscriptionEvent) -> None:
        self.dropped += 1
        if not self._tell:
            return
        ctr = notice.ctr if notice.kind is SubscriptionEventKind.EVENT else -1
        before = self._lost.get(notice.subscription)
        if before is None:
            self._lost[notice.subscription] = QueueOverflow(1, ctr, ctr)
        else:
            first = ctr if before.first < 0 else before.first
            self._lost[notice.subscription] = QueueOverflow(before.size + 1, first, before.last if ctr < 0 else ctr)

    def take(self, limit: int, timeout: float | None = 0.0) -> list[SubscriptionEvent]:
        """Up to ``limit``, in order; overflows besides. Empty: nothing came in time, or it was closed. Where octets are
        bounded, also no more than an eighth of that bound, unless one notice alone is larger.

        :param timeout: seconds to wait for the first; None: as long as it takes
        :raises BackgroundTaskFailed: nothing more will come, since the receiver ended with an error; what had come is
            taken first
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._queue and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            found = self._overflows()
            most = self.octets // _SHARE
            if len(self._queue) <= limit and self._waiting <= most:
                found += self._queue
                self._queue.clear()
                self._waiting = 0
            else:
                least = self._waiting - most
                while self._queue and limit > 0:
                    found.append(self._pop())
                    limit -= 1
                    if self.octets and self._waiting <= least:
                        break
            if not found and self._death is not None:
                raise BackgroundTaskFailed(f"the subscriber ended: {self._death}") from self._death
            return found

    def _overflows(self) -> list[SubscriptionEvent]:
        lost, self._lost = self._lost, {}
        now = time.time_ns() if lost else 0
        return [
            SubscriptionEvent(subscription, SubscriptionEventKind.OVERFLOW, now, None, 0, told)
            for subscription, told in lost.items()
        ]

    def forget(self, subscription: object) -> None:
        """Drop what waits for a subscription that was cancelled."""
        with self._changed:
            kept = [notice for notice in self._queue if notice.subscription != subscription]
            self._queue = deque(kept)
            self._waiting = sum(map(size_of, kept)) if self.octets else 0
            self._lost.pop(subscription, None)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, death: BaseException | None = None) -> None:
        """Nothing comes any more; who waits is woken. What is there can still be taken."""
        with self._changed:
            self._closed, self._death = True, death
            self._changed.notify_all()
