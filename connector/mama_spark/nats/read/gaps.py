"""Ranges of sequences that are missing in a stream; both ends of a range are inclusive. Pure."""

from __future__ import annotations

import numpy as np

from mama_spark.contracts.message import Int64s


def missing_ranges(present: Int64s, first: int, last: int) -> list[tuple[int, int]]:
    """Ranges, both ends inclusive, of numbers in ``first .. last`` that are not in ``present``, which ascends."""
    edges = np.concatenate(([first - 1], present, [last + 1]))
    gaps = np.flatnonzero(np.diff(edges) > 1)
    return list(zip((edges[gaps] + 1).tolist(), (edges[gaps + 1] - 1).tolist(), strict=True))


def merge_ranges(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges; neighbours become one."""
    result: list[tuple[int, int]] = []
    for low, high in found:
        if result and result[-1][1] + 1 == low:
            low = result.pop()[0]
        result.append((low, high))
    return result
