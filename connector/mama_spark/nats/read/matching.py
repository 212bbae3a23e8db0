"""Finds the end of a range that has so many matching messages, by counting those behind a sequence. Pure."""

from __future__ import annotations

from collections.abc import Callable

from mama_spark.contracts.record_log import MatchRange

#: A range that has this part of its limit is full enough: to find a better end costs more than it gains.
_ENOUGH = 0.9
#: Questions about one end.
_MOST_STEPS = 40


def match_range(limit: int, after: int, up_to: int, count: Callable[[int], int]) -> MatchRange:
    """See :class:`~mama_spark.contracts.record_log.RecordLog`.

    :param count: messages that match and have a higher sequence; more may come at any time
    """

    def found(last: int) -> int:
        behind = count(last)
        return count(after) - behind  # asked last: what arrived meanwhile makes it too many, never too few

    total = found(up_to)
    if total <= limit:
        return MatchRange(up_to, total)
    low, matching, high, middle = after, 0, up_to, after + (up_to - after) * limit // total
    for _ in range(_MOST_STEPS):
        if high - low <= 1:
            break
        middle = min(max(middle, low + 1), high - 1)
        n = found(middle)
        if n > limit:
            high = middle
        else:
            low, matching = middle, n
            if n >= _ENOUGH * limit:
                break
        middle = (low + high) // 2
    return MatchRange(low, matching) if low > after else MatchRange(after + 1, 1)
