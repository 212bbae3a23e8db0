"""A bridge that is opened when it is first needed, and opened again after an outage; and how long readers retry."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ...contracts.backoff import RECONNECT
from ...contracts.errors import MamaError
from ...contracts.record_log import RecordLogBridge
from ...options import ReadOptions, SinkOptions
from ...registry import log_bridge


class Openable(Protocol):
    def open(self) -> None: ...
    def close(self) -> None: ...


B = TypeVar("B", bound=Openable)
T = TypeVar("T")


class OutageTimer:
    """Limits retries in an outage to ``timeout`` seconds since the last success, with waits between them
    (:data:`~mama_spark.contracts.backoff.RECONNECT`)."""

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


class ReconnectingBridge(Generic[B]):
    """Calls a bridge from one thread; opens one that ``make`` gives when it is needed and after a retryable error. A
    call fails after ``timeout`` seconds of an outage."""

    def __init__(
        self,
        make: Callable[[], B],
        timeout: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._make, self._timeout, self._clock, self._sleep = make, timeout, clock, sleep
        self._bridge: B | None = None

    def call(self, work: Callable[[B], T], timeout: float | None = None) -> T:
        """``work(bridge)``; repeated as a whole on a new bridge after retryable errors.

        :param timeout: seconds for this call; None = those of the bridge
        :raises MamaError: the last error
        """
        outage = OutageTimer(self._timeout if timeout is None else timeout, clock=self._clock, sleep=self._sleep)
        while True:
            try:
                return work(self._opened())
            except MamaError as e:
                self.close()
                outage.wait(e)

    def _opened(self) -> B:
        if self._bridge is None:
            bridge = self._make()
            try:
                bridge.open()
            except BaseException:
                bridge.close()
                raise
            self._bridge = bridge
        return self._bridge

    def close(self) -> None:
        """Never raises; the next call opens a new bridge."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.close()


def ask_logs(o: ReadOptions | SinkOptions, question: Callable[[RecordLogBridge], T]) -> T:
    """The result of ``question`` about the logs that the options name; it may be called several times.

    :raises MamaError: the last error, after ``waitTimeout`` without an answer; at once if it is not retryable
    """
    bridge = ReconnectingBridge(lambda: log_bridge(o, o.wait_timeout), o.wait_timeout)
    try:
        return bridge.call(question)
    finally:
        bridge.close()
