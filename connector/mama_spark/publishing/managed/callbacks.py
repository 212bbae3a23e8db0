"""Completes the futures and calls the listener for each flight, in order, outside of all other locks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from mama_spark.contracts.errors import AckTimeout
from mama_spark.publishing.window.flight import EVENT, PUBLISHED, FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch, Rows

from ..api import Flight, PublishAck, PublisherListener

logger = logging.getLogger("mama_spark")


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """``FlightBatch.context``: the flights as the user sees them, and the futures of their callers, row for row."""

    flights: list[Flight]
    futures: list[Future[Flight]]


class CallbackDispatcher:
    """Notifications are queued under the caller's lock and delivered by :meth:`deliver`, one at a time."""

    def __init__(self, listener: PublisherListener | None, streams: list[str], domains: list[str | None]) -> None:
        self.listener = listener
        self.errors = 0  #: exceptions that the listener raised
        self._streams, self._domains = streams, domains
        self._pending: deque[Callable[[], None]] = deque()
        self._delivering = threading.RLock()

    def note_published(self, batch: PendingBatch, rows: slice, times: list[float]) -> None:
        """Queue the notifications of sent rows; ``times``: seconds of the wall clock."""
        for row, at in zip(range(rows.start, rows.stop), times, strict=True):
            flight = batch.flights[row]
            flight.publish_time, flight.sends = at, 1
            self._pending.append(partial(self._report_published, flight, batch.futures[row]))

    def note_settled(self, flights: FlightBatch, rows: Rows) -> None:
        listed: list[int] = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
        for row in listed:
            self._pending.append(partial(self._report_settled, flights, row, flights.context))

    def deliver(self) -> None:
        """Deliver the queue. Callbacks may call all methods of the publisher."""
        with self._delivering:
            while self._pending:
                self._pending.popleft()()

    def _report_published(self, flight: Flight, future: Future[Flight]) -> None:
        future.set_result(flight)
        self._call_listener(PUBLISHED, flight)

    def _report_settled(self, flights: FlightBatch, row: int, batch: PendingBatch) -> None:
        flight, future = batch.flights[row], batch.futures[row]
        flight.sends = int(flights.sends[row])
        state = FlightState(int(flights.state[row]))
        if state in (FlightState.ACKED, FlightState.PUBLISHED):
            stream, sequence = int(flights.stream[row]), int(flights.sequence[row])
            flight.publish_ack_future.set_result(
                PublishAck(
                    self._streams[stream] if stream >= 0 else None,
                    sequence if sequence >= 0 else None,
                    bool(flights.duplicate[row]),
                    self._domains[stream] if stream >= 0 else None,
                )
            )
        else:
            error = flights.errors.get(row) or AckTimeout("no acknowledgement")
            flight.publish_ack_future.set_exception(error)
            if not future.done():
                future.set_exception(error)
        if state is not FlightState.PUBLISHED:
            self._call_listener(EVENT[state], flight)

    def _call_listener(self, event: str, flight: Flight) -> None:
        if self.listener is None:
            return
        try:
            getattr(self.listener, event)(flight)
        except Exception:
            self.errors += 1
            logger.exception("the listener raised in %s(%s)", event, flight.id)
