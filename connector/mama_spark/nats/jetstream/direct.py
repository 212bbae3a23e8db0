"""Reads messages of a stream without a consumer, by direct get (NATS ADR-31).

A reader that ends leaves nothing behind, and makes no advisories that would fill the stream of advisories it may read.
Any replica may answer, from what it has: each answer is a prefix of the stream without holes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any, Self

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
from .answers import ApiForbidden
from .api import JetStreamClient

_LEFT = re.compile(r"Nats-Num-Pending=(\d+)")


async def get(client: JetStreamClient, stream: str, **which: str | int) -> StoredMessage | None:
    """The message that a direct get finds; None: there is none.

    :param which: see :meth:`JetStreamClient.message`
    """
    subject, payload = _subject(client, stream), orjson.dumps(which)

    async def attempt(_: float) -> StoredMessage | None:
        reply = await client.connection.request(subject, payload, client.attempt_timeout)
        if reply is None:
            raise _forbidden(stream, subject)
        headers = reply.headers or {}
        if headers.get("Status") == "404":
            return None
        if "Status" in headers or "Nats-Sequence" not in headers:
            raise Unavailable(str(headers))
        return stored(dict(headers), reply.data)

    return await client.retry(f"the direct get from the stream {stream!r}", attempt)


async def is_served(client: JetStreamClient, stream: str) -> bool:
    """Whether direct gets from the stream are answered. One request, which makes no advisory.

    :raises Unavailable: no answer
    """
    try:
        await client.connection.request(_subject(client, stream), b'{"seq":1}', client.attempt_timeout)
    except NoRespondersError:
        return False
    return True


async def get_many(client: JetStreamClient, stream: str, body: dict[str, Any]) -> tuple[list[StoredMessage], int]:
    """The messages that one multi-message direct get returns, and how many are left.

    :raises ApiForbidden: the permissions do not allow it
    """

    async def attempt(_: float) -> tuple[list[StoredMessage], int]:
        try:
            reply = await _ask(client, stream, body)
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

    return await client.retry(f"the read of the stream {stream!r}", attempt)


async def _ask(client: JetStreamClient, stream: str, body: dict[str, Any]) -> DirectGetReply:
    subject, connection = _subject(client, stream), client.connection
    reply = DirectGetReply(connection)
    await reply.subscribe()
    try:
        with connection.denials(subject) as refused:
            await connection.client.publish(subject, orjson.dumps(body), reply=reply.inbox)
            await reply.wait(refused, client.attempt_timeout)
            if refused.done():
                raise _forbidden(stream, subject)
    finally:
        await reply.unsubscribe()
    return reply


def _subject(client: JetStreamClient, stream: str) -> str:
    return f"{client.prefix}DIRECT.GET.{stream}"


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
