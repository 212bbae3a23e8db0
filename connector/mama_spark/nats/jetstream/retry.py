"""The one rule by which requests to JetStream are repeated: which errors, with which delays, and for how long. That no
responders is such an error is NATS ADR-22."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.errors import NoRespondersError

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import MamaError, PublishError, Unavailable
from mama_spark.publishing.window.retry import may_resend

T = TypeVar("T")

BACKOFF = Backoff(0.05, 0.8)


class ServerNotReady(Unavailable):
    """The server answered with a temporary error (a code of 500 and above).

    :ivar code: its ``err_code``
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def is_retryable_request(error: Exception) -> bool:
    """Whether a request is repeated: no reply, no responders, a server that is not ready, or a rejected publish that
    may be repeated."""
    return isinstance(error, NoRespondersError) or (isinstance(error, MamaError) and may_resend(error))


async def retry(
    what: str, attempt: Callable[[float], Awaitable[T]], timeout: float, usable: Callable[[], bool] = lambda: True
) -> T:
    """Call ``attempt`` until it returns, or raises what is not :func:`is_retryable_request`.

    :param what: description for the error, as in "direct get from ..."
    :param attempt: called with the seconds that are left
    :param timeout: seconds, after which no attempt begins
    :param usable: returns False when no attempt can succeed any more
    :raises Unavailable: the last error, when the time is over
    """
    now = asyncio.get_running_loop().time
    until, delays = now() + timeout, BACKOFF.delays()
    while True:
        try:
            return await attempt(max(until - now(), 0.0))
        except (Unavailable, NoRespondersError, PublishError) as e:
            if not is_retryable_request(e):
                raise
            delay = delays.next()
            if not usable() or now() + delay > until:
                nobody = isinstance(e, NoRespondersError)
                why = "nobody listens; is JetStream enabled for this account?" if nobody else e
                raise Unavailable(f"no answer to {what} within {timeout:g} s: {why}") from e
        await asyncio.sleep(delay)
