"""Counters of a session machine, and the time of its last input. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SessionCounters:
    """Counters since the start of the broker; see :mod:`~mama_spark.malamute.broker.broker.metrics`."""

    malformed: int = 0
    refused: int = 0
    dropped: int = 0
    lost_letters: int = 0
    lost_deliveries: int = 0
    lost_sends: int = 0
    expired: int = 0
    unclosed: int = 0
    repeats: int = 0


@dataclass(slots=True)
class SessionClock:
    """The caller's time of the last input, in seconds of a monotonic clock."""

    now: float = 0.0
