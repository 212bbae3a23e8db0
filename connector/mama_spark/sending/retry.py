"""Whether a message is sent again after an error (MP-06), how often, how long, and after what wait.

Every sender asks here: :func:`may_resend` decides by the error alone; :class:`~mama_spark.options.window.RetryPolicy`
adds the limits of a publisher.
"""

from __future__ import annotations

from mama_spark.errors import MamaError, NotPublished, PublishError, Stopped


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
