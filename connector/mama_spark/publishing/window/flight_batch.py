"""Flights opened together, in columns, and counters of their outcomes. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mama_spark.contracts.errors import PublishError
from mama_spark.contracts.message import Bools, Int64s, MessageBatch

from .flight import FlightState, States

Rows = slice | Int64s
Seconds = npt.NDArray[np.float64]
NO_SEND = np.iinfo(np.int32).max  #: above the number of every send


class FlightBatch:
    """Flights opened together, one element of each column a flight.

    :ivar n: number of flights; ``open``: of unsettled ones
    :ivar messages: row i is the message of flight i; None once all are settled and reported
    :ivar context: the caller's own value
    :ivar state: :class:`FlightState`
    :ivar sends: number of sends; ``token``: of the last send
    :ivar first_token: lowest token of all sends
    :ivar blocked: number of sends that were no attempts (:attr:`.PublishError.is_attempt`); None = none of any flight
    :ivar published: monotonic time at which the first send began, NaN before; ``settled``: of the terminal event
    :ivar sequence: -1 where the middleware does not give it; ``duplicate``
    :ivar stream: index into ``Window.streams``, -1 where the middleware does not give it
    :ivar doubt: a send may have been stored, and has no acknowledgement
    :ivar errors: row -> its last error
    :ivar absent: monotonic time at which the middleware certainly had no copy; None = unknown for all
    :ivar copied: number of the first send made while an earlier copy might still be stored; None = no such send
    :ivar non_retriable: see :class:`~mama_spark.contracts.bridge.ValidationResult`
    :ivar ends: payload bytes of all rows before row i, n + 1 elements
    """

    __slots__ = (
        "n", "open", "messages", "context", "state", "sends", "blocked", "token", "first_token", "published", "settled",
        "sequence", "duplicate", "stream", "doubt", "errors", "absent", "copied", "non_retriable", "ends",
    )  # fmt: skip

    def __init__(self, n: int, messages: MessageBatch | None = None, context: Any = None) -> None:
        self.n = self.open = n
        self.messages, self.context = messages, context
        self.first_token = math.inf
        self.state: States = np.zeros(n, np.uint8)
        self.sends: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        self.blocked: npt.NDArray[np.int32] | None = None
        self.token: Int64s = np.full(n, -1, np.int64)
        self.published: Seconds = np.full(n, np.nan)
        self.settled: Seconds = np.full(n, np.nan)
        self.sequence: Int64s = np.full(n, -1, np.int64)
        self.duplicate: Bools = np.zeros(n, np.bool_)
        self.stream: npt.NDArray[np.int32] = np.full(n, -1, np.int32)
        self.doubt: Bools = np.zeros(n, np.bool_)
        self.errors: dict[int, PublishError] = {}
        self.absent: Seconds | None = None
        self.copied: npt.NDArray[np.int32] | None = None
        self.non_retriable: Bools | None = None
        self.ends: Int64s = np.zeros(n + 1, np.int64)
        if messages is not None:
            np.cumsum(messages.sizes(), out=self.ends[1:])

    def not_stored_at(self, rows: Int64s, now: float) -> None:
        if self.absent is None:
            self.absent = np.full(self.n, -math.inf)
        self.absent[rows] = now

    def send_anyway(self, rows: Int64s) -> None:
        if self.copied is None:
            self.copied = np.full(self.n, NO_SEND, np.int32)
        self.copied[rows] = np.minimum(self.copied[rows], self.sends[rows] + 1)

    def perhaps_twice(self) -> Bools:
        first = NO_SEND if self.copied is None else self.copied
        found: Bools = (self.state == FlightState.ACKED) & (self.sends >= first)
        return found

    def stored_from(self, rows: Int64s) -> Seconds:
        """Earliest time at which these sent flights may have been stored."""
        return self.published[rows] if self.absent is None else np.maximum(self.published[rows], self.absent[rows])

    def failed(self) -> Bools:
        """True for flights that were rejected or timed out."""
        found: Bools = (self.state == FlightState.COMPLETED_EXCEPTIONALLY) | (self.state == FlightState.TIMEOUT)
        return found

    def attempts(self, rows: Int64s) -> npt.NDArray[np.int32]:
        return self.sends[rows] if self.blocked is None else self.sends[rows] - self.blocked[rows]

    def bytes_of(self, rows: Rows) -> int:
        if isinstance(rows, slice):
            return int(self.ends[rows.stop] - self.ends[rows.start])
        return int((self.ends[rows + 1] - self.ends[rows]).sum())


def part_of(rows: Rows, lo: int, hi: int) -> Rows:
    """Elements ``lo`` to ``hi`` of ``rows``."""
    return slice(rows.start + lo, rows.start + hi) if isinstance(rows, slice) else rows[lo:hi]


def array_of(rows: Rows) -> Int64s:
    return np.arange(rows.start, rows.stop, dtype=np.int64) if isinstance(rows, slice) else rows


def length_of(rows: Rows) -> int:
    return int(rows.stop - rows.start) if isinstance(rows, slice) else len(rows)


@dataclass(frozen=True, slots=True)
class StoredFlights:
    """Flights whose rows are in a stream already, and the sequence of each."""

    stream: str
    rows: Int64s
    sequences: Int64s


@dataclass(slots=True)
class FlightCounters:
    """Counters since the window was made: flights, unless named sends."""

    opened: int = 0
    acked: int = 0
    duplicates: int = 0
    failed: int = 0
    timed_out: int = 0
    in_doubt: int = 0  #: failed or timed out, and may be stored
    published: int = 0  #: sent to a middleware that acknowledges nothing
    sends: int = 0
    resends: int = 0
    late: int = 0  #: answers to sends of flights that were settled already, or that a newer send replaced
    unknown: int = 0  #: answers to tokens never given out, or forgotten
    holds: int = 0  #: times the server made the whole publisher wait

    @property
    def unsettled(self) -> int:
        """Flights without their terminal event."""
        return self.opened - self.acked - self.failed - self.timed_out - self.published


def messages_of(flights: FlightBatch) -> MessageBatch:
    """The messages of flights that are not all settled."""
    assert flights.messages is not None, "the messages of a finished batch are gone"
    return flights.messages
