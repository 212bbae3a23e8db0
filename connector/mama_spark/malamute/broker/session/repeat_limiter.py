"""Limits the answers to repeated commands: the C client repeats commands on reconnect in an endless loop. Pure."""

from __future__ import annotations

from .client_session import ClientSession
from .counters import SessionCounters


class RepeatLimiter:
    """:param limit: repeated WRITE, READ and OFFER that are answered per client and second"""

    def __init__(self, limit: int, counters: SessionCounters) -> None:
        self._limit = limit
        self._counters = counters

    def allows(self, client: ClientSession, now: float) -> bool:
        """Count one repeated command of the client; False if it must not be answered."""
        if now - client.repeats_since >= 1.0:
            client.repeats, client.repeats_since = 0, now
        client.repeats += 1
        if client.repeats > self._limit:
            self._counters.repeats += 1
            return False
        return True
