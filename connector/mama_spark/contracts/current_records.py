"""Which records of a log are the last of their topics. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from .message import Bools, Int64s

#: With so many records for a current one, most of what is stored is current.
_DENSE = 2.0


@dataclass(frozen=True, slots=True)
class CurrentRecords:
    """Which records of a log are the last of their topics, as of one sequence of it.

    :ivar as_of: that sequence
    :ivar sequences: of the records, ascending
    :ivar topics: of each; None: not wanted, so that records which are gone are left out
    :ivar before: how many current ones precede these
    :ivar spread: how many records of these topics there are for a current one
    """

    as_of: int
    sequences: Int64s
    topics: pa.Array | None
    before: int = 0
    spread: float = 1.0

    def __len__(self) -> int:
        return len(self.sequences)

    def slice(self, start: int, stop: int) -> CurrentRecords:
        """Those from ``start`` to ``stop``; shares memory."""
        topics = None if self.topics is None else self.topics.slice(start, stop - start)
        return replace(self, sequences=self.sequences[start:stop], topics=topics, before=self.before + start)

    def take(self, rows: Bools) -> CurrentRecords:
        """Those of ``rows``; copies."""
        topics = None if self.topics is None else self.topics.filter(pa.array(rows))
        return replace(self, sequences=self.sequences[rows], topics=topics)

    @property
    def divisible(self) -> bool:
        """Whether to read a part of them costs less than to read all."""
        return self.spread <= _DENSE

    def within(self, after: int, up_to: int) -> CurrentRecords:
        """Those with ``after < sequence <= up_to``."""
        start, stop = np.searchsorted(self.sequences, [after, up_to], "right").tolist()
        return self.slice(start, stop)
