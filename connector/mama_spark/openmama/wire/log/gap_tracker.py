"""Finds messages that are missing, from the numbers of a topic and sender (MdSeqNum, MamaSenderId). Pure.

An update has the number of the last one and one more; an image and a recap have that of the last update. A message that
stands for several (wConflateCount) may have a number higher by as many. Number 0 is of a publisher that does not count.
A lower number is of a publisher that counts anew. Another sender of the same topic counts for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from mama_spark.mama.messages.sequence_numbers import next_number, steps_ahead

MAX_TOPICS = 1_000_000


class MissingNumbers(NamedTuple):
    """Numbers that did not come; both included."""

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
        """A published message.

        :param stands_for: messages that it was conflated from
        """
        if not number:
            return None
        last = self._replace((topic, sender), number)
        ahead = None if last is None else steps_ahead(last, number)
        if last is None or ahead is None or ahead <= max(1, stands_for):
            return None
        return MissingNumbers(next_number(last, 1), next_number(last, ahead - max(1, stands_for)))

    def continues(self, topic: str, sender: int, first: int, last: int) -> bool:
        """Take published messages with the consecutive numbers from ``first`` to ``last``; False: something else than
        ``first`` was expected, and nothing was taken."""
        key = topic, sender
        known = self._last.get(key)
        if known is not None and first != known + 1:
            return False
        self._replace(key, last)
        return True

    def image(self, topic: str, sender: int, number: int) -> MissingNumbers | None:
        """An image or recap: what is between its number and the last one has not come, and will not."""
        if not number:
            return None
        key = topic, sender
        last = self._last.get(key)
        ahead = None if last is None else steps_ahead(last, number)
        if last == number:
            return None
        self._replace(key, number)
        if last is None or ahead is None:
            return None
        return MissingNumbers(next_number(last, 1), number)

    def restore(self, topic: str, sender: int, number: int) -> None:
        """What an earlier recorder had of this topic and sender."""
        if number:
            self._replace((topic, sender), number)

    def _replace(self, key: tuple[str, int], number: int) -> int | None:
        last = self._last.pop(key, None)
        self._last[key] = number
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        return last
