"""Answers of the server about records that it need not send: numbers of matches, missing ones, sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

import numpy as np

from mama_spark.contracts.message import Int64s
from mama_spark.contracts.record_log import MatchRange

from ..jetstream.answers import StreamInfo
from ..jetstream.consumers import probe
from .log_connection import LogConnection
from .range_reader import RangeReader, SequenceRange, as_records

#: Maximum number of deleted records that the server is asked to list, in one message of any size. With more, the
#: existing records are read instead.
MOST_LISTED = 100_000
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2261, 12, 31, tzinfo=UTC)  # times that the server accepts
#: Fraction of its limit at which a range is full enough: a better end costs more than it gains.
_ENOUGH = 0.9
#: Questions about one end.
_MOST_STEPS = 40


class StreamIndex:
    """``info``: state of the stream when its log was opened."""

    def __init__(self, logs: LogConnection, info: StreamInfo) -> None:
        self._logs, self._info = logs, info

    def count(self, filters: list[str], after: int) -> int:
        """Number of records that match after a sequence: pending for a consumer that begins there. The server computes
        it from its index of subjects, block by block, without reading messages."""
        where = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(0, after) + 1, "filter_subjects": filters}
        return probe(self._logs.api, self._info, where).pending

    def first_at(self, time: int) -> int:
        where = {"deliver_policy": "by_start_time", "opt_start_time": _rfc3339(time)}
        return probe(self._logs.api, self._info, where).position + 1

    def missing(self, info: StreamInfo, after: int, up_to: int) -> list[tuple[int, int]]:
        """See :meth:`.RecordLog.missing`; ``info``: state of the stream at the moment in question."""
        bounds = info.bounds
        low, high = max(0, after) + 1, min(up_to, bounds.last)
        found = [(low, min(high, bounds.first - 1))] if low <= high and low < bounds.first else []
        low = max(low, bounds.first)
        if low > high or not info.deleted:
            return found
        if info.deleted <= MOST_LISTED:
            listed = self._logs.stream(self._info.name, deleted_details=True).deleted_sequences
            return merge_ranges(found + [(number, number) for number in listed if low <= number <= high])
        wanted = SequenceRange(low - 1, high, [], headers=False, payloads=False)
        present = (records.sequences for records in RangeReader(self._logs, self._info, wanted, as_records(wanted)))
        return merge_ranges(found + missing_ranges(present, low, high))


def missing_ranges(present: Iterable[Int64s], low: int, high: int) -> list[tuple[int, int]]:
    """Ranges, both ends inclusive, of numbers in ``low .. high`` that are missing in ``present`` (ascending arrays)."""
    found: list[tuple[int, int]] = []
    for numbers in present:
        edges = np.concatenate(([low - 1], numbers))
        gaps = np.flatnonzero(np.diff(edges) > 1)
        found += zip((edges[gaps] + 1).tolist(), (edges[gaps + 1] - 1).tolist(), strict=True)
        low = int(edges[-1]) + 1
    return [*found, (low, high)] if low <= high else found


def merge_ranges(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges, with neighbours merged."""
    result: list[tuple[int, int]] = []
    for low, high in found:
        if result and result[-1][1] + 1 == low:
            low = result.pop()[0]
        result.append((low, high))
    return result


def match_range(limit: int, after: int, up_to: int, count: Callable[[int], int]) -> MatchRange:
    """See :meth:`.RecordLog.match_range`; ``count``: number of matches above a sequence, which may grow at any time."""

    def found(last: int) -> int:
        behind = count(last)
        return count(after) - behind  # asked last: arrivals between make it too many, never too few

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


def _rfc3339(time: int) -> str:
    try:
        moment = _FIRST + timedelta(microseconds=time)
    except OverflowError:
        moment = _FIRST if time < 0 else _LAST
    return min(max(moment, _FIRST), _LAST).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
