"""The limit of retries in an outage, ``timeout`` seconds since the last success, and the waits between them
(:data:`~mama_spark.contracts.backoff.RECONNECT`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...contracts.backoff import RECONNECT
from ...contracts.errors import MamaError


class OutageTimer:
    def __init__(
        self,
        timeout: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout, self._clock, self._sleep = timeout, clock, sleep
        self._delays = RECONNECT.delays()
        self.succeeded()

    def succeeded(self) -> None:
        """Whatever fails from now on is a new outage."""
        self._until = self._clock() + self._timeout
        self._delays.reset()

    def wait(self, error: MamaError) -> None:
        """Sleep before the next attempt.

        :raises MamaError: ``error``, if it is not worth another attempt or the outage would last too long
        """
        from .retry import may_resend  # not needed by a planner of Spark, which loads this module

        delay = self._delays.next()
        if not may_resend(error) or self._clock() + delay > self._until:
            raise error
        self._sleep(delay)
