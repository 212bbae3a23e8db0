"""Flights of one publisher and their terminal events: opened, settled once, counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mama_spark.contracts.errors import PublishError
from mama_spark.contracts.message import Int64s, MessageBatch

from .flight import FlightState, Transition, advance
from .flight_batch import FlightBatch, FlightCounters, Rows, StoredFlights, length_of

IN_FLIGHT, WAITING = int(FlightState.IN_FLIGHT), int(FlightState.WAITING)


class FlightAccounts:
    """Flights of one sender: in flight, settled, by stream. Not thread-safe.

    :ivar streams: stream names by the indices in :attr:`.FlightBatch.stream`; ``domains``: their JetStream domains
    :ivar in_flight: number of launched, unsettled flights; ``bytes_in_flight``: their payload bytes
    :ivar last_expiry: error of the latest flight that hit its retry deadline
    """

    def __init__(self) -> None:
        self.counters = FlightCounters()
        self.streams: list[str] = []
        self.domains: list[str | None] = []
        self._codes: dict[tuple[str, str | None], int] = {}  # of streams
        self.in_flight = self.bytes_in_flight = self.next_token = 0
        self.last_expiry: PublishError | None = None
        self._settled: list[tuple[FlightBatch, Rows]] = []

    def open(self, n: int, messages: MessageBatch | None = None, context: Any = None) -> FlightBatch:
        self.counters.opened += n
        return FlightBatch(n, messages, context)

    def reject(
        self, flights: FlightBatch, rows: Int64s, errors: Sequence[PublishError] | PublishError, now: float
    ) -> None:
        """Fail queued flights that cannot be sent, with one error or one each."""
        each = [errors] * len(rows) if isinstance(errors, PublishError) else errors
        flights.errors.update(zip(rows.tolist(), each, strict=True))
        self._settle(flights, rows, Transition.FAIL, now)

    def settle_stored(self, flights: FlightBatch, stored: StoredFlights, now: float) -> None:
        """Rows of queued or waiting flights are stored already: they are acknowledged as duplicates, without a send."""
        rows = stored.rows
        if not len(rows):
            return
        flights.sequence[rows], flights.duplicate[rows] = stored.sequences, True
        flights.stream[rows] = self._stream_index(stored.stream)
        self.counters.duplicates += len(rows)
        queued = flights.state[rows[0]] == FlightState.QUEUED
        self._settle(flights, rows, Transition.FIND if queued else Transition.ACK, now)

    def send_unacknowledged(self, flights: FlightBatch, rows: Rows, now: float) -> None:
        """The bridge took these queued flights and will never answer: ``published`` is their terminal event."""
        first, n = self.next_token, length_of(rows)
        self.next_token += n
        flights.published[rows] = now
        flights.token[rows] = np.arange(first, first + n)
        flights.sends[rows] = 1
        self.counters.sends += n
        self._settle(flights, rows, Transition.SEND_UNACKNOWLEDGED, now)

    def abandon(self, batches: list[FlightBatch], error: PublishError, unsent: PublishError, now: float) -> None:
        """Settle all open flights: sent ones with ``error``, queued ones with ``unsent``."""
        for flights in batches:
            queued = np.flatnonzero(flights.state == FlightState.QUEUED)
            if len(queued):
                self.reject(flights, queued, unsent, now)
            sent = np.flatnonzero((flights.state == IN_FLIGHT) | (flights.state == WAITING))
            if len(sent):
                flights.doubt[sent] |= flights.state[sent] == IN_FLIGHT
                for row in sent:
                    flights.errors[int(row)] = error
                self._settle(flights, sent, Transition.FAIL, now)

    def give_up(self, batches: list[FlightBatch], error: PublishError, now: float) -> None:
        """Settle all launched flights: each by its last error, or by ``error`` if it has none."""
        for flights in batches:
            sent = np.flatnonzero((flights.state == IN_FLIGHT) | (flights.state == WAITING))
            if len(sent):
                flights.doubt[sent] |= flights.state[sent] == IN_FLIGHT
                for row in sent.tolist():
                    flights.errors.setdefault(row, error)
                self._settle_by_last_error(flights, sent, now)

    def take_settled(self) -> list[tuple[FlightBatch, Rows]]:
        """Flights settled since the last call. A batch is finished when its ``open`` is 0."""
        settled, self._settled = self._settled, []
        return settled

    def _record_error(self, flights: FlightBatch, rows: Int64s, error: PublishError) -> None:
        if error.may_have_landed:
            flights.doubt[rows] = True
        for row in rows.tolist():
            flights.errors[row] = error

    def _settle_by_last_error(self, flights: FlightBatch, rows: Int64s, now: float) -> None:
        if len(rows):
            self.last_expiry = flights.errors[int(rows[0])]
        answered = np.fromiter((flights.errors[r].answered for r in rows.tolist()), np.bool_, len(rows))
        for step, some in ((Transition.FAIL, rows[answered]), (Transition.EXPIRE, rows[~answered])):
            if len(some):
                self._settle(flights, some, step, now)

    def _settle(self, flights: FlightBatch, rows: Rows, step: Transition, now: float) -> None:
        n = length_of(rows)
        if not n:
            return
        before = flights.state[rows]
        launched = before[0] != FlightState.QUEUED  # a call settles queued flights or launched ones, never both
        flights.state[rows] = advance(before, step)
        flights.settled[rows] = now
        flights.open -= n
        if launched:
            self.in_flight -= n
            self.bytes_in_flight -= flights.bytes_of(rows)
        if step in (Transition.FAIL, Transition.EXPIRE) and launched:
            self.counters.in_doubt += int(flights.doubt[rows].sum())
        if step in (Transition.ACK, Transition.FIND):
            self.counters.acked += n
        elif step is Transition.SEND_UNACKNOWLEDGED:
            self.counters.published += n
        elif step is Transition.FAIL:
            self.counters.failed += n
        else:
            self.counters.timed_out += n
        self._settled.append((flights, rows))

    def _stream_index(self, name: str | None, domain: str | None = None) -> int:
        if name is None:
            return -1
        code = self._codes.setdefault((name, domain), len(self.streams))
        if code == len(self.streams):
            self.streams.append(name)
            self.domains.append(domain)
        return code
