"""Missing messages, by the numbers of a topic and sender (MdSeqNum, MamaSenderId) or as the log rejected them. Pure.

An update has the last number plus one; an image and a recap have that of the last update. A message that stands for
several (wConflateCount) may be as many higher. A publisher that does not count sends 0; a lower number means that it
counts anew. Each sender of a topic counts for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from mama_spark.mama.messages.sequence_numbers import next_number, steps_ahead
from mama_spark.openmama.wire.records import MamaGapCause, MamaRecord, MamaRecordKind

MAX_TOPICS = 1_000_000


class MissingNumbers(NamedTuple):
    """Missing numbers; both ends included."""

    first: int
    last: int


class GapTracker:
    """Numbers of topics and senders.

    :param most: topics and senders that are remembered; the one that was silent longest is forgotten
    """

    def __init__(self, most: int = MAX_TOPICS) -> None:
        self._most = most
        self._last: OrderedDict[tuple[str, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def update(self, topic: str, sender: int, number: int, stands_for: int = 1) -> MissingNumbers | None:
        """Take the number of a message, which is not 0; return the numbers that have not come before it.

        :param stands_for: messages that it was conflated from; 0 = it is an image or recap, which repeats what the
            message with its number said: if that one has not come, it will not
        """
        last = self._replace((topic, sender), number)
        ahead = None if last is None else steps_ahead(last, number)
        if last is None or ahead is None or ahead <= stands_for:
            return None
        return MissingNumbers(next_number(last), next_number(last, ahead - stands_for))

    def continues(self, topic: str, sender: int, first: int, last: int) -> bool:
        """Take published messages ``first`` to ``last``; False: another number was expected, nothing was taken."""
        key = topic, sender
        known = self._last.get(key)
        if known is not None and first != known + 1:
            return False
        self._replace(key, last)
        return True

    def restore(self, topic: str, sender: int, number: int) -> None:
        self._replace((topic, sender), number)

    def _replace(self, key: tuple[str, int], number: int) -> int | None:
        last = self._last.pop(key, None)
        self._last[key] = number
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        return last


class _Numbered(NamedTuple):
    """A run of numbers: a topic in the log, a sender, and the cause of a gap."""

    topic: str
    sender: int
    cause: int


class RefusedMessages:
    """Messages whose records the log rejected, until a gap record says so there. A full log rejects gap records, too;
    their content is merged and kept until the log takes it. Consecutive numbers take the memory of one; messages
    without numbers are one interval from 0 to 0.

    Tango's recorder has a model of its own (:class:`~mama_spark.tango.log.unrecorded.PendingGaps`): its gap records
    have one range and a number a topic, tell why, and are saved with the state."""

    def __init__(self) -> None:
        self._intervals: dict[_Numbered, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._intervals.values()))

    def add(self, gaps: Iterable[MamaRecord]) -> None:
        """Add gap records: new ones, or ones that the log rejected."""
        for gap in gaps:
            intervals = self._intervals.setdefault(_Numbered(gap.topic, gap.sender, gap.cause), [])
            _append(intervals, (gap.first, gap.last))

    def take(self, received: int) -> list[MamaRecord]:
        """Take everything as gap records, and forget it."""
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
