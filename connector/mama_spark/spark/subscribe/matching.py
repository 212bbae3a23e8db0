"""Limits a micro-batch by the records that match its topics, where the log can count them without reading them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mama_spark.record_log import Bounds, MatchCounter, RecordLogBridge

from .offsets import Offsets, backlog_of, share_evenly

#: A batch that has this part of its limit is full enough: to find a better end costs more than it gains.
_ENOUGH = 0.9
#: Questions about one end.
_MOST_STEPS = 40


def bounds_within(
    bridge: RecordLogBridge, start: Offsets, bounds: Mapping[str, Bounds], topics: Sequence[str], limit: int
) -> tuple[dict[str, Bounds], bool]:
    """The bounds with ends before which at most ``limit`` records match ``topics``, over all streams together.

    :returns: and whether that is so; False, with the same bounds: a log cannot count, so the limit is one of sequences
    """
    backlog = {stream: n for stream, n in backlog_of(start, bounds).items() if n}
    counts: dict[str, Callable[[int], int]] = {}
    for stream in backlog:
        log = bridge.log(stream)
        if not topics or not isinstance(log, MatchCounter):
            return dict(bounds), False
        counts[stream] = partial(log.count, topics=topics)
    matching = {stream: min(n, counts[stream](start[stream].next - 1)) for stream, n in backlog.items()}
    limited = dict(bounds)
    for stream, most in share_evenly(matching, limit).items():
        if most < matching[stream]:
            before = start[stream].next - 1
            last = before if not most else last_within(most, before, bounds[stream].last, counts[stream])
            limited[stream] = replace(bounds[stream], last=last)
    return limited, True


def last_within(limit: int, after: int, last: int, count: Callable[[int], int]) -> int:
    """The end of a batch that begins behind ``after``: a sequence up to ``last`` before which (itself included) at most
    ``limit`` records match, and nearly as many if there are; at least one sequence.

    :param count: records that match and have a higher sequence; more may come at any time
    """

    def found(up_to: int) -> int:
        behind = count(up_to)
        return count(after) - behind  # asked last: what arrived meanwhile makes it too many, never too few

    total = found(last)
    if total <= limit:
        return last
    low, high, middle = after, last, after + (last - after) * limit // total
    for _ in range(_MOST_STEPS):
        if high - low <= 1:
            break
        middle = min(max(middle, low + 1), high - 1)
        n = found(middle)
        if n > limit:
            high = middle
        else:
            low = middle
            if n >= _ENOUGH * limit:
                break
        middle = (low + high) // 2
    return max(low, after + 1)
