"""A bridge that is opened when it is first needed, and opened again after an outage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ...contracts.errors import MamaError
from ...contracts.record_log import RecordLogBridge
from ...options import ReadOptions, SinkOptions
from ...registry import log_bridge
from .outage_timer import OutageTimer


class Openable(Protocol):
    def open(self) -> None: ...
    def close(self) -> None: ...


B = TypeVar("B", bound=Openable)
T = TypeVar("T")


class ReconnectingBridge(Generic[B]):
    """Bridge that ``make`` gives, opened when needed and again after a retryable error; for one thread. A call fails
    after ``timeout`` seconds of an outage, which begins with it or at the last :meth:`progressed`."""

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
        timeout = self._timeout if timeout is None else timeout
        self._outage = OutageTimer(timeout, clock=self._clock, sleep=self._sleep)
        while True:
            try:
                return work(self._opened())
            except MamaError as e:
                self.close()
                self._outage.wait(e)

    def progressed(self) -> None:
        """Called by ``work``, where that takes long: the bridge works, and what fails from now on is a new outage."""
        self._outage.succeeded()

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
