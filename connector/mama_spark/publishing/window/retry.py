"""Whether a message, or a request, may be sent again after an error (MP-06), by the error alone: every sender asks
here; :class:`.ResendQueue` adds the limits of a publisher. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mama_spark.contracts.errors import MamaError, NotPublished, PublishError, Stopped
from mama_spark.options.window_config import is_retryable


def may_resend(error: MamaError, *, repeatable: bool = True, retry_on: Callable[[Any], bool] = is_retryable) -> bool:
    """Whether the same message, or request, may be sent again after ``error``.

    :param repeatable: a second copy does no harm, because the middleware recognises the id of the message, or because
        the request only reads
    :param retry_on: which errors are worth a resend
    """
    return retry_on(error) and (repeatable or not error.may_have_landed)


def may_resend_elsewhere(error: MamaError) -> bool:
    """Whether the publisher that replaces the one which reported ``error`` may send the message again: also when that
    one ended before it knew the outcome."""
    return may_resend(error) or isinstance(error, Stopped | NotPublished)


def is_final(error: PublishError) -> bool:
    """Whether the message itself is the cause: it was rejected, is not stored, and a resend would be rejected too."""
    return error.answered and not error.retryable and not error.may_have_landed
