"""What the log refused of a recorder: told by gap records as soon as it takes something again. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .records import UNKNOWN_COUNT, DecodedRecords, GapCause, RecordKind

Numbers = tuple[int, int, int, int]  #: first, last, count, cause
_VALUES = (RecordKind.EVENT, RecordKind.INITIAL, RecordKind.RESUBSCRIBED, RecordKind.ERROR)
_GAPS = (RecordKind.GAP, RecordKind.RESTART)


class PendingGaps:
    """Per topic of Tango: the counters from which and up to which something was refused, and how much."""

    def __init__(self) -> None:
        self._gaps: dict[bytes, tuple[int, int, int]] = {}

    def __repr__(self) -> str:
        return f"<PendingGaps {len(self._gaps)} gaps>"

    def __len__(self) -> int:
        return len(self._gaps)

    def refuse(self, recorded: DecodedRecords) -> None:
        """These records are not in the log: values, and gaps of which nobody was told so."""
        for row, kind in enumerate(recorded.kind.tolist()):
            topic = recorded.frames.topics[row]
            if kind in _VALUES:
                ctr = int(recorded.ctr[row]) if kind == RecordKind.EVENT else 0
                self._add(topic, ctr, ctr, 1)
            elif kind in _GAPS:
                count = int(recorded.count[row]) if kind == RecordKind.GAP else UNKNOWN_COUNT
                self._add(topic, int(recorded.first[row]), int(recorded.last[row]), count)

    def _add(self, topic: bytes, first: int, last: int, count: int) -> None:
        """0 as a counter: there is none. Refusals come in any order."""
        before = self._gaps.get(topic)
        if before is not None:
            first, last = min(before[0] or first, first or before[0]), max(before[1], last)
            count = UNKNOWN_COUNT if UNKNOWN_COUNT in (count, before[2]) else count + before[2]
        self._gaps[topic] = (first, last, count)

    def take(self) -> list[tuple[bytes, Numbers]]:
        """All of it, to be told now."""
        gaps, self._gaps = self._gaps, {}
        return [(topic, (*numbers, GapCause.REFUSED)) for topic, numbers in gaps.items()]

    # --- over the end of a recorder ---

    def state(self) -> list[tuple[str, int, int, int]]:
        """For the note of what a recorder knows."""
        return [(topic.decode("latin-1"), *numbers) for topic, numbers in self._gaps.items()]

    def restore(self, state: Iterable[Any]) -> None:
        """:raises ValueError: it is no such state"""
        self._gaps = {str(t).encode("latin-1"): (int(f), int(last), int(n)) for t, f, last, n in state}

    def replay(self, topic: bytes, ctr: int, last: int) -> int:
        """An event that the log has. What is missing in front of it was refused, and the recorder ended before it told;
        unless it comes later, where the log keeps no order.

        :param last: the newest counter before, or the last one of a gap; 0: nobody knows
        :returns: the newest counter
        """
        first, until, count = self._gaps.get(topic, (0, 0, 0))
        if first <= ctr <= until and ctr < last:
            self._gaps[topic] = (first, until, count - 1)
            if count == 1:
                del self._gaps[topic]
            return last
        if last and ctr > last + 1:
            self._add(topic, last + 1, ctr - 1, ctr - last - 1)
        return ctr

    def forget(self, topic: bytes) -> None:
        """It was told."""
        self._gaps.pop(topic, None)
