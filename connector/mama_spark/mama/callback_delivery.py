"""Delivers the callbacks of one object: in order, one at a time, and none after the object was destroyed."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from .queue import Call, Queue

logger = logging.getLogger("mama_spark")


class CallbackDelivery:
    """Makes calls on a queue, or without a queue on the thread that adds them (the source thread).

    The source thread never waits for a call in progress on another thread, because that call may wait for it.

    :param post: schedules a function on the source thread
    :ivar errors: number of calls that raised; each is logged
    :ivar dropped: number of calls not made because of :meth:`end`
    """

    def __init__(self, queue: Queue | None, post: Callable[[Call], None]) -> None:
        self.queue = queue
        self._post = post
        self._missed = False  # a call was added while another thread made one
        self.errors = self.dropped = 0
        self._due: deque[Call] = deque()
        self._call_lock = threading.RLock()  # held while a call is made
        self._calling_thread: int | None = None
        self._ended = False
        self._changed = threading.Condition()

    def add(self, call: Call) -> None:
        """Add a call; with a queue, its place must have been reserved."""
        with self._changed:
            if self._ended:
                self.dropped += 1
            else:
                self._due.append(call)
            late = self._ended
        if self.queue is None:
            self._make_due()
        elif late:
            self.queue.release()
        else:
            self.queue.put(self._dispatched)

    def make_now(self, call: Call, timeout: float = -1) -> None:
        """Make a call on this thread; exceptions are logged and counted.

        :param timeout: seconds to wait for a call in progress on another thread; then the call is made regardless
        """
        acquired = self._call_lock.acquire(timeout=timeout)
        before = self._calling_thread
        if acquired:
            self._calling_thread = threading.get_ident()
        try:
            call()
        except Exception:
            self.errors += 1
            logger.exception("a callback raised")
        finally:
            if acquired:
                self._calling_thread = before
                self._release()

    @property
    def in_callback(self) -> bool:
        """Whether the current thread is inside one of the calls."""
        return self._calling_thread == threading.get_ident()

    def end(self, deadline: float) -> None:
        """Make the pending calls, here or on the thread that dispatches the queue, then accept no more.

        Waits for a call in progress on another thread until ``deadline`` (monotonic seconds). Calls still pending then
        are dropped; so are all pending calls if this is called from within a call.
        """
        if not self.in_callback:
            if self.queue is not None and self.queue.dispatched_elsewhere:
                with self._changed:
                    self._changed.wait_for(lambda: not self._due, max(0.0, deadline - time.monotonic()))
            else:
                while self._due and self._make_next(max(0.0, deadline - time.monotonic())):
                    pass
        with self._changed:
            self._ended = True
            self.dropped += len(self._due)
            if self._due:
                logger.warning("%d callbacks of a destroyed publisher were not made in time", len(self._due))
            self._due.clear()
        if not self.in_callback and self._call_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._release()

    def _release(self) -> None:
        with self._changed:  # :meth:`_make_due` either acquires the lock or sets `_missed` before it is read here
            self._call_lock.release()
            missed, self._missed = self._missed, False
            self._changed.notify_all()
        if missed:
            self._post(self._make_due)

    def _make_due(self) -> None:
        """Make the pending calls on the source thread, unless another thread is inside a call."""
        while self._due:
            with self._changed:
                if not self._call_lock.acquire(blocking=False):
                    self._missed = True
                    return
            self._make_and_release()

    def _dispatched(self) -> None:
        self._make_next()

    def _make_next(self, timeout: float = -1) -> bool:
        """Make the next call; False if a call on another thread did not return within ``timeout`` seconds."""
        if not self._due:
            return True  # already made or dropped by :meth:`end`
        if not self._call_lock.acquire(timeout=timeout):
            return False
        self._make_and_release()
        return True

    def _make_and_release(self) -> None:
        try:
            with self._changed:
                call = self._due.popleft() if self._due else None
            if call is not None:
                self.make_now(call)
        finally:
            self._release()
