"""Delivers the callbacks of one object: in order, one at a time, and none after it was destroyed."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from .queue import Queue

log = logging.getLogger("mama_spark")

Call = Callable[[], None]


class CallbackDelivery:
    """Makes calls on a queue, or where they come up when there is none.

    The thread on which they come up never waits for a call that another thread makes: that call may be waiting for it.

    :param post: does something on the thread on which calls come up, later
    :ivar errors: calls that raised; each is logged
    :ivar dropped: calls that were not made because the end came first
    """

    def __init__(self, queue: Queue | None, post: Callable[[Call], None]) -> None:
        self.queue = queue
        self._post = post
        self._missed = False  # a call came up while another one was made
        self.errors = self.dropped = 0
        self._due: deque[Call] = deque()
        self._making = threading.RLock()  # held while a call is made
        self._maker: int | None = None
        self._ended = False
        self._changed = threading.Condition()

    def add(self, call: Call) -> None:
        """One more call; on a queue, its place has been taken before."""
        with self._changed:
            if self._ended:
                self.dropped += 1
            else:
                self._due.append(call)
            late = self._ended
        if self.queue is None:
            self._next()
        elif late:
            self.queue.release()
        else:
            self.queue.put(self._dispatched)

    def now(self, call: Call, timeout: float = -1) -> None:
        """Make a call on this thread; what it raises is logged and counted.

        :param timeout: seconds to wait for a call that another thread makes, which may never return
        """
        mine = self._making.acquire(timeout=timeout)
        before = self._maker
        if mine:
            self._maker = threading.get_ident()
        try:
            call()
        except Exception:
            self.errors += 1
            log.exception("a callback raised")
        finally:
            if mine:
                self._maker = before
                self._release()

    @property
    def in_callback(self) -> bool:
        """Does this thread make one of the calls now?"""
        return self._maker == threading.get_ident()

    def end(self, deadline: float) -> None:
        """Make what is due, here or where the queue is dispatched, and nothing after that.

        Waits for a call that another thread makes, until the ``deadline`` (monotonic seconds). What is not made then,
        and what is due when this is called from within one of the calls themselves, is dropped.
        """
        if not self.in_callback:
            if self.queue is not None and self.queue.dispatched_elsewhere:
                with self._changed:
                    self._changed.wait_for(lambda: not self._due, max(0.0, deadline - time.monotonic()))
            else:
                while self._due and self._one(max(0.0, deadline - time.monotonic())):
                    pass
        with self._changed:
            self._ended = True
            self.dropped += len(self._due)
            if self._due:
                log.warning("%d callbacks of a destroyed publisher were not made in time", len(self._due))
            self._due.clear()
        if not self.in_callback and self._making.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._release()

    def _release(self) -> None:
        with self._changed:  # so that :meth:`_next` either gets it, or is seen to have missed it
            self._making.release()
            missed, self._missed = self._missed, False
            self._changed.notify_all()
        if missed:
            self._post(self._next)

    def _next(self) -> None:
        """Make what is due on the thread on which it came up, unless another one makes a call now."""
        while self._due:
            with self._changed:
                if not self._making.acquire(blocking=False):
                    self._missed = True
                    return
            self._make_one()

    def _dispatched(self) -> None:
        self._one()

    def _one(self, timeout: float = -1) -> bool:
        """Make the next call; False if another thread makes one for too long."""
        if not self._due:
            return True  # made by :meth:`end`, or dropped
        if not self._making.acquire(timeout=timeout):
            return False
        self._make_one()
        return True

    def _make_one(self) -> None:
        try:
            with self._changed:
                call = self._due.popleft() if self._due else None
            if call is not None:
                self.now(call)
        finally:
            self._release()
