"""Flights that wait to be sent again, by the time at which they are due. Pure: the caller gives the time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from mama_spark.contracts.message import Int64s

from .flight import FlightState
from .flight_batch import FlightBatch, Seconds

_WAITING = int(FlightState.WAITING)


@dataclass(order=True, slots=True)
class PendingResend:
    """Flights of one batch that are due at the same time.

    :ivar due: monotonic seconds; ``order``: of arrival, among those that are due at the same time
    :ivar deadline: the earliest time at which one of the rows may not be sent again any more
    :ivar rows: may contain rows that were acknowledged meanwhile
    """

    due: float
    order: int
    deadline: float = field(compare=False)
    flights: FlightBatch = field(compare=False)
    rows: Int64s = field(compare=False)


class ResendQueue:
    """:ivar next_deadline: no flight that waits has an earlier deadline"""

    def __init__(self) -> None:
        self._heap: list[PendingResend] = []
        self._order = count()
        self.next_deadline = math.inf

    def push(self, due: float, deadline: float, flights: FlightBatch, rows: Int64s) -> None:
        """Add flights in state WAITING."""
        self.next_deadline = min(self.next_deadline, deadline)
        heapq.heappush(self._heap, PendingResend(due, next(self._order), deadline, flights, rows))

    def head(self) -> PendingResend | None:
        """What is due first, with only those rows that still wait; None if nothing does."""
        while self._heap:
            head = self._heap[0]
            head.rows = _waiting(head.flights, head.rows)
            if len(head.rows):
                return head
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> list[tuple[FlightBatch, Int64s]]:
        """All that is due."""
        return [(entry.flights, _waiting(entry.flights, entry.rows)) for entry in self._heap if entry.due <= now]

    def merge(self) -> None:
        """Make one queue of all that waits, in the order in which it was first sent."""
        by_batch: dict[int, tuple[FlightBatch, list[Int64s]]] = {}
        for entry in self._heap:
            by_batch.setdefault(id(entry.flights), (entry.flights, []))[1].append(entry.rows)
        due = max(entry.due for entry in self._heap)
        deadline = min(entry.deadline for entry in self._heap)
        merged = []
        for flights, parts in by_batch.values():
            rows = np.unique(np.concatenate(parts))
            rows = _waiting(flights, rows)
            if len(rows):
                merged.append((float(flights.published[rows[0]]), int(flights.token[rows].min()), flights, rows))
        merged.sort(key=lambda m: m[:2])
        self._heap = [PendingResend(due, next(self._order), deadline, flights, rows) for _, _, flights, rows in merged]
        heapq.heapify(self._heap)

    def expire(
        self, now: float, deadlines: Callable[[FlightBatch, Int64s, float], Seconds]
    ) -> Iterator[tuple[FlightBatch, Int64s]]:
        """Remove what may not be sent again any more, and yield it.

        :param deadlines: of rows of a batch that are due at a time
        """
        if self.next_deadline > now:
            return
        for entry in self._heap:
            if entry.deadline <= now:
                rows = _waiting(entry.flights, entry.rows)
                late = deadlines(entry.flights, rows, entry.due) <= now
                entry.rows = rows[~late]
                yield entry.flights, rows[late]
                entry.deadline = float(deadlines(entry.flights, entry.rows, entry.due).min(initial=math.inf))
        self.next_deadline = min((entry.deadline for entry in self._heap), default=math.inf)


def _waiting(flights: FlightBatch, rows: Int64s) -> Int64s:
    waiting: Int64s = rows[flights.state[rows] == _WAITING]
    return waiting
