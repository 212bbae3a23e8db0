"""Detects that a middleware has taken and acknowledged nothing for too long. Pure: the caller gives the time."""

from __future__ import annotations


class OutageDetector:
    """Decides when messages that wait to be sent have waited too long. They have no deadline of their own: the retry
    deadline of a message begins with its first send.

    :param timeout: seconds without progress after which an outage is declared
    :ivar declared: an outage was declared and has not ended
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.declared = False
        self._blocked_since: float | None = None

    def sent_unacknowledged(self) -> None:
        """The middleware took messages that it never acknowledges."""
        self._blocked_since = None

    def acknowledged(self) -> None:
        """The outage, if there was one, is over."""
        self._blocked_since, self.declared = None, False

    def reconnected(self) -> None:
        """A declared outage is over; whether messages get through is not known yet."""
        self.declared = False

    def lasts_too_long(self, blocked: bool, in_flight: int, now: float) -> bool:
        """Whether to give up what waits to be sent; declares the outage. Call it regularly.

        :param blocked: messages wait, and the middleware takes none
        :param in_flight: flights that are not settled: these are waited for first
        """
        if not blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        elif (self.declared or now - self._blocked_since > self.timeout) and not in_flight:
            self.declared = True
            return True
        return False
