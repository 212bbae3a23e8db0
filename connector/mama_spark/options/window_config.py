"""``WindowConfig`` and ``RetryPolicy``: messages in flight, time-outs and retries of a publisher. Ranges are checked
here and nowhere else. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import TYPE_CHECKING

from ..contracts.backoff import Backoff
from ..contracts.errors import ConfigError, PublishError

if TYPE_CHECKING:
    from ..contracts.bridge import Capabilities


def is_retryable(error: PublishError) -> bool:
    return error.retryable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number and time of resends of a message, and the errors after which it is sent again.

    :param attempts: sends after the first one; None = as many as the deadline allows
    :param backoffs: seconds before the 1st, 2nd, ... resend; the last one repeats
    :param deadline: seconds after the first send beyond which nothing is sent again; None = no limit
    :param retry_on: whether to send again after this error

    The defaults are those of the only implementation of the specification (orbit.java's retrier).

    :raises ConfigError: a value is out of range
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
        """Back-off of ``first`` seconds, then twice that, ... up to ``longest``, until ``deadline``."""
        schedule = Backoff(max(first, 0.001), max(first, longest, 0.001))
        rising = takewhile(lambda delay: delay < schedule.most, map(schedule.delay, count()))
        return cls(attempts, (*rising, schedule.most), deadline)

    def backoff(self, resend: int) -> float:
        """Seconds before the ``resend``-th resend (1 = the first)."""
        return self.backoffs[min(max(resend, 1), len(self.backoffs)) - 1]


def usual_refill(max_in_flight: int) -> int:
    """``refill_allowed_at`` where nobody says it: a window that was full lets in more when half of it is left."""
    return max_in_flight // 2


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """The rules of one window; the defaults are the specification's (MP-04..MP-06, MP-09).

    :param max_in_flight: a hold begins when this many flights are not settled (MP-04)
    :param refill_allowed_at: a hold ends when this many or fewer are left (MP-05, MP-43)
    :param wait_timeout: seconds to wait for the acknowledgement of each send (MP-09)
    :param retry: None = every message is sent once (MP-06)
    :param resend_uncertain: send again what may have been stored (safe with ids, else it may store duplicates);
        False settles it as ``timeout``
    :param ordered: keep the order of the flights over resends: nothing goes again before every answer is in, and
        nothing new goes before everything went again. The bridge must refuse what follows a refused message.
    :param max_bytes: payload bytes in flight; one message always fits. None = no limit
    :param ack_timeout: seconds to wait for the acknowledgement of each send, where that is not ``wait_timeout``,
        which is then the seconds of silence after which the cause is asked for
    :raises ConfigError: a value is out of range
    """

    max_in_flight: int = 50
    refill_allowed_at: int = 0
    wait_timeout: float = 5.0
    retry: RetryPolicy | None = None
    resend_uncertain: bool = True
    ordered: bool = False
    max_bytes: int | None = None
    ack_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ConfigError(f"maxInFlight must be 1 or more, got {self.max_in_flight}")
        if not 0 <= self.refill_allowed_at < self.max_in_flight:
            raise ConfigError(
                f"refillAllowedAt must be from 0 to maxInFlight - 1 ({self.max_in_flight - 1}), "
                f"got {self.refill_allowed_at}"
            )
        if self.wait_timeout <= 0:
            raise ConfigError(f"waitTimeout must be positive, got {self.wait_timeout}")

    @property
    def longest_silence(self) -> float:
        """Seconds for which nothing may be acknowledged before that is an outage rather than a lost answer: as long as
        one message is sent again, and no less than two waits for an acknowledgement."""
        retry, longest = self.retry, self.ack_timeout or self.wait_timeout
        if retry is not None and retry.deadline is not None:
            longest = retry.deadline
        elif retry is not None and retry.attempts is not None:
            longest += sum(self.wait_timeout + retry.backoff(resend + 1) for resend in range(retry.attempts))
        return max(longest, 2 * self.wait_timeout)

    def for_bridge(self, capabilities: Capabilities, *, with_ids: bool) -> WindowConfig:
        """The same rules, limited to what the bridge can do.

        Without acknowledgements of the broker nothing is resent; with ``SENT``, writing may take
        :attr:`longest_silence`. Where ids are sent and the bridge deduplicates, a message of which nobody knows whether
        it was stored is sent again in any case. A bridge that does not keep the order over resends has one message in
        flight when an order is wanted.
        """
        from ..contracts.bridge import Ack

        one_by_one = self.ordered and not capabilities.ordered
        return replace(
            self,
            max_in_flight=1 if one_by_one else self.max_in_flight,
            refill_allowed_at=0 if one_by_one else self.refill_allowed_at,
            retry=None if capabilities.ack in (Ack.NONE, Ack.SENT) else self.retry,
            ack_timeout=self.longest_silence if capabilities.ack is Ack.SENT else None,
            resend_uncertain=self.resend_uncertain or (with_ids and capabilities.dedup),
        )
