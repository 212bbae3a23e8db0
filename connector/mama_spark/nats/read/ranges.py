"""Ranges of sequences: what is missing in a stream, and how far so many messages reach. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from mama_spark.contracts.message import Int64s
from mama_spark.contracts.record_log import MatchRange

#: A range that has this part of its limit is full enough: to find a better end costs more than it gains.
_ENOUGH = 0.9
#: Questions about one end.
_MOST_STEPS = 40


def missing_ranges(present: Iterable[Int64s], low: int, high: int) -> list[tuple[int, int]]:
    """Ranges, both ends inclusive, of numbers in ``low .. high`` that are not in ``present``, which ascends from array
    to array."""
    found: list[tuple[int, int]] = []
    for numbers in present:
        edges = np.concatenate(([low - 1], numbers))
        gaps = np.flatnonzero(np.diff(edges) > 1)
        found += zip((edges[gaps] + 1).tolist(), (edges[gaps + 1] - 1).tolist(), strict=True)
        low = int(edges[-1]) + 1
    return [*found, (low, high)] if low <= high else found


def merge_ranges(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges; neighbours become one."""
    result: list[tuple[int, int]] = []
    for low, high in found:
        if result and result[-1][1] + 1 == low:
            low = result.pop()[0]
        result.append((low, high))
    return result


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
