"""Whether a message or request may be resent after an error (MP-06), by the error alone. Every sender asks here;
:class:`.ResendQueue` adds the limits of a publisher. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mama_spark.contracts.errors import MamaError, NotPublished, PublishError, Stopped
from mama_spark.options.window_config import is_retryable


def may_resend(error: MamaError, *, repeatable: bool = True, retry_on: Callable[[Any], bool] = is_retryable) -> bool:
    """Whether the same message or request may be resent after ``error``.

    :param repeatable: a second copy does no harm: the middleware recognises its id, or the request only reads
    """
    return retry_on(error) and (repeatable or not error.may_have_landed)


def may_resend_elsewhere(error: MamaError) -> bool:
    """Whether a replacement publisher may resend after ``error``; also if the first one ended without the outcome."""
    return may_resend(error) or isinstance(error, Stopped | NotPublished)


def is_final(error: PublishError) -> bool:
    """Whether the message itself is the cause: it was rejected, is not stored, and a resend would be rejected, too."""
    return error.answered and not error.retryable and not error.may_have_landed
