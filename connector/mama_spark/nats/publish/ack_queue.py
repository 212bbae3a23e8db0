"""Queues acknowledgements, refusals and events until the publisher polls."""

from __future__ import annotations

import threading

from mama_spark.contracts.bridge import Acks, BridgeEvent, EventKind, PollResult, Refusals
from mama_spark.contracts.errors import ConfigError


class AckQueue:
    """Filled while the publisher drives its connection, or by the thread of a caller's client."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._result = PollResult()
        self._tokens = 0
        self._wanted = 0
        self._urgent = False
        self._failure: ConfigError | None = None

    def acks(self, acks: Acks) -> None:
        with self._changed:
            self._result.acks.append(acks)
            self._tokens += len(acks.tokens)
            if 0 < self._wanted <= self._tokens:
                self._changed.notify()

    @property
    def refused(self) -> bool:
        return bool(self._result.refusals)

    def refusals(self, refusals: Refusals) -> None:
        with self._changed:
            self._result.refusals.append(refusals)
            self._wake()

    def event(self, event: BridgeEvent) -> None:
        with self._changed:
            self._result.events.append(event)
            self._wake()

    def keep_warnings(self) -> None:
        """Drop all but warnings: the rest belongs to a connection that is given back."""
        with self._changed:
            warnings = [event for event in self._result.events if event.kind is EventKind.WARNING]
            self._result, self._tokens = PollResult(events=warnings), 0

    def wake(self) -> None:
        """Let :meth:`wait` return: there is capacity to send again."""
        with self._changed:
            self._wake()

    def fail(self, error: ConfigError) -> None:
        with self._changed:
            self._failure = error
            self._wake()

    def _wake(self) -> None:
        self._urgent = True
        self._changed.notify()

    def ready(self, want: int) -> bool:
        """Whether ``want`` tokens are answered, or the publisher must wake up."""
        return self._urgent or self._failure is not None or self._tokens >= max(1, want)

    def take(self) -> PollResult:
        """Take all results. ConfigError: the error of :meth:`fail`, once the queue is empty."""
        with self._changed:
            self._urgent = False
            result, self._result, self._tokens = self._result, PollResult(), 0
        if not result and self._failure is not None:
            raise self._failure
        return result

    def wait(self, timeout: float, want: int) -> PollResult:
        """Wait until :meth:`ready`, at most ``timeout`` seconds, then :meth:`take`; another thread fills the queue."""
        with self._changed:
            self._wanted = max(1, want)
            if timeout > 0:
                self._changed.wait_for(lambda: self.ready(want), timeout)
            self._wanted = 0
        return self.take()
