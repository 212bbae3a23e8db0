"""Whether a message is sent again after an error (MP-06), how often, how long, and after what wait.

Every sender, and whatever repeats a request, asks here: :func:`may_resend` decides by the error alone,
:func:`resends_allowed` adds the limits of a publisher. Pure: the caller gives the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mama_spark.contracts.errors import MamaError, NotPublished, PublishError, Stopped
from mama_spark.contracts.message import Bools
from mama_spark.options.window import RetryPolicy, is_retryable


def may_resend(error: MamaError, *, repeatable: bool = True, retry_on: Callable[[Any], bool] = is_retryable) -> bool:
    """Whether the same message, or request, may be sent again after ``error``.

    :param repeatable: a second copy does no harm, because the middleware recognises the id of the message, or because
        the request only reads
    :param retry_on: which errors are worth a resend
    """
    return retry_on(error) and (repeatable or not error.may_have_landed)


def may_resend_elsewhere(error: MamaError) -> bool:
    """Whether the message may be sent again by the publisher that replaces the one which reported ``error``: also when
    that one ended before it knew the outcome."""
    return may_resend(error) or isinstance(error, Stopped | NotPublished)


def is_final(error: PublishError) -> bool:
    """Whether the message itself is the cause: the middleware, or our own check, rejected it, it is not stored, and
    a resend would be rejected too."""
    return error.answered and not error.retryable and not error.may_have_landed


def resends_allowed(
    policy: RetryPolicy,
    error: PublishError,
    sends: npt.NDArray[np.int32],
    first_sent: npt.NDArray[np.float64],
    now: float,
    *,
    repeatable: bool,
    non_retriable: Bools | None,
) -> Bools:
    """Which of the messages whose last send ended with ``error`` may be sent again, one element each.

    :param sends: how many attempts were made of each; ``first_sent``: when first, seconds of the clock of ``now``
    :param repeatable: see :func:`may_resend`
    :param non_retriable: True where a resend is unsafe if the message may be stored (it carries an expectation)
    """
    if not may_resend(error, repeatable=repeatable, retry_on=policy.retry_on):
        return np.zeros(len(sends), np.bool_)
    allowed = np.ones(len(sends), np.bool_)
    if policy.attempts is not None:
        allowed &= sends <= policy.attempts
    if policy.deadline is not None:
        allowed &= first_sent + policy.deadline > now
    if error.may_have_landed and non_retriable is not None:
        allowed &= ~non_retriable
    return allowed
