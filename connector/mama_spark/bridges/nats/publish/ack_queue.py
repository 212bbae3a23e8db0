"""Where the loop thread leaves what came in, and where the publisher's thread waits for it."""

from __future__ import annotations

import threading
import time

from mama_spark.bridge import Acks, BridgeEvent, PollResult, Refusals
from mama_spark.errors import BackgroundTaskFailed


class AckQueue:
    """Wakes the reader only when it has what it asked for."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._box = PollResult()
        self._tokens = 0
        self._want = 0
        self._urgent = False
        self._died: BaseException | None = None

    def acks(self, acks: Acks) -> None:
        with self._changed:
            self._box.acks.append(acks)
            self._tokens += len(acks.tokens)
            if 0 < self._want <= self._tokens:
                self._changed.notify()

    @property
    def refused(self) -> bool:
        """Refusals wait to be read."""
        return bool(self._box.refusals)

    def refusals(self, refusals: Refusals) -> None:
        with self._changed:
            self._box.refusals.append(refusals)
            self._wake()

    def event(self, event: BridgeEvent) -> None:
        with self._changed:
            self._box.events.append(event)
            self._wake()

    def wake(self) -> None:
        """Let the reader return: there is room to send again."""
        with self._changed:
            self._wake()

    def died(self, error: BaseException) -> None:
        with self._changed:
            self._died = error
            self._wake()

    def _wake(self) -> None:
        self._urgent = True
        self._changed.notify()

    def take(self, timeout: float, want: int) -> PollResult:
        """Everything that is there, after waiting for ``want`` tokens, something urgent, or the timeout.

        :raises BackgroundTaskFailed: nothing is left and nothing will come
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            self._want = max(1, want)
            while timeout > 0 and self._tokens < self._want and not self._urgent:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            self._want = 0
            self._urgent = False
            box, self._box, self._tokens = self._box, PollResult(), 0
            if not box and self._died is not None:
                died = BackgroundTaskFailed(f"the event loop of the NATS connection ended: {self._died!r}")
                died.__cause__ = self._died
                raise died
        return box
