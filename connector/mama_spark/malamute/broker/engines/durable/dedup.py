"""Deduplication: keeps the ids of recently stored messages. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat


class DedupWindow:
    """Ids of the last ``span`` microseconds, at most ``count``; about 270 bytes of memory each.

    Ids are added before their transaction is committed, and withdrawn when it fails. They expire once in each batch, by
    the clock ``ticks``, which never falls and nobody sets: an id that is forgotten too early is a message that is
    stored twice.
    """

    def __init__(self, span: int, count: int, ticks: Callable[[], int]) -> None:
        self.span = span
        self.count = count
        self._ticks = ticks
        self._now = 0  # time of the batch, at which ids were expired; 0 = not yet in this batch
        self._sequences: dict[bytes, int] = {}
        self._order: deque[tuple[bytes, int]] = deque()  # id, time; ascending, as they were added

    def __len__(self) -> int:
        return len(self._sequences)

    def begin_batch(self) -> None:
        """The next id belongs to another batch."""
        self._now = 0

    def first_of(self, message_id: bytes, sequence: int) -> int:
        """Sequence of the first message with the id: ``sequence`` if it is new; then it is added."""
        now = self._expired()
        first = self._sequences.get(message_id)
        if first is None:
            self._add(message_id, sequence, now)
        return sequence if first is None else first

    def _add(self, message_id: bytes, sequence: int, time: int) -> None:
        if self.span and self.count:
            self._sequences[message_id] = sequence
            self._order.append((message_id, time))

    def add_new(self, message_ids: list[bytes], sequence: int) -> bool:
        """Add ids of consecutive messages; False if one is known, missing or repeated: then none was added."""
        time, known = self._expired(), self._sequences
        if not all(message_ids) or not known.keys().isdisjoint(message_ids):
            return False
        count = len(message_ids)
        if len(set(message_ids)) < count:
            return False
        if self.span and self.count:
            known.update(zip(message_ids, range(sequence, sequence + count), strict=True))
            self._order.extend(zip(message_ids, repeat(time), strict=False))
        return True

    def load(self, found: Iterable[tuple[bytes, int, int]]) -> None:
        """Load stored ids with sequences and ages, oldest first."""
        now = self._ticks()
        for message_id, sequence, age in found:
            if message_id not in self._sequences:
                self._add(message_id, sequence, now - age)
        self._expire(now)

    def withdraw(self, above: int) -> None:
        """Remove the ids of messages with a higher sequence, which were added last."""
        while self._order and self._sequences[self._order[-1][0]] > above:
            del self._sequences[self._order.pop()[0]]

    def _expired(self) -> int:
        """Remove ids older than the window, once per batch; the time of the batch."""
        if not self._now:
            self._now = self._ticks()
            self._expire(self._now)
        return self._now

    def _expire(self, now: int) -> None:
        order, sequences = self._order, self._sequences
        horizon = now - self.span
        while order and (len(order) > self.count or order[0][1] < horizon):
            message_id, _ = order.popleft()
            del sequences[message_id]
