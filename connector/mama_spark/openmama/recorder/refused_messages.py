"""Messages whose records the log rejected, until a gap record says so there. Pure.

A log that is full rejects gap records, too: what they say is kept, and put together, until the log takes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mama_spark.openmama.wire.log.records import MamaGapCause, MamaRecord, MamaRecordKind


class _Numbered(NamedTuple):
    """What has numbers of its own.

    :ivar topic: in the log
    """

    topic: str
    sender: int
    cause: int


class RefusedMessages:
    """Numbers by topic, sender and cause; those that follow each other take no more memory than one.

    Messages without numbers are one interval from 0 to 0, however many they are.
    """

    def __init__(self) -> None:
        self._intervals: dict[_Numbered, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._intervals.values()))

    def add(self, gaps: Iterable[MamaRecord]) -> None:
        """Gap records to write; those that were written and rejected, too."""
        for gap in gaps:
            intervals = self._intervals.setdefault(_Numbered(gap.topic, gap.sender, gap.cause), [])
            _append(intervals, (gap.first, gap.last))

    def take(self, received: int) -> list[MamaRecord]:
        """All of it as gap records, and forget it."""
        taken, self._intervals = self._intervals, {}
        return [
            MamaRecord(MamaRecordKind.GAP, key.topic, received, cause=MamaGapCause(key.cause), sender=key.sender,
                       first=first, last=last)
            for key, intervals in taken.items()
            for first, last in _joined(intervals)
        ]  # fmt: skip


def _joined(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for interval in sorted(intervals):
        _append(found, interval)
    return found


def _append(intervals: list[tuple[int, int]], interval: tuple[int, int]) -> None:
    """Equal numbers of a publisher that counted anew stay apart: they are other messages."""
    first, last = interval
    if intervals and (intervals[-1][1] + 1 == first or intervals[-1] == interval == (0, 0)):
        intervals[-1] = intervals[-1][0], last
    else:
        intervals.append(interval)
