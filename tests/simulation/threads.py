"""The classes of ``threading``, ``queue`` and ``concurrent.futures`` over processes of a simulation."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from .kernel import Process, Signal, active, monotonic


class SimLock:
    """A lock. Another process may go on where one takes it."""

    again = False  #: its owner may take it again

    def __init__(self) -> None:
        self._scheduler = active()
        self._owner: object = None
        self._count = 0
        self._free: Signal | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        me: object = scheduler.current or scheduler
        if self.again and self._owner is me:
            self._count += 1
            return True
        if me is not scheduler and scheduler.preemption and scheduler.chance() < scheduler.preemption:
            scheduler.block(0.0)
        if self._owner is not None:
            if not blocking:
                return False
            until = None if timeout < 0 else monotonic() + timeout
            if self._free is None:
                self._free = Signal(scheduler)
            while self._owner is not None:
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    return False
                self._free.wait(left, "a lock")
        self._owner, self._count = me, 1
        return True

    def release(self, *_: object) -> None:
        self._count -= 1
        if self._count > 0:
            return
        if self._owner is None and not self._scheduler.closing:
            raise RuntimeError("release unlocked lock")
        self._owner, self._count = None, 0
        if self._free is not None:
            self._free.fire(1)

    def locked(self) -> bool:
        return self._owner is not None

    __enter__, __exit__ = acquire, release


class SimRLock(SimLock):
    """A lock that its owner may take again."""

    again = True

    def let_go(self) -> int:
        """Release it, however often it was taken; how often."""
        count, self._count = self._count, 1
        self.release()
        return count

    def take_back(self, count: int) -> None:
        self.acquire()
        self._count = count

    @property
    def is_mine(self) -> bool:
        return self._owner is (self._scheduler.current or self._scheduler)


class SimCondition:
    """A condition over a lock that its owner may take again."""

    def __init__(self, lock: SimLock | None = None) -> None:
        self._lock = lock or SimRLock()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._notified = Signal(active())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def wait(self, timeout: float | None = None) -> bool:
        lock, count = self._lock, 0
        if isinstance(lock, SimRLock):
            count = lock.let_go()
        else:
            lock.release()
        try:
            return self._notified.wait(None if timeout is None else max(0.0, timeout), "a condition")
        finally:
            if isinstance(lock, SimRLock):
                lock.take_back(count)
            else:
                lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        result = predicate()
        until = None if timeout is None or result else monotonic() + timeout
        while not result:
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        if isinstance(self._lock, SimRLock) and not self._lock.is_mine and not active().closing:
            raise RuntimeError("cannot notify on un-acquired lock")
        self._notified.fire(n)

    def notify_all(self) -> None:
        self.notify(1_000_000)


class SimEvent:
    """An event."""

    def __init__(self) -> None:
        self._set, self._happened = False, Signal(active())

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._happened.fire()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._happened.wait(None if timeout is None else max(0.0, timeout), "an event")
        return self._set


class SimThread:
    """A thread: a process on the host of whoever starts it. A run ends without it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self.name, self.daemon = name or "thread", bool(daemon)
        self.process: Process | None = None

    @property
    def ident(self) -> int | None:
        return None if self.process is None else id_of(self.process)

    native_id = ident

    def start(self) -> None:
        assert self.process is None, "threads can only be started once"
        self.process = active().spawn(self.name, self.run, background=True)
        self.process.slot = self

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        assert self.process is not None, "cannot join a thread before it is started"
        if not self.process.done:
            self.process.ended.wait(timeout, f"the end of {self.name}")

    def is_alive(self) -> bool:
        return self.process is not None and not self.process.done


class SimTimer(SimThread):
    """A thread that calls a function after a time."""

    def __init__(
        self, interval: float, function: Callable[..., Any], args: Iterable[Any] = (), kwargs: Any = None
    ) -> None:
        super().__init__(None, function, "timer", args, kwargs)
        self.interval, self.finished = interval, SimEvent()

    def cancel(self) -> None:
        self.finished.set()

    def run(self) -> None:
        if not self.finished.wait(self.interval):
            self.finished.set()
            super().run()


class SimQueue:
    """A queue."""

    def __init__(self, maxsize: int = 0) -> None:
        self._most, self._items = maxsize, deque[Any]()
        self._changed = SimCondition()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        with self._changed:
            if not self._changed.wait_for(self._has_room, timeout if block else 0):
                raise queue.Full
            self._items.append(item)
            self._changed.notify_all()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout if block else 0):
                raise queue.Empty
            self._changed.notify_all()
            return self._items.popleft()

    def put_nowait(self, item: Any) -> None:
        self.put(item, False)

    def get_nowait(self) -> Any:
        return self.get(False)

    def _has_room(self) -> bool:
        return self._most <= 0 or len(self._items) < self._most

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


class SimFuture(Future[Any]):
    """A future that processes wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._condition: Any = SimCondition()


def id_of(process: Process | None) -> int:
    """A number of the process, the same in each run."""
    return 1 if process is None else process.number


def current_thread() -> Any:
    process = active().current
    if process is None:
        return threading.main_thread()
    if process.slot is None:
        process.slot = SimThread(name=process.name)
        process.slot.process = process
    return process.slot


NAMES: dict[str, Any] = {
    "Thread": SimThread,
    "Timer": SimTimer,
    "Lock": SimLock,
    "RLock": SimRLock,
    "Condition": SimCondition,
    "Event": SimEvent,
    "current_thread": current_thread,
    "get_ident": lambda: id_of(active().current),
    "get_native_id": lambda: id_of(active().current),
    "enumerate": lambda: [p.slot for p in active().processes if p.slot is not None and not p.done],
}
