"""Client of the JetStream API (NATS ADR-1), and of single acknowledged publishes (rows: :mod:`..publish.bridge`).

Requests are repeated by the rule of :mod:`.retry`, so each must be safe to arrive twice.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, TypeVar

import nats.errors
import orjson

from mama_spark.contracts.errors import Unavailable

from .. import errors
from ..connection.connection import Connection
from ..protocol.direct_get import StoredMessage, headers_of
from ..subjects import to_allow
from .answers import NO_MESSAGE, NO_RESPONDERS, NO_STREAM, ApiError, ApiForbidden, StreamInfo, answer_of
from .retry import ServerNotReady, retry

T = TypeVar("T")

_ATTEMPT = 3.0  #: seconds of one attempt: a request to a stopped server is never answered


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

    async def find(self, call: str, body: dict[str, Any] | None, absent: int) -> dict[str, Any] | None:
        """As :meth:`request`; None if the server answers with the error ``absent``."""
        try:
            return await self.request(call, body)
        except ApiError as e:
            if e.code != absent:
                raise
            return None

    async def stream(self, name: str, **details: bool) -> StreamInfo | None:
        """None: there is no stream of this name."""
        answer = await self.find(f"STREAM.INFO.{name}", details or None, NO_STREAM)
        return None if answer is None else StreamInfo.of(answer)

    async def message(self, stream: str, **which: str | int) -> StoredMessage | None:
        """A message as the leader of the stream has it, never stale; None: there is none.

        :param which: ``seq=n``, ``last_by_subj=s``, or both ``seq=n`` and ``next_by_subj=s``
        """
        answer = await self.find(f"STREAM.MSG.GET.{stream}", which, NO_MESSAGE)
        if answer is None:
            return None
        found = answer["message"]
        block = b64decode(found.get("hdrs", ""))
        payload = b64decode(found.get("data", ""))
        return StoredMessage(int(found["seq"]), found["time"], found["subject"], payload, headers_of(block), block)

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
