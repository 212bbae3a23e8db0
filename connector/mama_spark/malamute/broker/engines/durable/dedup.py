"""Deduplication: keeps the ids of recently stored messages. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import repeat


class DedupWindow:
    """Ids of the last ``span`` microseconds, at most ``count``; about 270 octets of memory each. Times are those of one
    clock that never falls.

    Ids are added before their transaction is committed, and withdrawn when it fails.
    """

    def __init__(self, span: int, count: int) -> None:
        self.span = span
        self.count = count
        self._sequences: dict[bytes, int] = {}
        self._order: deque[tuple[bytes, int]] = deque()  # id, time; ascending, as they were added
        self._dropped: int | None = None  # time of the newest id that was forgotten because there were too many

    def __len__(self) -> int:
        return len(self._sequences)

    def find(self, message_id: bytes) -> int | None:
        """Sequence of the message that has this id."""
        return self._sequences.get(message_id)

    def add(self, message_id: bytes, sequence: int, time: int) -> None:
        """Add an id that :meth:`find` does not know."""
        if self.span and self.count:
            self._sequences[message_id] = sequence
            self._order.append((message_id, time))

    def add_new(self, message_ids: list[bytes], sequence: int, time: int) -> bool:
        """Add ids of consecutive messages; False if one is known, missing or repeated: then none was added."""
        known = self._sequences
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
        """Load stored ids with sequences and times, ascending."""
        for message_id, sequence, time in found:
            if message_id not in self._sequences:
                self.add(message_id, sequence, time)

    def withdraw(self, above: int) -> None:
        """Remove the ids of messages with a higher sequence, which were added last."""
        while self._order and self._sequences[self._order[-1][0]] > above:
            del self._sequences[self._order.pop()[0]]

    def expire(self, now: int) -> None:
        order, sequences = self._order, self._sequences
        horizon = now - self.span
        while order and (len(order) > self.count or order[0][1] < horizon):
            message_id, time = order.popleft()
            del sequences[message_id]
            if time >= horizon:
                self._dropped = time

    def certain(self, now: int) -> int:
        """Microseconds for which an id is surely known: fewer than ``span`` where there were too many."""
        if not self.count or self._dropped is None:
            return self.span if self.count else 0
        return max(0, min(self.span, now - self._dropped - 1))
