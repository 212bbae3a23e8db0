"""Slows the whole publisher after errors, as their :class:`~mama_spark.contracts.errors.Backpressure` asks: pauses and
a smaller window. Pure: the caller gives the time."""

from __future__ import annotations

import math

from mama_spark.contracts.errors import Backpressure, PublishError


class BackpressureState:
    """:ivar limit: flights that may be in flight: ``max_in_flight``, or fewer after the server was overloaded
    :ivar level: consecutive pauses without an acknowledgement of what was sent since the last one began
    :ivar began: monotonic seconds at which the last pause began; ``until``: at which it ends
    """

    def __init__(self, max_in_flight: int) -> None:
        self.limit = max_in_flight
        self.level = 0
        self.began = self.until = -math.inf
        self._acked_since_growth = 0

    def concerns(self, sent_at: float, now: float) -> bool:
        """Whether a refused send is a reason for another pause: a burst of refusals is one reason, not thousands."""
        return sent_at >= self.began and now >= self.until

    def pause(self, error: PublishError, now: float, backoff: float) -> None:
        """Begin a pause of ``backoff`` seconds."""
        self.level += 1
        self.began, self.until = now, now + backoff
        if error.backpressure is Backpressure.SHRINK_WINDOW:
            self.limit = max(1, self.limit // 2)
            self._acked_since_growth = 0

    def acknowledged(self, sent_at: float) -> None:
        """A message that was sent at this time was acknowledged."""
        if sent_at >= self.began:
            self.level = 0

    def reconnected(self, now: float) -> None:
        """A new connection is tried at once."""
        self.until = min(self.until, now)

    def grow(self, acks: int, max_in_flight: int) -> None:
        """Give the window an eighth of its size back for each window of acknowledgements."""
        if self.limit < max_in_flight:
            self._acked_since_growth += acks
            if self._acked_since_growth >= self.limit:
                self._acked_since_growth = 0
                self.limit = min(max_in_flight, self.limit + max(1, self.limit // 8))
