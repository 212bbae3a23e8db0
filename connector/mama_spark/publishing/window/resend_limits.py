"""Which flights of one publisher may be sent again, and until when. Pure."""

from __future__ import annotations

import math

import numpy as np

from mama_spark.contracts.errors import PublishError
from mama_spark.contracts.message import Bools, Int64s
from mama_spark.options.window import WindowConfig

from .flight_batch import FlightBatch, Seconds
from .retry import may_resend


class ResendLimits:
    """Applies :mod:`~mama_spark.publishing.window.retry` to flights; retry deadlines can be suspended for an outage."""

    def __init__(self, policy: WindowConfig) -> None:
        self._policy = policy
        self._deadlines_from = -math.inf  # retry deadlines count from here at the earliest

    @property
    def suspended(self) -> bool:
        """No flight's retry deadline passes."""
        return self._deadlines_from == math.inf

    def suspend(self) -> None:
        """Flights have no retry deadline until :meth:`resume`."""
        self._deadlines_from = math.inf

    def resume(self, now: float) -> None:
        """Retry deadlines of what was sent before count from now."""
        self._deadlines_from = now

    def allowed(self, flights: FlightBatch, rows: Int64s, error: PublishError, now: float) -> Bools:
        """Which flights, whose last send ended with ``error``, may be sent again: one element a row."""
        if not error.is_attempt:
            return np.ones(len(rows), np.bool_)
        retry = self._policy.retry
        if retry is None or not may_resend(error, repeatable=self._policy.resend_uncertain, retry_on=retry.retry_on):
            return np.zeros(len(rows), np.bool_)
        allowed = np.ones(len(rows), np.bool_)
        if retry.attempts is not None:
            allowed &= flights.attempts(rows) <= retry.attempts
        if retry.deadline is not None:
            allowed &= self._deadlines_begin(flights, rows) + retry.deadline > now
        if error.may_have_landed and flights.non_retriable is not None:
            allowed &= ~flights.non_retriable[rows]
        return allowed

    def deadlines(self, flights: FlightBatch, rows: Int64s, due: float) -> Seconds:
        """When waiting flights are not sent again any more: at the retry deadline; without one, when the bridge has not
        taken them for ``wait_timeout`` after they were due, so that none waits for ever."""
        deadline = self._policy.retry.deadline if self._policy.retry else None
        if deadline is None:
            return np.full(len(rows), due + self._policy.wait_timeout)
        return self._deadlines_begin(flights, rows) + deadline

    def _deadlines_begin(self, flights: FlightBatch, rows: Int64s) -> Seconds:
        begin: Seconds = np.maximum(flights.published[rows], self._deadlines_from)
        return begin
