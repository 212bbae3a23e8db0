"""Client of the JetStream API (NATS ADR-1), and of single acknowledged publishes (rows: :mod:`..publish.bridge`).

Requests are repeated by the rule of :mod:`.retry`, so each must be safe to arrive twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

import nats.errors
import orjson

from mama_spark.contracts.errors import ConfigError, Unavailable

from .. import errors
from ..connection.connection import Connection
from ..subjects import to_allow
from .retry import ServerNotReady, retry

T = TypeVar("T")

NO_STREAM, NO_CONSUMER, NO_MESSAGE = 10059, 10014, 10037
#: In :class:`ApiError`: no responders, so JetStream is off for the server or the account.
NO_RESPONDERS = 503

_ATTEMPT = 3.0  #: seconds of one attempt: a request to a stopped server is never answered


class ApiError(ConfigError):
    """The server answered with a permanent error: the same request would get the same answer.

    :ivar code: its ``err_code``
    :ivar description: its text
    """

    def __init__(self, text: str, code: int, description: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.description = description or text


class ApiForbidden(ConfigError):
    """The permissions of the user do not allow the request."""


class JetStreamClient:
    """Requests over one connection; everything runs on its event loop.

    :param timeout: seconds that a call may take, repetitions included
    :param attempt_timeout: seconds that one attempt may take
    """

    def __init__(self, connection: Connection, timeout: float, attempt_timeout: float | None = None) -> None:
        self.connection, self.timeout = connection, timeout
        self.attempt_timeout = max(_ATTEMPT, timeout / 4) if attempt_timeout is None else attempt_timeout

    @property
    def prefix(self) -> str:
        """Prefix of the subjects of all requests."""
        return self.connection.api_prefix

    async def retry(self, what: str, attempt: Callable[[float], Awaitable[T]], timeout: float | None = None) -> T:
        """See :func:`~.retry.retry`; ends early when the connection is closed for good."""
        return await retry(what, attempt, self.timeout if timeout is None else timeout, self._usable)

    def _usable(self) -> bool:
        return not self.connection.closed and self.connection.loop.alive

    async def request(
        self,
        call: str,
        body: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        final: Collection[int] = (),
    ) -> dict[str, Any]:
        """The answer to ``$JS.API.<call>``, or to the same request below the prefix of the connection.

        :param timeout: seconds, instead of those of all calls
        :param final: ``err_code`` (or :data:`NO_RESPONDERS`) of errors that are raised at once instead of retried
        :raises ApiForbidden: the permissions do not allow it
        :raises ApiError: the server answers with an error
        :raises Unavailable: no answer within the time limit
        """
        payload = b"" if body is None else orjson.dumps(body)
        subject = f"{self.prefix}{call}"

        async def attempt(left: float) -> dict[str, Any]:
            try:
                reply = await self.connection.request(subject, payload, min(left, self.attempt_timeout))
            except nats.errors.NoRespondersError as e:
                if NO_RESPONDERS not in final:
                    raise
                raise ApiError("nobody listens to the JetStream API", NO_RESPONDERS) from e
            if reply is None:
                raise ApiForbidden(f"no permission to publish to {subject}; allow publish to {to_allow(subject)!r}")
            answer = answer_of(reply.data)
            _raise_error(subject, answer.get("error"), final)
            return answer

        return await self.retry(subject, attempt, timeout)

    async def pages(self, call: str, key: str, body: dict[str, Any] | None = None) -> AsyncIterator[Any]:
        """The elements of a list that the server answers page by page; otherwise as :meth:`request`."""
        offset = 0
        while True:
            answer = await self.request(call, {"offset": offset, **(body or {})})
            page = answer.get(key) or []
            for one in page:
                yield one
            offset += len(page)
            if not page or offset >= int(answer.get("total", 0)):
                return

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str], timeout: float | None = None) -> int:
        """Store one message; returns its sequence in the stream.

        :raises ApiForbidden: the permissions do not allow it
        :raises PublishError: the server rejects it
        :raises Unavailable: no acknowledgement within the time limit
        """

        async def attempt(_: float) -> int:
            reply = await self.connection.request(subject, payload, self.attempt_timeout, headers or None)
            if reply is None:
                raise ApiForbidden(f"no permission to publish to {subject!r}")
            answer = answer_of(reply.data)
            if (error := answer.get("error")) is not None:
                raise errors.from_reply(
                    int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description"))
                )
            if not isinstance(sequence := answer.get("seq"), int):
                raise Unavailable(f"not an acknowledgement of JetStream: {reply.data[:100]!r}")
            return sequence

        return await self.retry(f"the publish to {subject!r}", attempt, timeout)


def _raise_error(subject: str, error: dict[str, Any] | None, final: Collection[int]) -> None:
    if error is None:
        return
    text, code = str(error.get("description")), int(error.get("err_code", 0))
    if int(error.get("code", 0)) < 500 or code in final:
        raise ApiError(f"{text} ({subject})", code, text)
    raise ServerNotReady(text, code)


def answer_of(data: bytes) -> dict[str, Any]:
    """The JSON object of an answer; its ``error``, if any, is an object with numeric codes.

    :raises Unavailable: the answer is no such JSON
    """
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict) or not _is_error(answer.get("error")):
        raise Unavailable(f"not an answer of JetStream: {data[:100]!r}")
    return answer


def _is_error(error: object) -> bool:
    return error is None or (
        isinstance(error, dict) and all(isinstance(error.get(code, 0), int) for code in ("code", "err_code"))
    )


class BlockingJetStreamClient:
    """:class:`JetStreamClient` for threads other than that of the event loop.

    :param connection: returns the connection; another one when the last was closed
    :param timeout: seconds that a call may take
    """

    def __init__(self, connection: Callable[[], Connection], timeout: float) -> None:
        self._connection = connection
        self.timeout = timeout

    def request(self, call: str, body: dict[str, Any] | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """See :meth:`JetStreamClient.request`."""
        return self.run(
            lambda client: client.request(call, body), f"asking {self._connection().api_prefix}{call}", timeout
        )

    def run(
        self, work: Callable[[JetStreamClient], Coroutine[Any, Any, T]], what: str, timeout: float | None = None
    ) -> T:
        """Run ``work`` on the event loop.

        :param what: description for the error
        :param timeout: seconds, instead of those of all calls
        """
        limit = self.timeout if timeout is None else timeout
        connection = self._connection()
        return connection.loop.run(work(JetStreamClient(connection, limit)), limit + _ATTEMPT + 1, what)
