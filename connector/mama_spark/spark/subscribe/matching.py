"""Plans the end of the next micro-batch: limits count matching records if the middleware can, else all records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mama_spark.contracts.record_log import Bounds, CurrentRecords, MatchRange, RecordLog, RecordLogBridge

from .offsets import Offsets, advance, backlog_of, share_evenly


@dataclass(frozen=True)
class BatchLimits:
    """Maximum numbers of records and, approximately, of rows in a micro-batch; None = no limit."""

    records: int | None
    rows: int | None


def next_offsets(
    bridge: RecordLogBridge,
    start: Offsets,
    bounds: Mapping[str, Bounds],
    topics: Sequence[str],
    limits: BatchLimits,
    *,
    selective: bool,
    snapshots: Mapping[str, CurrentRecords] | None = None,
) -> Offsets:
    """End of the next batch after ``start`` (from :func:`.offsets.reconcile`). ``selective``: the query reads only a
    part of the records; ``snapshots``: current records, by log of which only these are read."""
    backlog = {stream: n for stream, n in backlog_of(start, bounds).items() if n}
    if limits.rows is None and (limits.records is None or sum(backlog.values()) <= limits.records):
        return advance(start, bounds, None)
    logs = {stream: bridge.log(stream) for stream in backlog}
    counts: dict[str, RecordLog | CurrentRecords] = {**logs, **(snapshots or {})}
    selective = selective or bool(snapshots)
    if selective and (found := _by_matches(logs, counts, start, bounds, topics, limits)) is not None:
        return found
    each = {} if limits.rows is None else _rows_per_sequence(logs, start, bounds, topics)
    return advance(start, bounds, limits.records, limits.rows, each)


def matching_records(
    bridge: RecordLogBridge, start: Offsets, bounds: Mapping[str, Bounds], topics: Sequence[str], most: int
) -> int | None:
    """Number of unread records that match, counted up to ``most``; None = a log cannot tell."""
    found = 0
    for stream, n in backlog_of(start, bounds).items():
        if not n or found >= most:
            continue
        log, before = bridge.log(stream), start[stream].next - 1
        part = log.match_range(before, bounds[stream].last, topics, most)
        if part is None:
            return None
        whole = part.last >= bounds[stream].last
        found += part.matching if whole else most  # a range near the limit may hold more
    return found


def _rows_per_sequence(
    logs: Mapping[str, RecordLog], start: Offsets, bounds: Mapping[str, Bounds], topics: Sequence[str]
) -> dict[str, float]:
    from .packed_rows import rows_per_sequence

    return {s: rows_per_sequence(log, start[s].next - 1, bounds[s].last, topics) for s, log in logs.items()}


def _by_matches(
    logs: Mapping[str, RecordLog],
    counts: Mapping[str, RecordLog | CurrentRecords],
    start: Offsets,
    bounds: Mapping[str, Bounds],
    topics: Sequence[str],
    limits: BatchLimits,
) -> Offsets | None:
    """End of the next batch by the matches in ``counts``; None = a log cannot tell."""
    last = {stream: bounds[stream].last for stream in logs}
    if limits.records is not None:
        found = _divided(counts, start, last, topics, limits.records, dict.fromkeys(logs, 1.0))
        if found is None:
            return None
        last = {stream: one.last for stream, one in found.items()}
    rows: dict[str, int | None] = dict.fromkeys(logs)
    if limits.rows is not None:
        from .packed_rows import rows_per_record

        each = {s: rows_per_record(log, start[s].next - 1, last[s], topics) for s, log in logs.items()}
        found = _divided(counts, start, last, topics, limits.rows, each)
        if found is None:
            return None
        last = {stream: one.last for stream, one in found.items()}
        rows = {stream: round(one.matching * each[stream]) for stream, one in found.items()}
    if all(last[stream] < start[stream].next for stream in last):
        return start
    return {
        s: replace(p, next=last[s] + 1 if s in last else p.next, begin=p.next, rows=rows.get(s))
        for s, p in start.items()
    }


def _divided(
    logs: Mapping[str, RecordLog | CurrentRecords],
    start: Offsets,
    last: Mapping[str, int],
    topics: Sequence[str],
    limit: int,
    each: Mapping[str, float],
) -> dict[str, MatchRange] | None:
    """Range of each stream, so that all together count at most ``limit``; ``last``: latest end of each range, ``each``:
    count of one matching record of a stream."""

    def part_of(stream: str, limit: int) -> MatchRange | None:
        before, most = start[stream].next - 1, max(1, int(limit / each[stream]))
        return logs[stream].match_range(before, last[stream], topics, most)

    found = dict[str, MatchRange]()
    for stream in logs:
        whole = part_of(stream, limit)
        if whole is None:
            return None
        found[stream] = whole
    counts = {stream: round(one.matching * each[stream]) for stream, one in found.items()}
    for stream, turn in share_evenly(counts, limit, start).items():
        if turn >= counts[stream]:
            continue
        none = MatchRange(start[stream].next - 1, 0)
        found[stream] = (part_of(stream, turn) if turn else None) or none
    return found
