"""Queues with a limit in bytes, and the store of undelivered mail and requests, one queue per address. Pure.

Limits count bytes of content. Messages beyond them are dropped; senders that requested confirmations are told.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mama_spark.malamute.protocol.patterns import Pattern

from .settings import LETTER_OVERHEAD, Limits, Overflow

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Most items of a queue, however small they are.
MAX_ITEMS = 1_000_000


class ByteQueue(Generic[T]):
    """First in, first out.

    :param limit: bytes of all items together; None = no limit. An item larger than the limit never fits
    :param warn: bytes above which :meth:`should_warn` is true once; again after the queue fell below half of it
    """

    __slots__ = ("limit", "warn", "overflow", "size", "_items", "_warned")

    def __init__(
        self, limit: int | None = None, warn: int | None = None, overflow: Overflow = Overflow.DROP_NEWEST
    ) -> None:
        self.limit = limit
        self.warn = warn
        self.overflow = overflow
        self.size = 0
        self._items: deque[tuple[T, int]] = deque()
        self._warned = False

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return (item for item, _ in self._items)

    def fits(self, size: int) -> bool:
        return (self.limit is None or self.size + size <= self.limit) and len(self._items) < MAX_ITEMS

    def put(self, item: T, size: int) -> list[T]:
        """Add the item; returns the items dropped for it, which may include it."""
        lost: list[T] = []
        if not self.fits(size):
            if self.overflow is Overflow.DROP_OLDEST and (self.limit is None or size <= self.limit):
                while self._items and not self.fits(size):
                    lost.append(self.get())
            else:
                return [item]
        self._items.append((item, size))
        self.size += size
        return lost

    def put_back(self, item: T, size: int) -> None:
        """Put an item that could not be used back to the front, regardless of the limit."""
        self._items.appendleft((item, size))
        self.size += size

    def get(self) -> T:
        """Take the first item out of the queue.

        :raises IndexError: the queue is empty
        """
        item, size = self._items.popleft()
        self._shrink(size)
        return item

    def discard(self, most: int) -> None:
        for _ in range(min(most, len(self._items))):
            self.get()

    def remove(self, items: set[int]) -> None:
        """Remove items by identity: those at the front directly, others in one pass."""
        left = len(items)
        while left and self._items and id(self._items[0][0]) in items:
            self.get()
            left -= 1
        if not left:
            return
        kept = deque(entry for entry in self._items if id(entry[0]) not in items)
        gone = self.size - sum(size for _, size in kept)
        self._items = kept
        self._shrink(gone)

    def _shrink(self, size: int) -> None:
        self.size -= size
        if self.warn is not None and self.size < self.warn / 2:
            self._warned = False

    def should_warn(self) -> bool:
        """True once each time that ``warn`` is exceeded."""
        if self.warn is None or self._warned or self.size <= self.warn:
            return False
        self._warned = True
        return True


@dataclass(slots=True, eq=False)
class MailboxMessage:
    """An undelivered MAILBOX SEND or SERVICE SEND. Its ``sender`` may have left; ``source`` is its address, empty for
    an anonymous client. ``deadline``: on the caller's clock, 0 = none."""

    service: bool
    sender: Hashable
    source: bytes
    address: bytes
    subject: bytes
    tracker: bytes = b""
    deadline: float = 0.0
    content: Sequence[bytes] = ()
    size: int = field(init=False)
    kept: bool = field(init=False, default=False)  #: waits in a store

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.content))

    @property
    def cost(self) -> int:
        """Approximate bytes of memory."""
        return self.size + LETTER_OVERHEAD


class MailboxStore:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.size = 0
        self._count = 0
        self._queues: dict[bytes, ByteQueue[MailboxMessage]] = {}

    def __len__(self) -> int:
        return self._count

    def put(self, message: MailboxMessage) -> list[MailboxMessage]:
        """Store the message; returns the messages dropped for it, which may include it."""
        limits = self.limits
        queue = self._queues.get(message.address)
        if limits.total is not None and self.size + LETTER_OVERHEAD * self._count + message.cost > limits.total:
            return [message]
        if queue is None:
            if len(self._queues) >= limits.count:
                return [message]
            queue = ByteQueue(limits.each, limits.warn, limits.overflow)
            self._queues[message.address] = queue
        before = queue.size, len(queue)
        message.kept = True
        lost = queue.put(message, message.size)
        for one in lost:
            one.kept = False
        if queue.should_warn():
            kind = "service" if message.service else "mailbox"
            log.warning("the %s %r holds %d bytes that nobody takes", kind, message.address, queue.size)
        self._changed(message.address, queue, before)
        return lost

    def put_back(self, message: MailboxMessage) -> None:
        queue = self._queues.setdefault(
            message.address, ByteQueue(self.limits.each, self.limits.warn, self.limits.overflow)
        )
        queue.put_back(message, message.size)
        message.kept = True
        self.size += message.size
        self._count += 1

    def take(self, address: bytes, pattern: Pattern | None = None) -> list[MailboxMessage]:
        """Remove and return the messages of an address in order; with a pattern, only those it matches."""
        queue = self._queues.get(address)
        if queue is None:
            return []
        taken = [message for message in queue if pattern is None or pattern.search(message.subject)]
        self._remove(address, queue, taken)
        return taken

    def discard(self, messages: Iterable[MailboxMessage]) -> list[MailboxMessage]:
        """Remove messages; returns those that were still waiting."""
        chosen: dict[bytes, list[MailboxMessage]] = {}
        for message in messages:
            if message.kept:
                chosen.setdefault(message.address, []).append(message)
        for address, waiting in chosen.items():
            self._remove(address, self._queues[address], waiting)
        return [message for waiting in chosen.values() for message in waiting]

    def _remove(self, address: bytes, queue: ByteQueue[MailboxMessage], messages: list[MailboxMessage]) -> None:
        before = queue.size, len(queue)
        for message in messages:
            message.kept = False
        queue.remove({id(message) for message in messages})
        self._changed(address, queue, before)

    def _changed(self, address: bytes, queue: ByteQueue[MailboxMessage], before: tuple[int, int]) -> None:
        self.size += queue.size - before[0]
        self._count += len(queue) - before[1]
        if not len(queue):
            del self._queues[address]
