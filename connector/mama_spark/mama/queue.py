"""Event queues: hold callbacks until a thread of the application dispatches them (``mamaQueue``).

A queue has a fixed number of *places*. A producer reserves a place (:meth:`Queue.reserve`) before it starts work that
ends with a callback: a full queue then fails the work at its start with QUEUE_FULL, and never the callback.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from .messages.status import Status, StatusError

logger = logging.getLogger("mama_spark")

MAX_EVENTS = 100_000  #: default bound of a queue

Call = Callable[[], None]


class Queue:
    """A bounded FIFO of calls, made by the one thread that dispatches.

    :param max_events: number of places: waiting calls plus reserved places
    :ivar callback_errors: number of calls that raised; each is logged
    """

    def __init__(self, name: str = "", max_events: int = MAX_EVENTS) -> None:
        if max_events < 1:
            raise StatusError(Status.INVALID_ARG, f"a queue has at least one place, got {max_events}")
        self.name, self.max_events = name, max_events
        self.callback_errors = 0
        self._waiting: deque[Call] = deque()
        self._reserved = 0  # places in use: waiting calls plus reserved places
        self._open_objects = 0
        self._dispatching: int | None = None
        self._depth = 0
        self._stop = self._destroyed = False
        self._changed = threading.Condition()
        self._dispatcher: QueueDispatcher | None = None

    def enqueue(self, call: Call) -> None:
        """Add a call.

        :raises StatusError: QUEUE_FULL, or QUEUE_END after :meth:`destroy`
        """
        self.reserve()
        self.put(call)

    def reserve(self) -> None:
        """Reserve a place for a later :meth:`put`.

        :raises StatusError: as :meth:`enqueue`
        """
        with self._changed:
            self._raise_ended()
            if self._reserved >= self.max_events:
                raise StatusError(Status.QUEUE_FULL, f"all {self.max_events} places of {self!r} are taken")
            self._reserved += 1

    def release(self) -> None:
        """Free a reserved place that will not be used."""
        with self._changed:
            self._reserved -= 1

    def put(self, call: Call) -> bool:
        """Add a call at a reserved place; False if the queue was destroyed meanwhile."""
        with self._changed:
            if self._destroyed:
                self._reserved -= 1
                return False
            self._waiting.append(call)
            self._changed.notify_all()
            return True

    def dispatch(self, timeout: float | None = None) -> None:
        """Make calls on this thread until :meth:`stop_dispatch` or :meth:`destroy`.

        :param timeout: seconds at most (a call in progress is completed); None: no limit
        :raises StatusError: TOO_MANY_DISPATCHERS if another thread dispatches, QUEUE_END after :meth:`destroy`
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._as_dispatcher():
            while (call := self._next_call(deadline)) is not None:
                self._call(call)

    def dispatch_event(self) -> bool:
        """Make one call if one is waiting; True if so.

        :raises StatusError: as :meth:`dispatch`
        """
        with self._as_dispatcher():
            call = self._next_call(0.0)
            if call is not None:
                self._call(call)
            return call is not None

    def stop_dispatch(self) -> None:
        """Make the dispatching thread, or the next thread to dispatch, return after its current call."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()

    @contextmanager
    def _as_dispatcher(self) -> Iterator[None]:
        """Make the current thread the dispatcher: one at a time; it may dispatch again within a call."""
        with self._changed:
            self._raise_ended()
            if self.dispatched_elsewhere:
                raise StatusError(Status.TOO_MANY_DISPATCHERS, f"another thread dispatches {self!r}")
            self._dispatching = threading.get_ident()
            self._depth += 1
        try:
            yield
        finally:
            with self._changed:
                self._depth -= 1
                if not self._depth:
                    self._dispatching = None
                self._changed.notify_all()

    def _next_call(self, deadline: float | None) -> Call | None:
        with self._changed:
            while not self._stop and not self._destroyed:
                if deadline and time.monotonic() >= deadline:
                    return None
                if self._waiting:
                    self._reserved -= 1
                    return self._waiting.popleft()
                if deadline == 0.0:
                    return None
                self._changed.wait(None if deadline is None else deadline - time.monotonic())
            self._stop = False
        return None

    def _call(self, call: Call) -> None:
        try:
            call()
        except Exception:
            self.callback_errors += 1
            logger.exception("a callback on %r raised", self)

    @property
    def dispatched_elsewhere(self) -> bool:
        """Whether a thread other than the current one dispatches now."""
        here = threading.current_thread()
        if self._dispatcher is not None and self._dispatcher._thread.is_alive():
            return self._dispatcher._thread is not here
        return self._dispatching not in (None, here.ident)

    def start(self) -> QueueDispatcher:
        """Dispatch on a thread of the queue's own until :meth:`QueueDispatcher.destroy` or :meth:`destroy`."""
        return QueueDispatcher(self)

    def get_event_count(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    def open(self) -> None:
        """Register one more object that uses the queue; :meth:`destroy` fails until it calls :meth:`close`."""
        with self._changed:
            self._raise_ended()
            self._open_objects += 1

    def close(self) -> None:
        """Unregister an object that called :meth:`open`."""
        with self._changed:
            self._open_objects -= 1
            self._changed.notify_all()

    def destroy(self) -> None:
        """End dispatching and drop the waiting calls. May be repeated.

        :raises StatusError: QUEUE_OPEN_OBJECTS while objects use the queue; destroy them first
        """
        with self._changed:
            if self._open_objects:
                raise StatusError(Status.QUEUE_OPEN_OBJECTS, f"{self._open_objects} objects still use {self!r}")
            self._destroyed = True
            self._reserved -= len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        if self._dispatcher is not None:
            self._dispatcher.destroy()

    def _raise_ended(self) -> None:
        if self._destroyed:
            raise StatusError(Status.QUEUE_END, f"{self!r} was destroyed")

    def __repr__(self) -> str:
        state = "destroyed" if self._destroyed else f"{len(self._waiting)} of {self.max_events}"
        return f"<Queue {self.name or 'unnamed'}, {state}>"


class QueueDispatcher:
    """Dispatches a queue on its own thread until :meth:`destroy` or :meth:`Queue.stop_dispatch`.

    :raises StatusError: TOO_MANY_DISPATCHERS if the queue is dispatched already
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        with queue._changed:
            queue._raise_ended()
            if queue._dispatcher is not None or queue._dispatching is not None:
                raise StatusError(Status.TOO_MANY_DISPATCHERS, f"another thread dispatches {queue!r}")
            queue._dispatcher = self
            self._thread = threading.Thread(target=self._run, name=f"mama-queue-{queue.name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(StatusError):  # the queue was destroyed before the thread started
            self.queue.dispatch()

    def destroy(self) -> None:
        """Stop and wait for the thread (except on that thread itself). May be repeated."""
        queue = self.queue
        with queue._changed:
            if queue._dispatcher is self:
                queue._dispatcher = None
                queue._stop = self._thread.is_alive()
                queue._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            with queue._changed:
                queue._stop = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.destroy()


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
        """Make the pending calls, here or on the thread that dispatches the queue, then accept no more. Waits for a
        call on another thread until ``deadline`` (monotonic seconds), then drops pending calls; drops all if called
        from within a call."""
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
