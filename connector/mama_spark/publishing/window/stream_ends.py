"""Where a stream ended at which moment. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right

_MOST = 4096  #: moments that are remembered beside the first: one for each message on its way


class StreamEnds:
    """:param first: a sequence of the stream before anything was sent"""

    def __init__(self, first: int) -> None:
        self._ends = [(-math.inf, first)]

    def note(self, at: float, last: int) -> None:
        """Note that sends after ``at``, which never falls (monotonic seconds), are stored behind this sequence."""
        if last > self._ends[-1][1]:
            self._ends.append((at, last))
            del self._ends[1:-_MOST]

    def before(self, since: float) -> int:
        """A sequence behind which all is stored that was sent from a moment on."""
        return self._ends[max(0, bisect_right(self._ends, (since, -1)) - 1)][1]
