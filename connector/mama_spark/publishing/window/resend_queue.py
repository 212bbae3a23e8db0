"""Flights of one publisher that may be resent, with times and deadlines. Pure: the caller gives the time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from mama_spark.contracts.errors import Backpressure, PublishError
from mama_spark.contracts.message import Bools, Int64s
from mama_spark.options.window_config import WindowConfig

from .flight import FlightState, Transition, advance
from .flight_batch import FlightBatch, Seconds
from .retry import may_resend

_WAITING = int(FlightState.WAITING)


@dataclass(order=True, slots=True)
class PendingResend:
    """Flights of one batch that are due at the same time.

    :ivar due: monotonic seconds; ``order``: of arrival, among equal ``due``
    :ivar deadline: earliest retry deadline of the rows
    :ivar rows: may include rows acknowledged meanwhile
    :ivar held: an earlier copy may still be stored; takes no place in the window
    """

    due: float
    order: int
    deadline: float = field(compare=False)
    flights: FlightBatch = field(compare=False)
    rows: Int64s = field(compare=False)
    held: bool = field(compare=False, default=False)


class ResendQueue:
    """Flights that wait for a resend; their retry deadlines can be suspended for an outage.

    :ivar patient: outages are waited for
    :ivar next_deadline: at or before the earliest retry deadline of all waiting flights
    """

    def __init__(self, policy: WindowConfig) -> None:
        self._policy = policy
        self._heap: list[PendingResend] = []
        self._order = count()
        self.patient = False
        self.next_deadline = math.inf
        self._deadlines_from = -math.inf  # retry deadlines count from here at the earliest

    def __bool__(self) -> bool:
        return self.head() is not None

    def allowed(self, flights: FlightBatch, rows: Int64s, error: PublishError, now: float) -> Bools:
        """True for flights that may be resent after their last send ended with ``error``."""
        if not error.is_attempt:
            return np.ones(len(rows), np.bool_)
        retry = self._policy.retry
        if retry is None or not may_resend(error, repeatable=self._policy.resend_uncertain, retry_on=retry.retry_on):
            return np.zeros(len(rows), np.bool_)
        allowed = np.ones(len(rows), np.bool_)
        if retry.attempts is not None:
            allowed &= flights.attempts(rows) <= retry.attempts
        if retry.deadline is not None:
            allowed &= self._deadlines_begin(flights, rows) + retry.deadline > now
        if error.may_have_landed and flights.non_retriable is not None:
            allowed &= ~flights.non_retriable[rows]
        return allowed

    @property
    def deadlines_suspended(self) -> bool:
        return self._deadlines_from == math.inf

    def suspend_deadlines(self) -> None:
        """Flights have no retry deadline until :meth:`resume_deadlines`."""
        self._deadlines_from = math.inf

    def resume_deadlines(self, now: float) -> None:
        """Count the retry deadlines of earlier sends from now: messages are stored again."""
        self._deadlines_from = now

    def _deadlines(self, flights: FlightBatch, rows: Int64s, due: float) -> Seconds:
        """Retry deadlines, or ``wait_timeout`` after ``due`` without one, so that no flight waits for ever."""
        deadline = self._policy.retry.deadline if self._policy.retry else None
        if deadline is None:
            return np.full(len(rows), due + self._policy.wait_timeout)
        return self._deadlines_begin(flights, rows) + deadline

    def _deadlines_begin(self, flights: FlightBatch, rows: Int64s) -> Seconds:
        begin: Seconds = np.maximum(flights.published[rows], self._deadlines_from)
        return begin

    def add(self, flights: FlightBatch, rows: Int64s, error: PublishError, now: float, paused_until: float) -> None:
        """Queue flights whose last send ended with ``error``; ``paused_until``: end of the publisher's pause."""
        flights.state[rows] = advance(flights.state[rows], Transition.RETRY)
        sends, policy = int(flights.attempts(rows[:1])[0]), self._policy
        due = now
        if not error.is_attempt:
            if flights.blocked is None:
                flights.blocked = np.zeros(flights.n, np.int32)
            flights.blocked[rows] += 1
        elif error.backpressure is not Backpressure.NONE:
            due = max(now, paused_until)
        elif error.answered and not error.may_have_landed and policy.ordered:
            pass  # refused because of a message before it
        elif policy.retry is not None and (error.answered or sends > 1):
            # no answer: at once the first time, then slower, lest a bridge that doubts at once is called for ever
            due = now + policy.retry.backoff(sends if error.answered else sends - 1)
        self.push(due, flights, rows)

    def push(self, due: float, flights: FlightBatch, rows: Int64s, *, held: bool = False) -> None:
        """Add flights in state WAITING."""
        deadline = float(self._deadlines(flights, rows, due).min())
        self.next_deadline = min(self.next_deadline, deadline)
        heapq.heappush(self._heap, PendingResend(due, next(self._order), deadline, flights, rows, held))

    def put_off_deadlines(self, now: float) -> None:
        """As :meth:`resume_deadlines`, if outages are waited for."""
        if self.patient and not self.deadlines_suspended:
            self.resume_deadlines(now)

    def hold(self, flights: FlightBatch, rows: Int64s, until: float) -> None:
        """Make waiting flights due at ``until``, and hold them."""
        for entry in self._heap:
            if entry.flights is flights:
                entry.rows = entry.rows[~np.isin(entry.rows, rows)]
        self.push(until, flights, rows, held=True)

    def held(self) -> tuple[int, int]:
        """Number of held flights, and their payload bytes."""
        parts = [(entry.flights, _waiting(entry.flights, entry.rows)) for entry in self._heap if entry.held]
        return sum(len(rows) for _, rows in parts), sum(flights.bytes_of(rows) for flights, rows in parts)

    def head(self) -> PendingResend | None:
        """The entry that is due first, with the rows that still wait; None if none does."""
        while self._heap:
            head = self._heap[0]
            head.rows = _waiting(head.flights, head.rows)
            if len(head.rows):
                return head
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> list[tuple[FlightBatch, Int64s]]:
        """Due flights, in runs of one batch."""
        return [(entry.flights, _waiting(entry.flights, entry.rows)) for entry in self._heap if entry.due <= now]

    def merge(self) -> None:
        """Merge all waiting flights into one queue, in the order of their first sends."""
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
                merged.append((flights, rows))
        merged.sort(key=lambda m: m[0].first_token)
        self._heap = [PendingResend(due, next(self._order), deadline, flights, rows) for flights, rows in merged]
        heapq.heapify(self._heap)

    def expire(self, now: float) -> Iterator[tuple[FlightBatch, Int64s]]:
        """Remove and yield flights past their retry deadline."""
        if self.next_deadline > now:
            return
        for entry in self._heap:
            if entry.deadline <= now:
                rows = _waiting(entry.flights, entry.rows)
                late = self._deadlines(entry.flights, rows, entry.due) <= now
                entry.rows = rows[~late]
                yield entry.flights, rows[late]
                entry.deadline = float(self._deadlines(entry.flights, entry.rows, entry.due).min(initial=math.inf))
        self.next_deadline = min((entry.deadline for entry in self._heap), default=math.inf)


def _waiting(flights: FlightBatch, rows: Int64s) -> Int64s:
    waiting: Int64s = rows[flights.state[rows] == _WAITING]
    return waiting
