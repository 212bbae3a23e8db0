"""When a flight may go again (MP-06), how long to wait before, and how fast rows may leave at all. No clock here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mama_spark.errors import ConfigError, PublishError


def is_retryable(error: PublishError) -> bool:
    """The default condition: what the error itself says."""
    return error.retryable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how long and on what a flight is sent again.

    :param attempts: sends after the first one; None = as many as the deadline allows
    :param backoffs: seconds before the 1st, 2nd, ... resend; the last one repeats
    :param deadline: seconds after the first send beyond which nothing is sent again; None = no limit
    :param retry_on: which errors are worth it

    The defaults are those of the only implementation of the specification (orbit.java's retrier).
    """

    attempts: int | None = 2
    backoffs: tuple[float, ...] = (0.25, 0.25, 0.5, 0.5, 3.0, 5.0)
    deadline: float | None = None
    retry_on: Callable[[PublishError], bool] = is_retryable

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ConfigError(f"retry attempts must be 1 or more, got {self.attempts}")
        if not self.backoffs or min(self.backoffs) < 0:
            raise ConfigError(f"retry back-offs must be a non-empty list of seconds >= 0, got {self.backoffs}")
        if self.deadline is not None and self.deadline <= 0:
            raise ConfigError(f"the retry deadline must be positive, got {self.deadline}")
        if self.attempts is None and self.deadline is None:
            raise ConfigError("retry needs a bound: attempts, a deadline, or both")

    @classmethod
    def doubling(cls, first: float, longest: float, deadline: float, attempts: int | None = None) -> RetryPolicy:
        """Back-off ``first``, twice that, ... up to ``longest`` seconds, until ``deadline``: the sink's policy."""
        waits = [max(first, 0.001)]
        while waits[-1] < longest:
            waits.append(min(waits[-1] * 2, longest))
        return cls(attempts, tuple(waits), deadline)

    def backoff(self, resend: int) -> float:
        """Seconds to wait before the ``resend``-th resend (1 = the first)."""
        return self.backoffs[min(max(resend, 1), len(self.backoffs)) - 1]


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
        """How many may go now."""
        if now > self._at:  # a clock that stands still or jumps back gives nothing
            self._level = min(self.burst, self._level + (now - self._at) * self.rate)
            self._at = now
        return int(self._level)

    def spend(self, n: int) -> None:
        """``n`` went."""
        self._level -= n

    def wake_at(self, now: float) -> float:
        """When at least one may go."""
        return now if self._level >= 1 else self._at + (1 - self._level) / self.rate
