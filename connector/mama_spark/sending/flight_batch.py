"""Flights in columns, and how many came to what end. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mama_spark.errors import PublishError
from mama_spark.message import Bools, Int64s

from .flight import States

Rows = slice | Int64s
Seconds = npt.NDArray[np.float64]


class FlightBatch:
    """Flights opened together, one element of each column a flight.

    :ivar n: how many; ``open``: how many of them are not settled
    :ivar tag: whatever the shell wants to find again (its messages)
    :ivar state: :class:`State`
    :ivar sends: how often sent; ``token``: of the last send
    :ivar published: monotonic time of the first send, NaN before; ``settled``: of the terminal event
    :ivar sequence: -1 where not told; ``duplicate``; ``stream``: index into ``Window.streams``, -1 if not told
    :ivar doubt: a send of it may have landed without an answer that says so
    :ivar errors: row -> the last error, for rows that had one
    """

    __slots__ = (
        "n", "open", "tag", "state", "sends", "token", "published", "settled", "sequence", "duplicate", "stream",
        "doubt", "errors", "fragile", "ends",
    )  # fmt: skip

    def __init__(self, n: int, tag: Any, sizes: Int64s | None, fragile: Bools | None) -> None:
        self.n = self.open = n
        self.tag = tag
        self.state: States = np.zeros(n, np.uint8)
        self.sends: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        self.token: Int64s = np.full(n, -1, np.int64)
        self.published: Seconds = np.full(n, np.nan)
        self.settled: Seconds = np.full(n, np.nan)
        self.sequence: Int64s = np.full(n, -1, np.int64)
        self.duplicate: Bools = np.zeros(n, np.bool_)
        self.stream: npt.NDArray[np.int32] = np.full(n, -1, np.int32)
        self.doubt: Bools = np.zeros(n, np.bool_)
        self.errors: dict[int, PublishError] = {}
        self.fragile = fragile
        self.ends: Int64s = np.zeros(n + 1, np.int64)  # payload bytes of rows before i
        if sizes is not None:
            np.cumsum(sizes, out=self.ends[1:])

    def bytes_of(self, rows: Rows) -> int:
        if isinstance(rows, slice):
            return int(self.ends[rows.stop] - self.ends[rows.start])
        return int((self.ends[rows + 1] - self.ends[rows]).sum())

    def __repr__(self) -> str:
        return f"<FlightBatch of {self.n}, {self.open} open>"


def part_of(rows: Rows, lo: int, hi: int) -> Rows:
    return slice(rows.start + lo, rows.start + hi) if isinstance(rows, slice) else rows[lo:hi]


def array_of(rows: Rows) -> Int64s:
    return np.arange(rows.start, rows.stop, dtype=np.int64) if isinstance(rows, slice) else rows


def length_of(rows: Rows) -> int:
    return int(rows.stop - rows.start) if isinstance(rows, slice) else len(rows)


@dataclass(slots=True)
class FlightCounters:
    """What happened since the window was made; flights, unless it says sends."""

    opened: int = 0
    acked: int = 0
    duplicates: int = 0
    failed: int = 0
    timed_out: int = 0
    published: int = 0  #: handed over where nothing is acknowledged
    sends: int = 0
    resends: int = 0
    late: int = 0  #: answers to sends of flights that were settled already, or that a newer send replaced
    unknown: int = 0  #: answers to tokens that were never handed out or are forgotten
    holds: int = 0  #: times the server made the whole publisher wait
