"""Maps the token of a send to its flight. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mama_spark.contracts.message import Bools, Int64s

from .flight import FlightState
from .flight_batch import FlightBatch, FlightCounters, Rows, part_of

_IN_FLIGHT = int(FlightState.IN_FLIGHT)


@dataclass(frozen=True, slots=True)
class SendRange:
    """Sends handed to the bridge together: tokens ``first .. end-1`` are ``rows`` of ``flights``, in order."""

    first: int
    end: int
    flights: FlightBatch
    rows: Rows
    at: float

    def pick(self, tokens: Int64s) -> Rows:
        lo, hi = int(tokens[0]) - self.first, int(tokens[-1]) - self.first + 1
        if hi - lo == len(tokens):
            return part_of(self.rows, lo, hi)
        off = tokens - self.first
        return off + self.rows.start if isinstance(self.rows, slice) else self.rows[off]


class SendIndex:
    """Sends that may still be answered, by token and by time. ``counters`` count unknown tokens."""

    def __init__(self, counters: FlightCounters) -> None:
        self._counters = counters
        self._ranges: list[SendRange] = []
        self._firsts: list[int] = []
        self._timers: deque[SendRange] = deque()  # all sends wait equally long, so this is sorted by deadline
        self._prune_at = 64

    def __len__(self) -> int:
        return len(self._ranges) + len(self._timers)

    def __iter__(self) -> Iterator[SendRange]:
        return iter(list(self._ranges))

    def add(self, sends: SendRange) -> None:
        """Add sends, whose tokens are higher than all before."""
        self._forget()
        self._ranges.append(sends)
        self._firsts.append(sends.first)
        self._timers.append(sends)

    def oldest(self) -> SendRange | None:
        """The range with an unanswered send that expires first."""
        while self._timers and not self.live(self._timers[0]).any():
            self._timers.popleft()
        return self._timers[0] if self._timers else None

    def expired(self, now: float, wait: float) -> Iterator[SendRange]:
        """Sends that have waited ``wait`` seconds for their answer, each returned once."""
        while self._timers and self._timers[0].at + wait <= now:
            yield self._timers.popleft()

    def unanswered(self, since: float = -math.inf) -> bool:
        """Whether any send from ``since`` on has no answer yet (ranges are in order of time)."""
        for sends in reversed(self._ranges):
            if sends.at < since:
                return False
            if self.live(sends).any():
                return True
        return False

    @staticmethod
    def live(sends: SendRange) -> Bools:
        """True for unanswered sends of this range: the flight is in flight, and this is its last send."""
        state, token = sends.flights.state[sends.rows], sends.flights.token[sends.rows]
        live: Bools = (state == _IN_FLIGHT) & (token >= sends.first) & (token < sends.end)
        return live

    def split(self, tokens: Int64s) -> Iterator[tuple[SendRange, int, int]]:
        """Cut ascending ``tokens`` by range: (range, from, to). Unknown ones are counted and left out."""
        i, n = 0, len(tokens)
        while i < n:
            at = bisect_right(self._firsts, int(tokens[i])) - 1
            sends = self._ranges[at] if at >= 0 else None
            if sends is not None and tokens[i] < sends.end:
                j = n if tokens[-1] < sends.end else int(np.searchsorted(tokens, sends.end))
                yield sends, i, j
            else:
                j = int(np.searchsorted(tokens, self._firsts[at + 1])) if at + 1 < len(self._firsts) else n
                self._counters.unknown += j - i
            i = j

    def _forget(self) -> None:
        """Drop ranges without open flights; late answers to them are unknown tokens."""
        done = 0
        for sends in self._ranges:
            if sends.flights.open and (sends.flights.state[sends.rows] < FlightState.ACKED).any():
                break
            done += 1
        del self._ranges[:done], self._firsts[:done]
        if len(self._ranges) + len(self._timers) > self._prune_at:  # one stuck flight must not keep the others
            self._ranges = [s for s in self._ranges if (s.flights.state[s.rows] < FlightState.ACKED).any()]
            self._firsts = [s.first for s in self._ranges]
            self._timers = deque(s for s in self._timers if self.live(s).any())
            self._prune_at = max(64, 2 * (len(self._ranges) + len(self._timers)))
