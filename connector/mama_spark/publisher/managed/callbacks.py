"""Telling the user what became of each flight: futures and the listener, in order, outside of all other locks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from mama_spark.errors import AckTimeout
from mama_spark.message import MessageBatch
from mama_spark.sending.flight import EVENT, PUBLISHED, FlightState
from mama_spark.sending.flight_batch import FlightBatch, Rows

from ..api import Flight, PublishAck, PublisherListener

log = logging.getLogger("mama_spark")


class PendingBatch:
    """``FlightBatch.tag``: the flights of a block, their messages, and the futures of those who published them."""

    __slots__ = ("batch", "flights", "futures")

    def __init__(self, batch: MessageBatch, flights: list[Flight], futures: list[Future[Flight]]) -> None:
        self.batch, self.flights, self.futures = batch, flights, futures


class CallbackDispatcher:
    """News are noted under the caller's lock and told by :meth:`deliver`, one at a time.

    :param streams: names that ``FlightBatch.stream`` points at; ``domains``: those they belong to
    """

    def __init__(self, listener: PublisherListener | None, streams: list[str], domains: list[str | None]) -> None:
        self.listener = listener
        self.errors = 0  #: exceptions that the listener raised
        self._streams, self._domains = streams, domains
        self._news: deque[Callable[[], None]] = deque()
        self._telling = threading.RLock()

    def note_published(self, cargo: PendingBatch, rows: slice, times: list[float]) -> None:
        """These rows were handed to the middleware, at these seconds of the wall clock."""
        for row, at in zip(range(rows.start, rows.stop), times, strict=True):
            flight = cargo.flights[row]
            flight.publish_time, flight.sends = at, 1
            self._news.append(partial(self._published, flight, cargo.futures[row]))

    def note_settled(self, block: FlightBatch, rows: Rows) -> None:
        """These rows got their terminal event."""
        listed: list[int] = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
        for row in listed:
            self._news.append(partial(self._ended, block, row, block.tag))

    def deliver(self) -> None:
        """Tell what was noted. Callbacks may call anything of the publisher."""
        with self._telling:
            while self._news:
                self._news.popleft()()

    def _published(self, flight: Flight, future: Future[Flight]) -> None:
        future.set_result(flight)
        self._listen(PUBLISHED, flight)

    def _ended(self, block: FlightBatch, row: int, cargo: PendingBatch) -> None:
        flight, future = cargo.flights[row], cargo.futures[row]
        flight.sends = int(block.sends[row])
        state = FlightState(int(block.state[row]))
        if state in (FlightState.ACKED, FlightState.PUBLISHED):
            stream, sequence = int(block.stream[row]), int(block.sequence[row])
            flight.publish_ack_future.set_result(
                PublishAck(
                    self._streams[stream] if stream >= 0 else None,
                    sequence if sequence >= 0 else None,
                    bool(block.duplicate[row]),
                    self._domains[stream] if stream >= 0 else None,
                )
            )
        else:
            error = block.errors.get(row) or AckTimeout("no acknowledgement")
            flight.publish_ack_future.set_exception(error)
            if not future.done():
                future.set_exception(error)
        if state is not FlightState.PUBLISHED:
            self._listen(EVENT[state], flight)

    def _listen(self, event: str, flight: Flight) -> None:
        if self.listener is None:
            return
        try:
            getattr(self.listener, event)(flight)
        except Exception:
            self.errors += 1
            log.exception("the listener raised in %s(%s)", event, flight.id)
