"""Converts the publisher's monotonic time to the wall-clock time of the flight log."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..contracts.message import Int64s

#: The value of :meth:`WallClock.micros` for NaN ("has not happened").
NEVER = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class WallClock:
    """One anchor for a whole task: differences of wall times are those of monotonic times, also when the clock is set.

    :ivar wall: microseconds since the epoch at ``mono``, ``time.monotonic()`` seconds
    """

    wall: int
    mono: float

    @classmethod
    def anchored(cls) -> WallClock:
        # Time of day: read once a task, where the times of its flight log begin.
        return cls(time.time_ns() // 1000, time.monotonic())

    def now(self) -> int:
        """Microseconds since the epoch."""
        return self.wall + round((time.monotonic() - self.mono) * 1e6)

    def micros(self, mono: npt.NDArray[np.float64]) -> Int64s:
        """Microseconds since the epoch; :data:`NEVER` for NaN."""
        missing = np.isnan(mono)
        since = np.where(missing, 0.0, (mono - self.mono) * 1e6)
        return np.where(missing, NEVER, np.rint(since).astype(np.int64) + self.wall)
