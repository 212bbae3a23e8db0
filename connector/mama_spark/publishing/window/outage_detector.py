"""Detects that a middleware has stored nothing for too long although messages wait for it. Pure: the caller gives the
time."""

from __future__ import annotations

from mama_spark.contracts.standstill import silent_for


class OutageDetector:
    """Counts the seconds since the last progress, while messages wait for an acknowledgement or cannot be sent.

    :param timeout: seconds after which an outage is declared; infinite = never
    :param notice: seconds after which something seems to be wrong, and that an answer may take after a reconnect
    :ivar declared: an outage was declared and has not ended
    :ivar silent: seconds that messages have waited without any progress
    """

    def __init__(self, timeout: float, notice: float) -> None:
        self.timeout, self.notice = timeout, min(notice, timeout)
        self.declared = False
        self.silent = 0.0
        self._grace = 0.0
        self._unanswered = 0.0  # seconds, of what was sent in a declared outage
        self._checked: float | None = None

    @property
    def noticed(self) -> bool:
        """No progress for ``notice`` seconds: ask the broker for the cause."""
        return self.declared or self.silent > self.notice

    def progressed(self) -> None:
        """A message was stored, or rejected for good: the outage, if there was one, is over."""
        self.silent, self._grace, self.declared = 0.0, 0.0, False

    def reconnected(self) -> None:
        """A declared outage is over; whether messages get through is not known yet."""
        self.declared, self._grace = False, self.notice

    def check(self, blocked: bool, in_flight: int, now: float) -> bool:
        """Whether to give up what waits; declares the outage. Call it regularly. While an outage lasts, what comes is
        given up at once if ``blocked`` (messages wait, and the middleware takes none); else when the few that it took
        (``in_flight``) have not been answered in time."""
        step = 0.0 if self._checked is None else silent_for(self._checked, now)
        waiting = blocked or in_flight > 0
        self._checked = now if waiting else None
        self.silent = self.silent + step if waiting else 0.0
        self._grace -= step
        if self.declared:
            self._unanswered = self._unanswered + step if in_flight else 0.0
            return blocked or self._unanswered > self.notice
        self.declared = self.silent > self.timeout and self._grace <= 0
        self._unanswered = 0.0
        return self.declared
