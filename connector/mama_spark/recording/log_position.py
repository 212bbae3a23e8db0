"""The position up to which a log was served, and the first one to serve. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..contracts.record_log import Bounds, Continuity, RecordLog, resume


class LogPosition(NamedTuple):
    """The position up to which a log was served; an empty identity: not at all.

    :ivar identity: identity of the log, which changes when it is made again
    :ivar served: sequence of the last record
    :ivar time: time of its storage; None: not known
    """

    identity: str = ""
    served: int = 0
    time: int | None = None

    def resume(self, log: Callable[[], RecordLog], bounds: Bounds) -> tuple[Continuity, int]:
        return resume(log, bounds, self.identity, self.served + 1, self.time)

    def in_log(self, log: RecordLog, bounds: Bounds) -> tuple[LogPosition, str]:
        """The position in the log as it is now, and a text about the change of the log; empty: there was none."""
        state, begin = self.resume(lambda: log, bounds)
        if state is Continuity.UNBROKEN:
            return self, ""
        if state is Continuity.RECREATED:
            text = f"the log {log.name} was deleted and made again: all of it is new"
        elif state is Continuity.REMOVED:
            text = f"records {self.served + 1} to {begin - 1} are gone from the log {log.name}"
        else:
            back = f"went back behind {self.served} (restored from an older copy?)"
            text = f"the sequences of the log {log.name} {back}: going on at {begin}"
        return LogPosition(bounds.identity, begin - 1), text


def first_position(begin: str, saved: LogPosition, bounds: Bounds, at_first: str) -> LogPosition:
    """The first position: ``begin``, which is ``saved`` (else ``at_first``), ``earliest``, ``latest`` or a sequence."""
    if begin == "saved":
        if saved.identity:
            return saved
        begin = at_first
    if begin == "latest":
        return LogPosition(bounds.identity, bounds.last, bounds.time)
    first = bounds.first if begin == "earliest" else min(max(int(begin), 1), bounds.last + 1)
    return LogPosition(bounds.identity, first - 1)
