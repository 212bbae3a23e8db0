"""Series of errors: of equal errors of one topic the first is a record; a summary has the number of the rest. Pure.

A summary is a record of kind ERROR with the frames of the last error. Its fields ``count``, ``first`` and ``last`` are
the number of errors since the record before it, and the counters of the first and the last of them (0: none).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import DevError


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors that were not recorded one by one.

    :ivar topic: Tango topic
    :ivar received: when the last one arrived, nanoseconds since the epoch
    :ivar frames: frames of the last one
    :ivar first: counter of the first one; 0: it has none
    :ivar last: counter of the last one; 0: it has none
    """

    topic: bytes
    received: int
    frames: Sequence[bytes]
    count: int
    first: int
    last: int


@dataclass(slots=True)
class _Series:
    """:ivar rest: errors that no record tells of"""

    reasons: tuple[str, ...]
    next_summary: int
    rest: ErrorSummary | None = None


class ErrorSeries:
    """Series of errors by topic.

    :param period_ns: between two summaries of a series that goes on; 0: every error is a record
    """

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._open: dict[bytes, _Series] = {}

    def __repr__(self) -> str:
        return f"<ErrorSeries {len(self._open)} open>"

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._open

    def __len__(self) -> int:
        return len(self._open)

    def continues(
        self, topic: bytes, errors: Sequence[DevError], received: int, frames: Sequence[bytes], ctr: int
    ) -> bool:
        """Whether an error continues the series of its topic; then it is counted, not recorded. If not, it begins one:
        the caller ends the one before by :meth:`end` first.

        :param received: nanoseconds since the epoch
        :param ctr: counter of its event; 0: none
        """
        if not self._period_ns:
            return False
        reasons = tuple(error.reason for error in errors)
        series = self._open.get(topic)
        if series is None or series.reasons != reasons:
            return False
        before = series.rest
        count, first = (before.count, before.first) if before else (0, ctr)
        series.rest = ErrorSummary(topic, received, frames, count + 1, first, ctr)
        return True

    def begin(self, topic: bytes, errors: Sequence[DevError], received: int) -> None:
        """Note the first error of a series, which is recorded."""
        if self._period_ns:
            self._open[topic] = _Series(tuple(error.reason for error in errors), received + self._period_ns)

    def end(self, topic: bytes) -> ErrorSummary | None:
        """End the series of a topic; returns its summary, None if nothing is to be summed up."""
        series = self._open.pop(topic, None)
        return None if series is None else series.rest

    def due(self, now: int) -> list[ErrorSummary]:
        """Return the summaries of series that go on and whose period is over.

        :param now: nanoseconds since the epoch
        """
        due = [series for series in self._open.values() if now >= series.next_summary]
        found = [series.rest for series in due if series.rest is not None]
        for series in due:
            series.next_summary, series.rest = now + self._period_ns, None
        return found

    def end_all(self) -> list[ErrorSummary]:
        """End all series."""
        found = [self.end(topic) for topic in list(self._open)]
        return [summary for summary in found if summary is not None]
