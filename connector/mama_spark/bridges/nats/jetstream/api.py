"""Questions to the JetStream API, asked again while nobody answers, until the time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import nats.errors
import orjson

from mama_spark.errors import ConfigError, Unavailable

from ..connection.connection import Connection

PREFIX = "$JS.API."
NO_STREAM, NO_CONSUMER, NO_MESSAGE = 10059, 10014, 10037

_TRY = 3.0  #: seconds that one try may take: what was asked of a server that went is never answered
_PAUSE = 0.1


class ApiError(ConfigError):
    """The server's answer is an error that asking again does not change."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code  #: ``err_code``


class Api:
    """Synchronous; every question may be asked twice without harm.

    :param connection: gives the connection
    :param timeout: seconds
    """

    def __init__(self, connection: Callable[[], Connection], timeout: float) -> None:
        self._connection = connection
        self.timeout = timeout

    def ask(self, what: str, body: dict[str, Any] | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """The answer to ``$JS.API.<what>``.

        :raises ConfigError: the permissions forbid to ask
        :raises Said: the server answers with an error
        :raises Unavailable: nobody answers within the time limit
        """
        limit = self.timeout if timeout is None else timeout
        connection = self._connection()
        payload = b"" if body is None else orjson.dumps(body)
        work = ask(connection, what, payload, limit, max(_TRY, limit / 4))
        return connection.loop.run(work, limit + _TRY + 1, f"asking {PREFIX}{what}")


async def ask(connection: Connection, what: str, payload: bytes, limit: float, once: float) -> dict[str, Any]:
    """See :meth:`Api.ask`; on the loop.

    :param once: seconds that one try may take
    """
    until = time.monotonic() + limit
    why = "no answer"
    while (left := until - time.monotonic()) > 0:
        try:
            answer = await connection.ask(PREFIX + what, payload, min(left, once))
        except nats.errors.NoRespondersError:
            why = "nobody listens; is JetStream enabled for this account?"
        except Unavailable as e:
            why = str(e)
        else:
            if answer is None:
                raise ConfigError(f"no permission to publish to {PREFIX}{what}")
            error = answer.get("error")
            if error is None:
                return answer
            why = str(error.get("description"))
            if int(error.get("code", 0)) < 500:
                raise ApiError(f"{why} ({PREFIX}{what})", int(error.get("err_code", 0)))
        if connection.closed:
            break
        await asyncio.sleep(min(_PAUSE, max(0.0, until - time.monotonic())))
    raise Unavailable(f"no answer to {PREFIX}{what} within {limit:g} s: {why}")
