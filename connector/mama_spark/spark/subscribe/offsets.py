"""Offsets of ``mamasub``: the position of a query in its streams, and the ranges of its next batch. Pure.

An offset names for each stream the *next* sequence to read (as Kafka's do) and the identity of the stream. It also
names the first sequence of the batch that it ends (``from``): Spark does not keep the initial offset of a query whose
first batch failed and asks for it again, so the end of a batch alone is enough to plan it.

JSON: ``{"ORDERS": {"next": 18, "identity": "2026-01-31T12:00:00.123Z", "from": 1}}``, ``"rows"`` where rows were
estimated, ``"time"`` of the record before ``next`` where there was one, and ``"snapshot"``, the sequence up to which
only records are read that were the last of their topic at it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mama_spark.contracts.errors import ConfigError, DataLost
from mama_spark.contracts.record_log import EARLIEST, LATEST, Bounds, Continuity, RecordLog, resume

RequestedOffsets = (
    str | int | tuple[tuple[str, int], ...]
)  #: ``earliest``, ``latest``, or a sequence, -1 or -2 for each stream; of times see ``at``


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Position of a query in one stream.

    :ivar next: first unread sequence
    :ivar identity: identity of the stream
    :ivar begin: ``next`` before the batch that ends here; None = no batch does
    :ivar rows: estimated number of rows of that batch; None = not estimated
    :ivar time: time of the record before ``next``, microseconds since the epoch; None = unknown. A record of another
        time there shows that the sequences went back
    :ivar snapshot: up to this sequence, only records are read that were the last of their topic at it; None = all are
    """

    next: int
    identity: str
    begin: int | None = None
    rows: int | None = None
    time: int | None = None
    snapshot: int | None = None

    @property
    def read(self) -> int:
        """The last sequence that the query has read, or listed in a snapshot."""
        return max(self.next - 1, self.snapshot or 0)

    @property
    def in_snapshot(self) -> bool:
        return self.snapshot is not None and self.next <= self.snapshot

    def resume(self, log: Callable[[], RecordLog], bounds: Bounds) -> tuple[Continuity, int]:
        return resume(log, bounds, self.identity, self.next, self.time, self.read)


Offsets = dict[str, StreamPosition]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Records of one stream with ``after < sequence <= up_to``; with ``snapshot``, only the last of each topic at it.
    ``time``: time of the record before them, if known."""

    stream: str
    identity: str
    after: int
    up_to: int
    snapshot: int | None = None
    time: int | None = None

    def __len__(self) -> int:
        return self.up_to - self.after


@dataclass(frozen=True, slots=True)
class Loss:
    """Lost records of one stream, not read by the query; ``gaps``: ranges, both ends inclusive, empty = unknown."""

    stream: str
    gaps: tuple[tuple[int, int], ...]
    why: str

    def __str__(self) -> str:
        if not self.gaps:
            return f"stream {self.stream!r}: {self.why}"
        count = sum(last - first + 1 for first, last in self.gaps)
        shown = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in self.gaps[:5])
        more = f", and {len(self.gaps) - 5} ranges more" if len(self.gaps) > 5 else ""
        many = "sequence" if count == 1 else f"{count:,} sequences"
        return f"stream {self.stream!r}: {many} {shown}{more}: {self.why}"


def data_lost(losses: Iterable[Loss], *, selective: bool = False) -> DataLost:
    """The error for these losses, with advice; ``selective``: the query reads only a part of the records."""
    unsure = "They may all be of topics that it does not read: nobody knows of which they were. " if selective else ""
    return DataLost(
        f"records that this query has not read are gone: {'; '.join(map(str, losses))}. {unsure}Either go on without "
        "them (option failOnDataLoss=false reads what is left and logs what is not), or bring them back and begin "
        "where they are (restore the stream, then a new checkpoint with startingOffsets)"
    )


def to_json(offsets: Offsets) -> dict[str, Any]:
    """JSON for the checkpoint; equal offsets give equal texts."""
    return {stream: _position_json(p) for stream, p in sorted(offsets.items())}


def _position_json(p: StreamPosition) -> dict[str, Any]:
    known = {"from": p.begin, "rows": p.rows, "time": p.time, "snapshot": p.snapshot}
    return {"next": p.next, "identity": p.identity} | {k: n for k, n in known.items() if n is not None}


def from_json(value: Mapping[str, Any]) -> Offsets:
    """Offsets from their JSON. ConfigError: not of this format."""
    try:
        return {
            str(stream): StreamPosition(
                int(p["next"]),
                str(p["identity"]),
                *(int(p[k]) if k in p else None for k in ("from", "rows", "time", "snapshot")),
            )
            for stream, p in value.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ConfigError(
            f"the checkpoint does not hold offsets of mamasub: {value!r}; it is of another query: give this one a "
            "checkpointLocation of its own"
        ) from e


def requested_offsets(
    option: str, bounds: Mapping[str, Bounds], wanted: RequestedOffsets, at: Mapping[str, int] | None = None
) -> Offsets:
    """Start of a new query, or end of a batch read: the first sequences to read, or not to read.

    :param at: sequence of each stream, from a time; overrides ``wanted``
    :raises ConfigError: the JSON names other streams than the topics, or a sequence that is yet to come
    """
    if at is not None:  # limited to the end of the bounds: records may have come since
        return {stream: StreamPosition(max(1, min(at[stream], b.last + 1)), b.identity) for stream, b in bounds.items()}
    words: dict[str | int, int] = {"earliest": EARLIEST, "latest": LATEST}
    asked = dict(wanted) if isinstance(wanted, tuple) else dict.fromkeys(bounds, words[wanted])
    if asked.keys() != bounds.keys():
        raise ConfigError(
            f"option {option} must name the streams that are read ({', '.join(sorted(bounds))}), "
            f"it names {', '.join(sorted(asked))}"
        )
    found = {}
    for stream, b in bounds.items():
        sequence = {EARLIEST: b.first, LATEST: b.last + 1}.get(asked[stream], asked[stream])
        if sequence > b.last + 1:
            raise ConfigError(
                f"option {option}: stream {stream!r} has no sequence {sequence} yet, its last is {b.last}"
            )
        found[stream] = StreamPosition(max(1, sequence), b.identity)
    return found


def reconcile(
    start: Offsets,
    bounds: Mapping[str, Bounds],
    resumed: Mapping[str, tuple[Continuity, int]],
    replacing: Collection[str] = (),
) -> tuple[Offsets, list[Loss]]:
    """Compare the position of a query with the streams; returns where it continues, and what it has lost.

    A new stream (not in ``start``), or one that was deleted and made again, is read from its beginning; the position in
    a missing one is kept, in case it comes back.

    :param resumed: :meth:`StreamPosition.resume` of each present stream of ``start``
    :param replacing: streams whose removed records are no loss, since newer records replaced them
    """
    now, losses = dict(start), []
    for stream, position in start.items():
        found = bounds.get(stream)
        if found is None:
            losses.append(Loss(stream, (), f"it is gone; sequence {position.next} was to be read next"))
            continue
        state, begin = resumed[stream]
        if state is Continuity.RECREATED:
            losses.append(
                Loss(
                    stream, (), "it was deleted and made again since (its sequences mean other records now); what the "
                    f"old one held from sequence {position.next} on is gone",
                )
            )  # fmt: skip
        elif state is Continuity.SHORTER:
            losses.append(
                Loss(stream, (), f"its last sequence is {found.last}, but the query has read up to {position.read}")
            )
        elif state is Continuity.REWRITTEN:
            losses.append(
                Loss(
                    stream, (), "its sequences went back and were given again (it was restored from an older copy, or "
                    f"lost its end): {position.next - 1} is not the record any more that the query has read, and "
                    f"{begin} is the first that was stored after that one",
                )
            )  # fmt: skip
        elif state is Continuity.REMOVED and not (position.in_snapshot or stream in replacing):
            losses.append(Loss(stream, ((position.next, begin - 1),), "removed before they were read"))
        else:
            continue
        now[stream] = StreamPosition(begin, found.identity, begin)  # the end of an empty batch
    for stream, found in bounds.items():
        now.setdefault(stream, StreamPosition(found.first, found.identity))
    return now, losses


def within_snapshots(now: Offsets, bounds: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """``bounds``, limited to the end of an unfinished snapshot: no batch reads on both sides of it."""
    return {
        stream: replace(found, last=min(found.last, p.snapshot or 0), time=None)
        if (p := now[stream]).in_snapshot and found.identity == p.identity
        else found
        for stream, found in bounds.items()
    }


def backlog_of(start: Offsets, bounds: Mapping[str, Bounds]) -> dict[str, int]:
    """Number of unread sequences by stream; ``start`` from :func:`reconcile`."""
    return {
        stream: max(0, bounds[stream].last + 1 - p.next)
        for stream, p in start.items()
        if stream in bounds and bounds[stream].identity == p.identity
    }


def advance(
    start: Offsets,
    bounds: Mapping[str, Bounds],
    limit: int | None,
    rows: int | None = None,
    rows_per_sequence: Mapping[str, float] | None = None,
) -> Offsets:
    """End of the next batch: ``start`` itself if nothing is new.

    :param start: from :func:`reconcile`
    :param limit: maximum number of sequences of the batch; None = all
    :param rows: maximum number of estimated rows, but at least one sequence of a stream that is read; None = all
    :param rows_per_sequence: estimate for each stream; 1 where it is missing
    """
    backlog = backlog_of(start, bounds)
    take = backlog if limit is None else share_evenly(backlog, limit, start)
    if not any(take.values()):
        return start
    if rows is None:
        return {stream: replace(p, next=p.next + take.get(stream, 0), begin=p.next) for stream, p in start.items()}
    per = {stream: max(1.0, (rows_per_sequence or {}).get(stream, 1.0)) for stream in take}
    turn = share_evenly({stream: round(n * per[stream]) for stream, n in take.items()}, rows, start)
    take = {
        stream: min(n, max(1, int(turn[stream] / per[stream])) if turn[stream] else 0) for stream, n in take.items()
    }
    return {
        stream: replace(p, next=p.next + n, begin=p.next, rows=round(n * per.get(stream, 1.0)))
        for stream, p in start.items()
        for n in [take.get(stream, 0)]
    }


def share_evenly(backlog: Mapping[str, int], limit: int, start: Offsets) -> dict[str, int]:
    """Divide ``limit`` equally over streams; what one does not need goes to the others. Where it is too small for all,
    some get one, and others in the next micro-batch: what was read so far decides where to begin."""
    behind = sorted(stream for stream, n in backlog.items() if n)
    if limit < len(behind):
        at = sum(p.next for p in start.values()) % len(behind)
        return dict.fromkeys(backlog, 0) | dict.fromkeys((behind + behind)[at : at + limit], 1)
    left, taken = limit, {}
    waiting = sorted(backlog.items(), key=lambda item: (item[1], item[0]))
    for i, (stream, n) in enumerate(waiting):
        taken[stream] = min(n, -(-left // (len(waiting) - i)))
        left -= taken[stream]
    return taken


def ranges(start: Offsets, end: Offsets) -> list[ReadRange]:
    """Ranges of the batch between two offsets. The beginning in ``end`` takes precedence: ``start`` may be the initial
    offset, computed again, and losses in between have been reported."""
    found = []
    for stream, p in sorted(end.items()):
        before = start.get(stream)
        if p == before:
            continue
        begin = p.begin
        if begin is None:
            begin = before.next if before is not None and before.identity == p.identity else p.next
        if begin < p.next:
            snapshot = p.snapshot if p.snapshot is not None and begin <= p.snapshot else None
            time = before.time if before is not None and (before.identity, before.next) == (p.identity, begin) else None
            found.append(ReadRange(stream, p.identity, begin - 1, p.next - 1, snapshot, time))
    return found
