"""Detects an outage: messages wait, and the middleware stores none of them. Pure: the caller gives the time."""

from __future__ import annotations

from mama_spark.contracts.standstill import silent_for


class OutageDetector:
    """Counts seconds without progress while messages wait for an acknowledgement or cannot be sent.

    :param timeout: seconds after which an outage is declared; infinite = never
    :param notice: seconds after which to ask for the cause; also the time for an answer after a reconnect
    :ivar declared: a declared outage lasts
    :ivar silent: seconds that messages have waited without progress
    """

    def __init__(self, timeout: float, notice: float) -> None:
        self.timeout, self.notice = timeout, min(notice, timeout)
        self.declared = False
        self.silent = 0.0
        self._grace = 0.0
        self._unanswered = 0.0  # seconds, of messages sent in a declared outage
        self._checked: float | None = None

    @property
    def noticed(self) -> bool:
        """No progress for ``notice`` seconds: ask the broker for the cause."""
        return self.declared or self.silent > self.notice

    def progressed(self) -> None:
        """A message was stored, or rejected for good: end the outage."""
        self.silent, self._grace, self.declared = 0.0, 0.0, False

    def reconnected(self) -> None:
        """End a declared outage, although it is unknown whether messages get through."""
        self.declared, self._grace = False, self.notice

    def check(self, blocked: bool, in_flight: int, now: float, queued: bool = False) -> bool:
        """Whether to give up the waiting messages; declares outages. Call it regularly. In a declared outage: at once
        if ``blocked`` (the middleware takes none), else after ``notice`` seconds with messages ``in_flight``. Messages
        that are only ``queued`` count no time, and keep what was counted: a window that timed out whole is no progress.
        """
        step = 0.0 if self._checked is None else silent_for(self._checked, now)
        waiting = blocked or in_flight > 0
        self._checked = now if waiting else None
        self.silent = self.silent + step if waiting else self.silent if queued else 0.0
        self._grace -= step
        if self.declared:
            self._unanswered = self._unanswered + step if in_flight else 0.0
            return blocked or self._unanswered > self.notice
        self.declared = self.silent > self.timeout and self._grace <= 0
        self._unanswered = 0.0
        return self.declared
