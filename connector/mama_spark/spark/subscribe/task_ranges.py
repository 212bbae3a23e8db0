"""Splits the ranges of a batch into those of its tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from .offsets import ReadRange

MIN_TASK_ROWS = 10_000
#: Limits the work that a repeated task does again.
MAX_TASK_ROWS = 250_000


def task_count(total: int, wanted: int | None, cores: int) -> int:
    """Number of tasks for ``total`` rows; ``wanted``: ``minPartitions``, ``cores``: tasks that run at once."""
    if wanted is not None:
        return wanted
    return max(1, min(-(-total // MIN_TASK_ROWS), max(cores, -(-total // MAX_TASK_ROWS))))


def split_ranges(whole: Iterable[ReadRange], n: int, most: Mapping[str, int | None] | None = None) -> list[ReadRange]:
    """At least ``n`` ranges (if there are enough sequences) of about equal length, at most ``most`` of a stream. The
    same input gives the same ranges, so a batch that is planned again has the same tasks."""
    whole = [r for r in whole if len(r)]
    total = sum(map(len, whole))
    found = []
    for r in whole:
        pieces = min(len(r), (most or {}).get(r.stream) or len(r), max(1, -(-len(r) * n // total)))
        edges = [r.after + len(r) * i // pieces for i in range(pieces + 1)]
        found += [replace(r, after=a, up_to=b) for a, b in pairwise(edges)]
    return found
