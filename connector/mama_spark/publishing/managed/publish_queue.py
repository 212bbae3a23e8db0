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
from contextlib import suppress
from typing import TypeVar

from mama_spark.contracts.errors import BadRow, MamaError, QueueFull

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
        if self._why is not None:
            raise self._why()

    def put(
        self, subject: str, body: bytes, headers: HeadersLike | None, options: PublishOptions | None
    ) -> Future[Flight]:
        """Queue a message; returns its future.

        :raises BadRow: a part of the message is no UTF-8 text, or its body no buffer
        :raises QueueFull: the queue is full and this thread may not block
        """
        plain: Headers | None = None
        if headers is not None:
            plain = {k: [v] if isinstance(v, str) else list(v) for k, v in headers.items()}
        _require_text("the subject", subject)
        for name, values in [*(plain or {}).items(), *(options.headers() if options else {}).items()]:
            _require_text("the name of a header", name)
            for value in values:
                _require_text(f"a value of the header {name!r}", value)
        try:
            memoryview(body)
        except TypeError:
            raise BadRow(f"the body is of type {type(body).__name__}: give bytes") from None
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
            _require_text("the message id", id_)
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
        ``admit`` runs under the lock, so that a message is always either here, also if it raises, or in its result."""
        with self._changed:
            if not self._entries:
                self._changed.wait_for(lambda: bool(self._entries) or self.closed, timeout)
            if not self._entries or not self._hand_out:
                return None
            taken = [self._entries.popleft() for _ in range(min(len(self._entries), most))]
            running = [entry for entry in taken if entry[1].set_running_or_notify_cancel()]
            try:
                admitted = admit(running)
            except BaseException:
                self._entries.extendleft(reversed(running))
                raise
        self.wake()
        return admitted

    def close(self, why: Callable[[], MamaError], *, hand_out: bool) -> None:
        """Refuse new messages; with ``hand_out``, queued ones are still taken. The last reason counts."""
        with self._changed:
            self._why = why
            self._hand_out = self._hand_out and hand_out
        self.wake()

    def rest(self) -> list[Entry]:
        """Remove and return all entries; the futures of some may be running."""
        with self._changed:
            rest, self._entries = list(self._entries), deque()
        return rest

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            with suppress(RuntimeError):  # its loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_let_in, waiter)


def on_event_loop() -> bool:
    """Whether this thread runs an event loop: then it must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _require_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise BadRow(f"{what} is of type {type(value).__name__}: give a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{what} cannot be encoded as UTF-8: {value!r}; leave out its surrogates") from None


def _let_in(space: asyncio.Future[None]) -> None:
    if not space.done():
        space.set_result(None)
