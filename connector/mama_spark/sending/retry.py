"""Whether a message is sent again after an error (MP-06), how often, how long, and after what wait.

Every sender asks here: :func:`may_resend` decides by the error alone, :class:`RetryPolicy` adds the limits of a
publisher. Pure: the caller gives the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mama_spark.errors import ConfigError, MamaError, NotPublished, PublishError, Stopped


def may_resend(error: MamaError, *, repeatable: bool = True) -> bool:
    """Whether the same message may be sent again after ``error``.

    :param repeatable: a second copy of the message does no harm, because the middleware recognises its id
    """
    return error.retryable and (repeatable or not error.may_have_landed)


def may_resend_elsewhere(error: MamaError) -> bool:
    """Whether the message may be sent again by the publisher that replaces the one which reported ``error``: also when
    that one ended before it knew the outcome."""
    return may_resend(error) or isinstance(error, Stopped | NotPublished)


def is_final(error: PublishError) -> bool:
    """Whether the message itself is the cause: the middleware, or our own check, rejected it, it is not stored, and
    a resend would be rejected too."""
    return error.answered and not error.retryable and not error.may_have_landed


def is_retryable(error: PublishError) -> bool:
    """Default of :attr:`RetryPolicy.retry_on`: the flag of the error."""
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
