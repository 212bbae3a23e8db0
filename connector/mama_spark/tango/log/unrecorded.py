"""Sums up what gets no record of its own: repeated errors, and records that the log rejected. Pure.

Of equal errors of one topic the first is a record; a summary has the number of the rest. It is a record of kind ERROR
with the frames of the last error. Its fields ``count``, ``first`` and ``last`` are the number of errors since the
record before it, and the counters of the first and the last of them (0: none).

Gap records report rejected records once the log accepts writes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..events.sequence_tracker import SequenceGap, discontinuity, is_counted
from ..types import DevError
from .record_builder import RecordBuilder
from .records import UNKNOWN_COUNT, DecodedRecords, GapCause, GapNumbers, RecordKind


@dataclass(slots=True)
class _Series:
    """Consecutive errors of one topic with the same reasons.

    :ivar next_summary: time from which a summary is due, in nanoseconds since the epoch
    :ivar rest: errors that are in no record yet: arrival and frames of the last one, and numbers of all; None: none
    """

    reasons: tuple[str, ...]
    next_summary: int
    rest: tuple[int, Sequence[bytes], GapNumbers] | None = None


class ErrorSeries:
    """Series of errors by Tango topic, whose records have the topic ``name`` gives. Methods add the summaries that are
    due, ``period_ns`` after the last one of a series that goes on; 0: every error is a record."""

    def __init__(self, period_ns: int, name: Callable[[bytes], str]) -> None:
        self._period_ns, self._name = period_ns, name
        self.open: dict[bytes, _Series] = {}

    def begins(
        self, records: RecordBuilder, topic: bytes, errors: Sequence[DevError], received: int, frames: Sequence[bytes],
        ctr: int,
    ) -> bool:  # fmt: skip
        """Whether an error begins a series, and is to be recorded; else it is counted. ``received`` is nanoseconds
        since the epoch, ``ctr`` the counter of its event (0: none)."""
        if not self._period_ns:
            return True
        reasons, series = tuple(error.reason for error in errors), self.open.get(topic)
        if series is not None and series.reasons == reasons:
            first, count = (series.rest[2].first, series.rest[2].size) if series.rest else (ctr, 0)
            series.rest = received, frames, GapNumbers(first, ctr, count + 1, GapCause.NONE)
            return False
        self.end(records, topic)
        self.open[topic] = _Series(reasons, received + self._period_ns)
        return True

    def end(self, records: RecordBuilder, *topics: bytes) -> None:
        for topic in topics:
            if topic in self.open:
                self._sum_up(records, topic, self.open.pop(topic))

    def due(self, records: RecordBuilder, now: int) -> None:
        """Sum up the series that go on and whose period is over; ``now`` is nanoseconds since the epoch."""
        for topic, series in self.open.items():
            if now >= series.next_summary:
                self._sum_up(records, topic, series)
                series.next_summary = now + self._period_ns

    def _sum_up(self, records: RecordBuilder, topic: bytes, series: _Series) -> None:
        if series.rest is not None:
            received, frames, numbers = series.rest
            records.add_gap(RecordKind.ERROR, self._name(topic), received, frames, numbers)
            series.rest = None


_FROM_SERVERS = (RecordKind.EVENT, RecordKind.INITIAL, RecordKind.RESUBSCRIBED, RecordKind.CHECKED)
_VALUES = (*_FROM_SERVERS, RecordKind.ERROR)
_GAPS = (RecordKind.GAP, RecordKind.RESTART)
#: Reason of the error record that says why a topic's records are rejected. It is no event, so no gap counts it.
RECORD_REFUSED = "RecordRefused"


class PendingGaps:
    """Rejected records of each Tango topic: first counter, last counter, and number of records; and why."""

    def __init__(self) -> None:
        self._gaps: dict[bytes, tuple[int, int, int]] = {}
        self._reasons: dict[bytes, str] = {}  #: those that are not recorded yet; empty: it is

    def refused(self, records: DecodedRecords, reasons: Sequence[str] = ()) -> None:
        """Add rejected events, values that were read, and gaps, and why: one text a record; empty: unknown."""
        for row, reason in enumerate(reasons):
            topic = records.frames.topics[row]
            if is_own_error(records, row) or (records.kind[row] in _FROM_SERVERS and topic not in self._reasons):
                self._reasons[topic] = reason
        for row, kind in enumerate(records.kind.tolist()):
            topic = records.frames.topics[row]
            if is_own_error(records, row):
                continue
            if kind in _VALUES:
                ctr = int(records.ctr[row]) if kind == RecordKind.EVENT else 0
                self._add(topic, ctr, ctr, 1)
            elif kind in _GAPS:
                count = int(records.count[row]) if kind == RecordKind.GAP else UNKNOWN_COUNT
                self._add(topic, int(records.first[row]), int(records.last[row]), count)

    def _add(self, topic: bytes, first: int, last: int, count: int) -> None:
        """Extend the gap of a topic; the counter 0 means none. Rejections arrive in any order."""
        before = self._gaps.get(topic)
        if before is not None:
            first, last = min(before[0] or first, first or before[0]), max(before[1], last)
            count = UNKNOWN_COUNT if UNKNOWN_COUNT in (count, before[2]) else count + before[2]
        self._gaps[topic] = (first, last, count)

    def take(self) -> list[tuple[bytes, GapNumbers]]:
        """Remove and return all gaps, for the caller to report."""
        gaps, self._gaps = self._gaps, {}
        return [(topic, GapNumbers(*numbers, GapCause.REFUSED)) for topic, numbers in gaps.items()]

    def take_reasons(self) -> list[tuple[bytes, str]]:
        """Topic and reason of the first rejection of each, for the caller to report."""
        found = [(topic, reason) for topic, reason in self._reasons.items() if reason]
        self._reasons.update((topic, "") for topic, _ in found)
        return found

    def state(self) -> list[tuple[str, int, int, int]]:
        """The gaps as a STATE record contains them."""
        return [(topic.decode("latin-1"), *numbers) for topic, numbers in self._gaps.items()]

    def restore(self, state: Iterable[Any]) -> None:
        """The inverse of :meth:`state`.

        :raises ValueError: the state is invalid
        """
        self._gaps = {str(t).encode("latin-1"): (int(f), int(last), int(n)) for t, f, last, n in state}

    def replay(self, topic: bytes, ctr: int, last: int) -> int:
        """Apply an event that the log contains; returns the newest counter. If counters before it are missing, the log
        rejected these events and the recorder ended before it reported the gap; or they follow later, if the log does
        not keep the order.

        :param last: newest counter before the event, or last counter of a reported gap; 0: unknown
        """
        first, until, count = self._gaps.get(topic, (0, 0, 0))
        if first <= ctr <= until and ctr < last:
            self._gaps[topic] = (first, until, count - 1)
            if count == 1:
                del self._gaps[topic]
            return last
        missing = discontinuity(last, ctr) if is_counted(last) else None
        if isinstance(missing, SequenceGap):
            self._add(topic, missing.first, missing.last, missing.size)
        return ctr

    def forget(self, topic: bytes) -> None:
        """Forget the gap of a topic whose record the log has."""
        self._gaps.pop(topic, None)


def is_own_error(records: DecodedRecords, row: int) -> bool:
    return records.kind[row] == RecordKind.ERROR and RECORD_REFUSED.encode() in records.frames.datas[row]
