"""Reads messages of a stream without a consumer, by direct get (NATS ADR-31).

A reader that ends leaves nothing behind, and makes no advisories that would fill the stream of advisories it may read.
Any replica may answer, from what it has: each answer is a prefix of the stream without holes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import time
from collections.abc import Coroutine, Iterator
from typing import Any, Self, TypeVar

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import NoRespondersError

from mama_spark.contracts.errors import Unavailable

from ..connection.connection import Connection
from ..connection.inbound_parser import Deliveries
from ..connection.nats_py_errors import from_client
from ..protocol.direct_get import DirectGetParser, StoredMessage, headers_of, stored
from .api import NO_MESSAGE, ApiError, ApiForbidden, JetStreamClient
from .retry import BACKOFF

T = TypeVar("T")

_PAGE = 2000
_PAGE_BYTES = 8 * 1024 * 1024
_LEFT = re.compile(r"Nats-Num-Pending=(\d+)")


class StreamClient:
    """Reads streams by direct get, or from the stream's leader if an answer must not be stale.

    For threads other than that of the event loop.

    :param timeout: seconds that a call may take, repetitions included
    :param attempt_timeout: seconds that one attempt may take
    """

    def __init__(self, connection: Connection, timeout: float, attempt_timeout: float) -> None:
        self.api = JetStreamClient(connection, timeout, attempt_timeout)

    @property
    def connection(self) -> Connection:
        return self.api.connection

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the event loop. Calls have their own time limits; this one guards against defects."""
        return self.connection.loop.run(work, 20 * self.api.timeout + 60, "asking JetStream")

    def request(
        self, call: str, stream: str, body: dict[str, Any] | None = None, absent: int | None = None
    ) -> dict[str, Any] | None:
        """A request of the JetStream API about a stream; None if the server answers with the error ``absent``.

        :raises ApiForbidden, ApiError, Unavailable: see :meth:`JetStreamClient.request`
        """
        try:
            return self.run(self.api.request(f"{call}.{stream}", body))
        except ApiError as e:
            if e.code == absent:
                return None
            raise

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], timeout: float | None = None) -> int:
        """See :meth:`JetStreamClient.publish`."""
        return self.run(self.api.publish(subject, payload, headers, timeout))

    # --- reading ---------------------------------------------------------------------------------------------

    def get(self, stream: str, body: dict[str, Any], timeout: float | None = None) -> StoredMessage | None:
        """The message that a direct get finds: ``{"seq": n}``, ``{"last_by_subj": s}``, ``{"seq": n, "next_by_subj":
        s}``."""
        subject, payload = self._direct_get(stream), orjson.dumps(body)

        async def attempt(_: float) -> StoredMessage | None:
            reply = await self.connection.request(subject, payload, self.api.attempt_timeout)
            if reply is None:
                raise _forbidden(stream, subject)
            headers = reply.headers or {}
            if headers.get("Status") == "404":
                return None
            if "Status" in headers or "Nats-Sequence" not in headers:
                raise Unavailable(str(headers))
            return stored(dict(headers), reply.data)

        return self.run(self.api.retry(f"the direct get from the stream {stream!r}", attempt, timeout))

    def leader_get(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message of a subject, from the leader of the stream: never stale."""
        answer = self.request("STREAM.MSG.GET", stream, {"last_by_subj": subject}, absent=NO_MESSAGE)
        if answer is None:
            return None
        found = answer["message"]
        headers = headers_of(base64.b64decode(found.get("hdrs", "")))
        return StoredMessage(
            int(found["seq"]), found["time"], found["subject"], base64.b64decode(found.get("data", "")), headers
        )

    def has_direct_get(self, stream: str) -> bool:
        """Whether direct gets from the stream are answered. One request, which makes no advisory.

        :raises Unavailable: no answer
        """
        try:
            self.run(self.connection.request(self._direct_get(stream), b'{"seq":1}', self.api.attempt_timeout))
        except NoRespondersError:
            return False
        return True

    def _direct_get(self, stream: str) -> str:
        return f"{self.api.prefix}DIRECT.GET.{stream}"

    def first_and_last(self, stream: str) -> tuple[int, int]:
        """Sequences of the first and the last message; (0, 0) when there is none."""
        first = self.get(stream, {"seq": 1, "next_by_subj": ">"})
        last = self.get(stream, {"last_by_subj": ">"})
        return (0, 0) if first is None or last is None else (first.sequence, max(first.sequence, last.sequence))

    def pages(
        self, stream: str, after: int, subject: str, up_to: int | None = None, *, beyond: bool = False
    ) -> Iterator[list[StoredMessage]]:
        """Messages behind sequence ``after`` on ``subject`` (wildcards), to the end or ``up_to``, and perhaps beyond in
        the last page.

        With ``up_to`` it goes on until a message at or beyond it is seen, or the leader says that there is none: a
        replica may not have it yet.

        :param beyond: then read on to the end: records that were rewritten meanwhile have moved there
        """
        now = time.monotonic
        until, delays = now() + self.api.timeout, BACKOFF.delays()
        while True:
            messages, pending = self._page(stream, after, subject)
            if messages:
                yield messages
                after, until = messages[-1].sequence, now() + self.api.timeout
                delays.reset()
            if up_to is not None and after >= up_to and not (beyond and pending):
                return
            if pending:
                continue
            if up_to is None or self._ends_before(stream, subject, up_to):
                return
            if now() > until:
                raise Unavailable(f"no replica of the stream {stream!r} has sequence {up_to} yet")
            time.sleep(delays.next())

    def _ends_before(self, stream: str, subject: str, up_to: int) -> bool:
        last = self.leader_get(stream, subject)
        return last is None or last.sequence < up_to

    def _page(self, stream: str, after: int, subject: str) -> tuple[list[StoredMessage], int]:
        body = {"seq": after + 1, "next_by_subj": subject, "batch": _PAGE, "max_bytes": _PAGE_BYTES}
        return self.get_many(stream, body)

    def get_many(self, stream: str, body: dict[str, Any]) -> tuple[list[StoredMessage], int]:
        """The messages that one multi-message direct get returns, and how many are left."""
        return self.run(self.api.retry(f"the read of the stream {stream!r}", lambda _: self._get_many(stream, body)))

    async def _get_many(self, stream: str, body: dict[str, Any]) -> tuple[list[StoredMessage], int]:
        """One attempt.

        :raises Unavailable: the reply is incomplete
        :raises ApiForbidden: the permissions do not allow it
        """
        subject = self._direct_get(stream)
        reply = DirectGetReply(self.connection)
        try:
            await reply.subscribe()
            try:
                with self.connection.denials(subject) as refused:
                    await self.connection.client.publish(subject, orjson.dumps(body), reply=reply.inbox)
                    await reply.wait(refused, self.api.attempt_timeout)
                    if refused.done():
                        raise _forbidden(stream, subject)
            finally:
                await reply.unsubscribe()
        except (nats.errors.Error, OSError) as e:
            raise Unavailable(f"direct get from {stream!r}: {from_client(e)}") from e
        if not reply.ended.done():
            raise Unavailable("it broke off")
        status, text = reply.ended.result()
        if status == 503:
            raise NoRespondersError
        if status not in (204, 404):
            raise Unavailable(f"{status} {text}")
        left = _LEFT.search(text)
        return reply.messages(), 0 if left is None else int(left[1])


def _forbidden(stream: str, subject: str) -> ApiForbidden:
    return ApiForbidden(f"no permission for {subject!r}: the stream {stream!r} cannot be read")


class DirectGetReply(Deliveries):
    """The messages of one multi-message direct get, parsed in bulk or by nats-py."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.inbox = connection.client.new_inbox()
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._messages: list[tuple[dict[str, str], bytes]] = []
        self._subscription: Subscription | None = None
        self._raw: bytes | None = None
        self._parser = DirectGetParser(0)

    async def subscribe(self) -> None:
        self._subscription = await self._connection.client.subscribe(
            self.inbox, cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._raw = self._connection.deliver_raw(self._subscription, self._parse_raw)

    def _parse_raw(self, sid: int) -> Self:
        self._parser = DirectGetParser(sid)
        return self

    def take(self, data: bytes, at: int) -> tuple[int, int]:
        """See :class:`~mama_spark.nats.connection.inbound_parser.Deliveries`."""
        return self._parser.take(data, at)

    def on_status(self, subject: str, status: int, text: str) -> None:
        """See :class:`~mama_spark.nats.connection.inbound_parser.Deliveries`."""
        if not self.ended.done():
            self.ended.set_result((status, text))

    async def _on_message(self, msg: Msg) -> None:
        headers = dict(msg.headers or {})
        if "Status" in headers and "Nats-Sequence" not in headers:
            text = " ".join(f"{name}={value}" for name, value in headers.items())
            status = headers["Status"]
            self.on_status(
                msg.subject, int(status) if status.isascii() and status.isdigit() and len(status) <= 3 else 0, text
            )
        else:
            self._messages.append((headers, msg.data))

    async def wait(self, refused: asyncio.Future[str], silence: float) -> None:
        """Wait until the reply has ended or is forbidden, or nothing was received for ``silence`` seconds."""
        either: set[asyncio.Future[Any]] = {self.ended, refused}
        while True:
            before = self._received
            await asyncio.wait(either, timeout=silence, return_when=asyncio.FIRST_COMPLETED)
            if self.ended.done() or refused.done() or self._received == before:
                return

    @property
    def _received(self) -> int:
        return len(self._messages) + len(self._parser.found)

    def messages(self) -> list[StoredMessage]:
        """What was received, in order."""
        parsed = ((headers_of(block), payload) for block, payload in self._parser.found)
        return [m for headers, payload in (*self._messages, *parsed) if (m := stored(headers, payload)) is not None]

    async def unsubscribe(self) -> None:
        if self._subscription is not None:
            if self._raw is not None:
                self._connection.stop_raw(self._raw)
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
