"""Queues with a limit in bytes, and policies for a full queue. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")

#: Most items of a queue, however small they are.
MAX_ITEMS = 1_000_000


class Overflow(StrEnum):
    """Policy of a full queue for one more item."""

    DROP_NEWEST = "drop-newest"  #: the new item is lost; the reference's only way
    DROP_OLDEST = "drop-oldest"  #: the oldest items are lost until the new one fits
    DISCONNECT = "disconnect"  #: the new item is lost, and so is the client for whom it was


class ByteQueue(Generic[T]):
    """First in, first out.

    :param limit: bytes of all items together; None = no limit. An item larger than the limit never fits.
    :param warn: bytes above which :meth:`should_warn` is true once; again after the queue fell below half of it
    """

    __slots__ = ("limit", "warn", "overflow", "size", "dropped", "_items", "_warned")

    def __init__(
        self, limit: int | None = None, warn: int | None = None, overflow: Overflow = Overflow.DROP_NEWEST
    ) -> None:
        self.limit = limit
        self.warn = warn
        self.overflow = overflow
        self.size = 0
        self.dropped = 0
        self._items: deque[tuple[T, int]] = deque()
        self._warned = False

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return (item for item, _ in self._items)

    def __repr__(self) -> str:
        lost = f", {self.dropped} dropped" if self.dropped else ""
        return f"<ByteQueue {len(self._items)} items, {self.size} of {self.limit or 'any'} octets{lost}>"

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
                self.dropped += 1
                return [item]
        self._items.append((item, size))
        self.size += size
        self.dropped += len(lost)
        return lost

    def put_back(self, item: T, size: int) -> None:
        """Put an item that could not be used back to the front, regardless of the limit."""
        self._items.appendleft((item, size))
        self.size += size

    def get(self) -> T:
        """:raises IndexError: the queue is empty"""
        item, size = self._items.popleft()
        self._shrink(size)
        return item

    def discard(self, most: int) -> None:
        """Remove up to ``most`` of the oldest items."""
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
