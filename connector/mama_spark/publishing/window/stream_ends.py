"""Last sequences of a stream over time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right

_MOST = 4096  #: moments kept beside the first: one for each message in flight


class StreamEnds:
    """Last sequences of one stream; ``first``: one from before the first send."""

    def __init__(self, first: int) -> None:
        self._ends = [(-math.inf, first)]

    def note(self, at: float, last: int) -> None:
        """Note that sends after ``at`` (monotonic seconds, never falling) are stored behind this sequence."""
        if last > self._ends[-1][1]:
            self._ends.append((at, last))
            del self._ends[1:-_MOST]

    def before(self, since: float) -> int:
        """A sequence below all messages sent since a moment."""
        return self._ends[max(0, bisect_right(self._ends, (since, -1)) - 1)][1]
