"""A finished block of flights becomes rows of the flight log, and counts for the report. Columns to columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.bridge import Ack, Capabilities
from mama_spark.errors import PublishError
from mama_spark.flightlog.columns import FlightColumns
from mama_spark.flightlog.schema import EVENTS, PUBLISHED
from mama_spark.message import Int64s, MessageBatch
from mama_spark.publisher.clock import WallClock
from mama_spark.sending.flight import EVENT, FlightState
from mama_spark.sending.flight_batch import FlightBatch
from mama_spark.sending.retry import is_final

#: Event index of the flight log by flight state; only terminal states have one.
_EVENT_OF_STATE = np.full(len(FlightState), 255, np.uint8)
for _state, _name in EVENT.items():
    _EVENT_OF_STATE[_state] = EVENTS.index(_name)

FIRST_FAILURES = 5


def flight_columns(
    block: FlightBatch,
    batch: MessageBatch,
    flight_id: pa.Array,
    streams: list[str],
    clock: WallClock,
    capabilities: Capabilities,
    *,
    extra: pa.RecordBatch | None,
    dead_lettered: npt.NDArray[np.bool_] | None,
    payload: str,
) -> FlightColumns:
    """Terminal events of a finished block.

    :param payload: whose payload and headers to keep: ``none``, ``failed`` or ``all``
    """
    sent = ~np.isnan(block.published)
    published = clock.micros(block.published)
    # an answer can arrive before the send was noted down: it took no time then
    latency = np.where(sent, np.rint((block.settled - block.published).clip(0) * 1e6), -1).astype(np.int64)
    event_time = np.where(sent, published + latency, clock.micros(block.settled))
    event = _EVENT_OF_STATE[block.state]
    kept_payload, kept_headers = _kept(batch, event, payload)
    return FlightColumns(
        flight_id=flight_id,
        topic=batch.topics,
        size=batch.sizes(),
        event=event,
        event_time=event_time,
        publish_time=np.where(sent, published, -1),
        latency_us=latency,
        stream=_stream(block, streams) if batch.streams is None else batch.streams,
        sequence=block.sequence if capabilities.sequence else None,
        duplicate=_duplicate(block, capabilities),
        ack_level=_level(block, capabilities),
        reasons=_reasons(block),
        may_have_landed=block.doubt if block.errors else False,
        sends=block.sends,
        dead_lettered=dead_lettered,
        extra=extra,
        payload=kept_payload,
        headers=kept_headers,
    )


def published_columns(columns: FlightColumns) -> FlightColumns | None:
    """The ``published`` events of the same flights, for ``flightLogLevel=all``."""
    times = columns.publish_time
    if times is None:
        return None
    rows = np.flatnonzero((times >= 0) & (columns.codes() != PUBLISHED))
    if not len(rows):
        return None
    some = columns.take(rows)
    assert some.publish_time is not None
    return FlightColumns(
        flight_id=some.flight_id,
        topic=some.topic,
        size=some.size,
        event=np.full(len(rows), PUBLISHED, np.uint8),
        event_time=some.publish_time,
        publish_time=some.publish_time,
        ack_level=some.ack_level,
        may_have_landed=None,
        rows=some.rows,
        extra=some.extra,
    )


def _unnumbered(block: FlightBatch, capabilities: Capabilities) -> npt.NDArray[np.bool_]:
    """Where a sequence is told, an acknowledgement without one comes from a stream that stores nothing."""
    rows: npt.NDArray[np.bool_] = (block.state == FlightState.ACKED) & (block.sequence < 0) & capabilities.sequence
    return rows


def _level(block: FlightBatch, capabilities: Capabilities) -> pa.Array | str:
    level, unnumbered = capabilities.ack.value, _unnumbered(block, capabilities)
    if not unnumbered.any():
        return level
    levels = pa.array([level, Ack.ACCEPTED.value], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(unnumbered.astype(np.int32)), levels)


def _duplicate(block: FlightBatch, capabilities: Capabilities) -> pa.Array | npt.NDArray[np.bool_] | None:
    if not capabilities.sequence:
        return None
    unnumbered = _unnumbered(block, capabilities)
    return pa.array(block.duplicate, mask=unnumbered) if unnumbered.any() else block.duplicate


def _stream(block: FlightBatch, streams: list[str]) -> pa.Array | str | None:
    first = int(block.stream[0])
    if (block.stream == first).all():
        return streams[first] if first >= 0 else None
    codes = pa.array(block.stream, mask=block.stream < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(streams, pa.string()))


def _kept(batch: MessageBatch, event: npt.NDArray[np.uint8], which: str) -> tuple[pa.Array | None, pa.Array | None]:
    if which == "none":
        return None, None
    if which == "all":
        return batch.payloads, batch.headers
    failed = event >= EVENTS.index("completed_exceptionally")
    if not failed.any():
        return None, None
    index = pa.array(np.arange(len(event)), mask=~failed)
    return batch.payloads.take(index), None if batch.headers is None else batch.headers.take(index)


def _reasons(block: FlightBatch) -> dict[int, tuple[str, int | None, str | None]]:
    """Why, for rows that ended badly; what went well in the end has no reason."""
    if not block.errors:
        return {}
    bad = block.state > FlightState.ACKED
    return {row: (e.status, e.code or None, e.info) for row, e in block.errors.items() if bad[row]}


@dataclass(slots=True)
class OutcomeCounts:
    """What became of the rows of one partition, small enough to travel in a commit message.

    :ivar guilty: failed rows of which the row itself is the cause; ``outage``: all others
    :ivar first: the first failures: (topic, id, reason)
    :ivar reasons: failed rows by reason
    """

    rows: int = 0
    acked: int = 0
    published: int = 0
    duplicates: int = 0
    failed: int = 0
    timed_out: int = 0
    guilty: int = 0
    outage: int = 0
    dead_lettered: int = 0
    first: list[tuple[str, str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def count(self, block: FlightBatch, batch: MessageBatch, flight_id: pa.Array, rows: Int64s | None = None) -> None:
        """:param rows: of each flight; 0 = it does not count; None = one each"""
        weights = np.ones(block.n, np.int64) if rows is None else rows
        states = np.bincount(block.state, weights, minlength=len(FlightState))
        self.rows += int(weights.sum())
        self.acked += int(states[FlightState.ACKED])
        self.published += int(states[FlightState.PUBLISHED])
        self.failed += int(states[FlightState.COMPLETED_EXCEPTIONALLY])
        self.timed_out += int(states[FlightState.TIMEOUT])
        self.duplicates += int(weights[block.duplicate].sum())
        if not block.errors:
            return
        bad = (block.state != FlightState.ACKED) & (block.state != FlightState.PUBLISHED) & (weights > 0)
        for row in np.flatnonzero(bad).tolist():
            error, n = block.errors[row], int(weights[row])
            if is_row_error(error):
                self.guilty += n
            else:
                self.outage += n
            self.reasons[str(error)[:200]] += n
            if len(self.first) < FIRST_FAILURES:
                self.first.append((batch.topics[row].as_py() or "", flight_id[row].as_py() or "", str(error)))
        if len(self.reasons) > 50:  # reasons may quote the topic: the commit message stays small
            self.reasons = Counter(dict(self.reasons.most_common(20)))

    def add(self, other: OutcomeCounts) -> None:
        for name in ("rows", "acked", "published", "duplicates", "failed", "timed_out", "guilty", "outage"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dead_lettered += other.dead_lettered
        self.first = [*self.first, *other.first][:FIRST_FAILURES]
        self.reasons.update(other.reasons)

    def sentence(self) -> str:
        """``1,000 rows: 997 acked, 2 failed, 1 timed out; first failures: ...``"""
        parts = [f"{self.acked:,} acked"]
        if self.published:
            parts.append(f"{self.published:,} published without acknowledgement")
        parts += [f"{self.failed:,} failed", f"{self.timed_out:,} timed out"]
        if self.dead_lettered:
            parts.append(f"{self.dead_lettered:,} sent to the dead letters")
        text = f"{self.rows:,} rows: {', '.join(parts)}"
        if self.first:
            text += "; first failures: " + "; ".join(
                f"[topic {topic!r}, id {flight!r}] {reason}" for topic, flight, reason in self.first
            )
        return text


def is_row_error(error: PublishError) -> bool:
    """The row itself is the cause: nothing that passes by itself, and somebody said so."""
    return is_final(error)


def joined_ids(head: str, numbers: Int64s) -> pa.Array:
    """``<head><number>``: flight ids where the broker does not deduplicate."""
    return pc.binary_join_element_wise(pa.scalar(head), pc.cast(pa.array(numbers), pa.string()), pa.scalar(""))
