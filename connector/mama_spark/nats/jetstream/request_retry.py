"""The one rule by which requests to JetStream are repeated (no responders: NATS ADR-22)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import MamaError, NoResponders, PublishError, Unavailable
from mama_spark.publishing.window.retry import may_resend

T = TypeVar("T")

BACKOFF = Backoff(0.05, 0.8)


class ServerNotReady(Unavailable):
    """Temporary error of the server (a code of 500 and above), with its ``err_code``."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def retry(
    what: str,
    attempt: Callable[[float], T],
    timeout: float,
    wait: Callable[[float], object],
    usable: Callable[[], bool] = lambda: True,
) -> T:
    """Call ``attempt`` until it returns, or raises what may not be sent again: a request is repeated when there is no
    reply, no responder, a server that is not ready, or a rejection that may pass.

    :param what: description for the error, as in "direct get from ..."
    :param attempt: called with the seconds that are left
    :param timeout: seconds, after which no attempt begins
    :param wait: a sleep of so many seconds
    :param usable: returns False when no attempt can succeed any more
    :raises Unavailable: the last error, when the time is over
    """
    until, delays = time.monotonic() + timeout, BACKOFF.delays()
    while True:
        try:
            return attempt(max(until - time.monotonic(), 0.0))
        except (Unavailable, PublishError) as e:
            if not may_resend(e):
                raise
            delay = delays.next()
            if not usable() or time.monotonic() + delay > until:
                raise Unavailable(f"no answer to {what} within {timeout:g} s: {_why(e)}") from e
        wait(delay)


def _why(error: MamaError) -> str:
    nobody = isinstance(error, NoResponders)
    return "nobody listens; is JetStream enabled for this account?" if nobody else str(error)
