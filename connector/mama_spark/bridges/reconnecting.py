"""A bridge that is opened when it is first needed, and opened again after an outage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ..errors import MamaError

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  #: seconds between two tries


class Openable(Protocol):
    def open(self) -> None: ...
    def close(self) -> None: ...


B = TypeVar("B", bound=Openable)
T = TypeVar("T")


class ReconnectingBridge(Generic[B]):
    """Work with a bridge of one thread.

    :param make: a bridge that is not open
    :param patience: seconds that an outage may last before a call fails
    """

    def __init__(
        self,
        make: Callable[[], B],
        patience: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._make, self._patience, self._clock, self._sleep = make, patience, clock, sleep
        self._bridge: B | None = None

    def call(self, work: Callable[[B], T], patience: float | None = None) -> T:
        """``work(bridge)``; once more from the start, on a new bridge, when an error says that this may help.

        :param patience: for this call, instead of the usual
        :raises MamaError: the last one
        """
        until, pause = self._clock() + (self._patience if patience is None else patience), FIRST_PAUSE
        while True:
            try:
                return work(self._opened())
            except MamaError as e:
                self.close()
                if not e.retryable or self._clock() + pause > until:
                    raise
                self._sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

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
        """Never raises; the next call opens again."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.close()
