"""How far a log was served, and from where on to serve it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..contracts.record_log import Bounds, Continuity, RecordLog, resume


class LogPosition(NamedTuple):
    """How far a log was served; an empty identity: not at all.

    :ivar identity: of the log, which changes when it is made again
    :ivar served: sequence of the last record
    :ivar time: when it was stored; None: not known
    """

    identity: str = ""
    served: int = 0
    time: int | None = None

    def resume(self, log: Callable[[], RecordLog], bounds: Bounds) -> tuple[Continuity, int]:
        """See :func:`~mama_spark.contracts.record_log.resume`."""
        return resume(log, bounds, self.identity, self.served + 1, self.time)


def first_position(begin: str, saved: LogPosition, bounds: Bounds, at_first: str) -> LogPosition:
    """Where to begin: at ``begin``, which is ``saved`` (else ``at_first``), ``earliest``, ``latest`` or a sequence."""
    if begin == "saved":
        if saved.identity:
            return saved
        begin = at_first
    if begin == "latest":
        return LogPosition(bounds.identity, bounds.last, bounds.time)
    first = bounds.first if begin == "earliest" else min(max(int(begin), 1), bounds.last + 1)
    return LogPosition(bounds.identity, first - 1)
