"""Publishes a few messages and waits for their acknowledgements: appends to a log, events of discovery."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from mama_spark.contracts.bridge import EventKind, PublisherBridge
from mama_spark.contracts.errors import AckTimeout, MamaError, NotPublished, OutcomeUnknown, Stopped, Unavailable
from mama_spark.contracts.message import Bools, MessageBatch
from mama_spark.options.window_config import WindowConfig

from .flight import FlightState
from .flight_batch import FlightBatch
from .retry import may_resend
from .send_loop import SendLoop
from .window import Window

_MAX_WAIT = 0.1  #: longest poll in seconds while messages are unsent, or a resend was just tried


class BlockingSender:
    """Sends messages and waits for their acknowledgements. Not thread-safe.

    :param bridge: an open bridge; it stays open
    :param policy: with ``ordered`` and one message in flight, no message overtakes a resend
    """

    def __init__(
        self, bridge: PublisherBridge, policy: WindowConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.window = Window(policy)
        self._loop = SendLoop(bridge, self.window, clock=clock)
        self._clock = clock

    def store(self, messages: MessageBatch, timeout: float) -> FlightBatch:
        """Send all messages and wait; returns their flights, all acknowledged.

        :raises PublishError: one was rejected, or has an unknown outcome and must not be resent; others may be stored
        :raises ConfigError: no stream takes a topic
        :raises Unavailable: not all were acknowledged within ``timeout`` seconds, or the connection was closed for good
        """
        flights = self.window.open(len(messages), messages)
        try:
            self._store(flights, timeout)
        finally:
            if flights.open:
                self.window.abandon([flights], Stopped("given up"), NotPublished("given up"), self._clock())
            self.window.take_settled()
        return flights

    def _store(self, flights: FlightBatch, timeout: float) -> None:
        loop, until = self._loop, self._clock() + timeout
        spans, looked = loop.prepare(flights), False
        self._raise_failed(flights, timeout)
        while flights.open:
            now = self._clock()
            if now >= until and looked:  # a standstill before the first look is no wait for the middleware
                raise self._timed_out(flights, timeout)
            loop.resend()
            if not loop.bridge_full:
                loop.launch_spans(flights, spans)
            loop.flush()
            wait = max(0.0, min(until - now, self._next_moment(now), _MAX_WAIT if spans else math.inf))
            looked = True
            polled = loop.receive(wait, self.window.answers_until_refill() if spans else self.window.in_flight or 1)
            if any(event.kind is EventKind.DISCONNECTED for event in polled.events) and _in_flight(flights).any():
                raise OutcomeUnknown(loop.last_cause)  # flights that may be resent have left this state by now
            self._raise_failed(flights, timeout)

    def _next_moment(self, now: float) -> float:
        """Seconds until the window must act; ``_MAX_WAIT`` after a try that has just failed."""
        moment = self.window.wake_at()
        return _MAX_WAIT if moment is None or moment <= now else moment - now

    def _raise_failed(self, flights: FlightBatch, timeout: float) -> None:
        failed = np.flatnonzero(flights.failed())
        if not len(failed):
            return
        error, policy = flights.errors[int(failed[0])], self.window.policy
        if policy.retry is not None and may_resend(error, repeatable=policy.resend_uncertain):
            raise Unavailable(f"not stored within {timeout:g} s: {error}") from error
        raise error

    def _timed_out(self, flights: FlightBatch, timeout: float) -> MamaError:
        if not self.window.policy.resend_uncertain and _in_flight(flights).any():
            return AckTimeout(f"no acknowledgement within {timeout:g} s")
        cause = self._loop.last_cause or "no acknowledgement"
        return Unavailable(f"not stored within {timeout:g} s: {cause}")


def _in_flight(flights: FlightBatch) -> Bools:
    rows: Bools = flights.state == FlightState.IN_FLIGHT
    return rows
