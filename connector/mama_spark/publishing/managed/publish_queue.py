"""Bounded queue of flights between the callers of ``publish`` and the publish runner.

Callers on plain threads wait for space, coroutines are woken for it, and all others get QueueFull. ``close`` and
``put`` exclude each other, so that a message is either refused or handed on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from mama_spark.contracts.errors import MamaError, QueueFull

from ..api import Flight, Headers, HeadersLike, PublishOptions

T = TypeVar("T")
Entry = tuple[Flight, "Future[Flight]"]
Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class PublishQueue:
    """The queue. Thread-safe.

    :param size: maximum number of waiting messages
    :param id_prefix: ids are ``<id_prefix>-<number>`` (MP-18)
    :param callers: threads that must not wait for space, because they make it
    """

    def __init__(self, size: int, id_prefix: str, callers: set[int]) -> None:
        self._size, self._prefix, self._callers = size, id_prefix, callers
        self._entries: deque[Entry] = deque()
        self._changed = threading.Condition()  # guards everything here
        self._number = 0
        self._waiters: list[Waiter] = []
        self._why: Callable[[], MamaError] | None = None
        self._hand_out = True

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def closed(self) -> bool:
        return self._why is not None

    def raise_closed(self) -> None:
        """Raise the error of :meth:`close`, if the queue is closed."""
        if self._why is not None:
            raise self._why()

    def put(
        self, subject: str, body: bytes, headers: HeadersLike | None, options: PublishOptions | None
    ) -> Future[Flight]:
        """Queue a message; returns its future. QueueFull: the queue is full and this thread may not block."""
        plain: Headers | None = None
        if headers is not None:
            plain = {k: [v] if isinstance(v, str) else list(v) for k, v in headers.items()}
        future: Future[Flight] = Future()
        with self._changed:
            self.raise_closed()
            if len(self._entries) >= self._size:
                if threading.get_ident() in self._callers or on_event_loop():
                    raise QueueFull(f"{self._size} messages wait already")
                self._changed.wait_for(lambda: len(self._entries) < self._size or self.closed)
                self.raise_closed()
            self._number += 1
            id_ = options.msg_id if options and options.msg_id else f"{self._prefix}-{self._number}"
            flight = Flight(id_, subject, bytes(body), plain, options)
            flight.publish_ack_future.set_running_or_notify_cancel()
            self._entries.append((flight, future))
            self._changed.notify_all()
        return future

    async def wait_for_space(self) -> None:
        """Return when there may be space, or the queue is closed."""
        loop = asyncio.get_running_loop()
        space: asyncio.Future[None] = loop.create_future()
        with self._changed:
            if len(self._entries) < self._size or self.closed:
                return
            self._waiters.append((loop, space))
        await space

    def take(self, most: int, timeout: float, admit: Callable[[list[Entry]], T]) -> T | None:
        """The result of ``admit`` for the next entries; None if none comes for ``timeout`` seconds, or ever again.
        ``admit`` runs under the lock, so that a message is always either here or in its result."""
        with self._changed:
            if not self._entries:
                self._changed.wait_for(lambda: bool(self._entries) or self.closed, timeout)
            if not self._entries or not self._hand_out:
                return None
            taken = [self._entries.popleft() for _ in range(min(len(self._entries), most))]
            admitted = admit([entry for entry in taken if entry[1].set_running_or_notify_cancel()])
        self.wake()
        return admitted

    def close(self, why: Callable[[], MamaError], *, hand_out: bool) -> None:
        """Refuse new messages; with ``hand_out``, queued ones are still taken. The last reason counts."""
        with self._changed:
            self._why = why
            self._hand_out = self._hand_out and hand_out
        self.wake()

    def rest(self) -> list[Entry]:
        """Remove and return all entries."""
        with self._changed:
            rest, self._entries = list(self._entries), deque()
        return rest

    def wake(self) -> None:
        """Wake all waits for space, for entries and for the end."""
        with self._changed:
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            loop.call_soon_threadsafe(_let_in, waiter)


def on_event_loop() -> bool:
    """Whether this thread runs an event loop: then it must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _let_in(space: asyncio.Future[None]) -> None:
    if not space.done():
        space.set_result(None)
