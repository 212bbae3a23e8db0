"""Limits the messages a second. Pure: the caller gives the time."""

from __future__ import annotations

from mama_spark.contracts.errors import ConfigError


class RateLimiter:
    """Token bucket: at most ``rate`` messages a second, in bursts of at most a tenth of a second's worth."""

    def __init__(self, rate: float, now: float) -> None:
        if rate <= 0:
            raise ConfigError(f"the rate must be positive, got {rate}")
        self.rate = rate
        self.burst = max(1.0, rate / 10)
        self._level = self.burst
        self._at = now

    def allowance(self, now: float) -> int:
        if now > self._at:  # a clock that stands still or jumps back gives nothing
            self._level = min(self.burst, self._level + (now - self._at) * self.rate)
            self._at = now
        return int(self._level)

    def spend(self, n: int) -> None:
        self._level -= n

    def wake_at(self, now: float) -> float:
        """Time from which a message may be sent."""
        return now if self._level >= 1 else self._at + (1 - self._level) / self.rate
