"""Tracks records that the log refused; they are reported as gap records once it accepts writes again. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..events.sequence_tracker import SequenceGap, discontinuity, is_counted
from .records import UNKNOWN_COUNT, DecodedRecords, GapCause, GapNumbers, RecordKind

_VALUES = (RecordKind.EVENT, RecordKind.INITIAL, RecordKind.RESUBSCRIBED, RecordKind.ERROR)
_GAPS = (RecordKind.GAP, RecordKind.RESTART)


class PendingGaps:
    """For each topic of Tango: first and last counter that the log refused, and how many records."""

    def __init__(self) -> None:
        self._gaps: dict[bytes, tuple[int, int, int]] = {}

    def __repr__(self) -> str:
        return f"<PendingGaps {len(self._gaps)} gaps>"

    def __len__(self) -> int:
        return len(self._gaps)

    def refused(self, records: DecodedRecords) -> None:
        """The log refused these records: events, values that were read, and reports of gaps."""
        for row, kind in enumerate(records.kind.tolist()):
            topic = records.frames.topics[row]
            if kind in _VALUES:
                ctr = int(records.ctr[row]) if kind == RecordKind.EVENT else 0
                self._add(topic, ctr, ctr, 1)
            elif kind in _GAPS:
                count = int(records.count[row]) if kind == RecordKind.GAP else UNKNOWN_COUNT
                self._add(topic, int(records.first[row]), int(records.last[row]), count)

    def _add(self, topic: bytes, first: int, last: int, count: int) -> None:
        """Extend the gap of a topic; the counter 0 stands for none. Refusals arrive in any order."""
        before = self._gaps.get(topic)
        if before is not None:
            first, last = min(before[0] or first, first or before[0]), max(before[1], last)
            count = UNKNOWN_COUNT if UNKNOWN_COUNT in (count, before[2]) else count + before[2]
        self._gaps[topic] = (first, last, count)

    def take(self) -> list[tuple[bytes, GapNumbers]]:
        """Remove and return all gaps, to be reported now."""
        gaps, self._gaps = self._gaps, {}
        return [(topic, GapNumbers(*numbers, GapCause.REFUSED)) for topic, numbers in gaps.items()]

    # --- restored from the log ---

    def state(self) -> list[tuple[str, int, int, int]]:
        """For the recorder's STATE record."""
        return [(topic.decode("latin-1"), *numbers) for topic, numbers in self._gaps.items()]

    def restore(self, state: Iterable[Any]) -> None:
        """:raises ValueError: this is no such state"""
        self._gaps = {str(t).encode("latin-1"): (int(f), int(last), int(n)) for t, f, last, n in state}

    def replay(self, topic: bytes, ctr: int, last: int) -> int:
        """Replay an event of the log. Missing events before it were refused, and the recorder ended before it reported
        them; unless they follow later, in a log that keeps no order.

        :param last: newest counter before, or the end of a reported gap; 0: unknown
        :returns: the newest counter
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
        """To be called when the log has the report of this gap."""
        self._gaps.pop(topic, None)
