"""Converts flights with their outcome to rows of the flight log, and counts them for the report. Columns to columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.bridge import Ack, Capabilities
from mama_spark.contracts.errors import PERHAPS_TWICE, BadRow, DoubledId, PublishError
from mama_spark.contracts.message import Int64s, MessageBatch, decimal_digits, fixed_width
from mama_spark.flightlog.columns import FlightColumns, Reason
from mama_spark.flightlog.log_level import kept
from mama_spark.flightlog.schema import EVENTS, PUBLISHED
from mama_spark.publishing.wall_clock import WallClock
from mama_spark.publishing.window.flight import EVENT, FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch
from mama_spark.publishing.window.retry import is_final

from .job import OutcomeCounts

#: Only terminal flight states have an event of the flight log.
_EVENT_OF_STATE = np.full(len(FlightState), 255, np.uint8)
for _state, _name in EVENT.items():
    _EVENT_OF_STATE[_state] = EVENTS.index(_name)

_COPIED = f"{PERHAPS_TWICE}: sent while a server that may have a copy of it did not answer (onSilentServer=publish)"


def with_nulls(column: pa.Array, name: str, errors: Mapping[int, PublishError]) -> pa.Array:
    """A column of a batch (``name`` in :class:`~mama_spark.contracts.message.MessageBatch`), with null in place of the
    placeholders of rows that have null there, by their ``errors``."""
    rows = [row for row, e in errors.items() if isinstance(e, BadRow) and e.null == name]
    if not rows:
        return column
    index = np.arange(len(column))
    return column.take(pa.array(index, mask=np.isin(index, rows)))


def flight_columns(
    flights: FlightBatch,
    batch: MessageBatch,
    flight_id: pa.Array,
    streams: list[str],
    clock: WallClock,
    capabilities: Capabilities,
    *,
    extra: pa.RecordBatch | None,
    dead_lettered: npt.NDArray[np.bool_] | None,
    payload: str,
    doubled: Int64s | None,
) -> FlightColumns:
    """Terminal events of flights that all have their outcome.

    :param payload: messages whose payload and headers are kept: ``none``, ``failed`` or ``all``
    :param doubled: flights that were sent with the id of a row before them; None = none
    """
    sent = ~np.isnan(flights.published)
    published = clock.micros(flights.published)
    latency = np.where(sent, np.rint((flights.settled - flights.published) * 1e6), -1).astype(np.int64)
    event_time = np.where(sent, published + latency, clock.micros(flights.settled))
    event = _EVENT_OF_STATE[flights.state]
    topics, payloads = (with_nulls(getattr(batch, name), name, flights.errors) for name in ("topics", "payloads"))
    streams_given = None if batch.streams is None else with_nulls(batch.streams, "streams", flights.errors)
    kept_payload, kept_headers = kept(replace(batch, payloads=payloads), event, payload)
    return FlightColumns(
        flight_id=flight_id,
        topic=topics,
        size=batch.sizes(),
        event=event,
        event_time=event_time,
        publish_time=np.where(sent, published, -1),
        latency_us=latency,
        stream=_stream(flights, streams) if streams_given is None else streams_given,
        sequence=flights.sequence if capabilities.sequence else None,
        duplicate=_duplicate(flights, capabilities),
        ack_level=_level(flights, capabilities),
        reasons=_reasons(flights, doubled),
        may_have_landed=flights.doubt if flights.errors else False,
        sends=flights.sends,
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


def _unnumbered(flights: FlightBatch, capabilities: Capabilities) -> npt.NDArray[np.bool_]:
    """Flights acknowledged without a sequence although the bridge gives sequences: their stream stores nothing."""
    rows: npt.NDArray[np.bool_] = (flights.state == FlightState.ACKED) & (flights.sequence < 0) & capabilities.sequence
    return rows


def _level(flights: FlightBatch, capabilities: Capabilities) -> pa.Array | str:
    """``ack_level`` of the bridge, or less where a stream stores nothing or nobody subscribes."""
    level, unnumbered = capabilities.ack.value, _unnumbered(flights, capabilities)
    unwanted = flights.state == FlightState.PUBLISHED
    if not unnumbered.any() and not unwanted.any():
        return level
    levels = pa.array([level, Ack.ACCEPTED.value, Ack.NONE.value], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(np.where(unwanted, 2, unnumbered).astype(np.int32)), levels)


def _duplicate(flights: FlightBatch, capabilities: Capabilities) -> pa.Array | npt.NDArray[np.bool_] | None:
    if not capabilities.sequence:
        return None
    unnumbered = _unnumbered(flights, capabilities)
    return pa.array(flights.duplicate, mask=unnumbered) if unnumbered.any() else flights.duplicate


def _stream(flights: FlightBatch, streams: list[str]) -> pa.Array | str | None:
    first = int(flights.stream[0])
    if (flights.stream == first).all():
        return streams[first] if first >= 0 else None
    codes = pa.array(flights.stream, mask=flights.stream < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(streams, pa.string()))


def _reasons(flights: FlightBatch, doubled: Int64s | None) -> dict[int, Reason]:
    """Reasons of failures; of acknowledged flights, only if the id is doubled or the flight may be stored twice."""
    reasons: dict[int, Reason] = {}
    if doubled is not None:
        reasons = dict.fromkeys(doubled.tolist(), (None, None, DoubledId.label))
    reasons |= dict.fromkeys(np.flatnonzero(flights.perhaps_twice()).tolist(), (None, None, _COPIED))
    if flights.errors:
        bad = flights.failed()
        reasons |= {row: (e.status, e.code or None, e.info) for row, e in flights.errors.items() if bad[row]}
    return reasons


def count_outcomes(
    counts: OutcomeCounts, flights: FlightBatch, batch: MessageBatch, flight_id: pa.Array, rows: Int64s | None
) -> None:
    """Add the outcomes of finished flights; ``rows``: of each flight, 0 = it does not count; None = one each."""
    weights = np.ones(flights.n, np.int64) if rows is None else rows
    states = np.bincount(flights.state, weights, minlength=len(FlightState))
    counts.rows += int(weights.sum())
    counts.acked += int(states[FlightState.ACKED])
    counts.published += int(states[FlightState.PUBLISHED])
    counts.failed += int(states[FlightState.COMPLETED_EXCEPTIONALLY])
    counts.timed_out += int(states[FlightState.TIMEOUT])
    counts.duplicates += int(weights[flights.duplicate].sum())
    counts.perhaps_twice += int(weights[flights.perhaps_twice()].sum())
    if not flights.errors:
        return
    topics = with_nulls(batch.topics, "topics", flights.errors)
    for row in np.flatnonzero(flights.failed() & (weights > 0)).tolist():
        error = flights.errors[row]
        counts.add_failure(
            topics[row].as_py(), flight_id[row].as_py(), str(error), int(weights[row]), is_row_error=is_final(error)
        )
    counts.limit_reasons()


def joined_ids(head: str, numbers: Int64s) -> pa.Array:
    """``<head><number>``: flight ids where the broker does not deduplicate."""
    n, start = len(numbers), head.encode()
    width = len(str(numbers[0])) if n else 0
    if width <= 4 or width != len(str(numbers[-1])) or not (np.diff(numbers) == 1).all():
        return pc.binary_join_element_wise(pa.scalar(head), pc.cast(pa.array(numbers), pa.string()), pa.scalar(""))
    text = np.empty((n, len(start) + width), np.uint8)
    text[:, : len(start)] = np.frombuffer(start, np.uint8)
    text[:, len(start) :] = decimal_digits(int(numbers[0]), n, width)
    return fixed_width(text).cast(pa.string())
