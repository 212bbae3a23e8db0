"""Queue of acknowledgements, refusals and events from the event loop's thread to the publisher's thread."""

from __future__ import annotations

import threading
import time

from mama_spark.contracts.bridge import Acks, BridgeEvent, PollResult, Refusals
from mama_spark.contracts.errors import BackgroundTaskFailed, ConfigError


class AckQueue:
    """Wakes the publisher only when as many tokens as it waits for are there, or something urgent."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._result = PollResult()
        self._tokens = 0
        self._wanted = 0
        self._urgent = False
        self._died: BaseException | None = None

    def acks(self, acks: Acks) -> None:
        with self._changed:
            self._result.acks.append(acks)
            self._tokens += len(acks.tokens)
            if 0 < self._wanted <= self._tokens:
                self._changed.notify()

    @property
    def refused(self) -> bool:
        """Whether there are refusals that were not taken yet."""
        return bool(self._result.refusals)

    def refusals(self, refusals: Refusals) -> None:
        with self._changed:
            self._result.refusals.append(refusals)
            self._wake()

    def event(self, event: BridgeEvent) -> None:
        with self._changed:
            self._result.events.append(event)
            self._wake()

    def wake(self) -> None:
        """Let :meth:`wait` return: there is capacity to send again."""
        with self._changed:
            self._wake()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._died = error
            self._wake()

    def _wake(self) -> None:
        self._urgent = True
        self._changed.notify()

    def wait(self, timeout: float, want: int) -> PollResult:
        """Wait for ``want`` tokens, something urgent, or ``timeout`` seconds; returns everything that is there.

        :raises ConfigError: the queue is empty, and :meth:`fail` was called with it
        :raises BackgroundTaskFailed: the queue is empty, and the loop has ended
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            self._wanted = max(1, want)
            while timeout > 0 and self._tokens < self._wanted and not self._urgent:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            self._wanted = 0
            self._urgent = False
            result, self._result, self._tokens = self._result, PollResult(), 0
            if not result and isinstance(self._died, ConfigError):
                raise self._died
            if not result and self._died is not None:
                fail = BackgroundTaskFailed(f"the event loop of the NATS connection ended: {self._died!r}")
                fail.__cause__ = self._died
                raise fail
        return result
