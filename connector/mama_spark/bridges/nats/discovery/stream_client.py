"""Requests about the streams of discovery, on one connection: made again until they are answered or patience ends.

Everything is read by *direct get*: it needs no consumer, so nothing is left behind by a reader that dies, and it makes
no advisories, so that readers of discovery do not fill the stream they read. Any replica may answer, from what it has:
each answer is a prefix of the stream without holes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import NoRespondersError

from mama_spark.errors import ConfigError, PublishError, Unavailable

from .. import errors
from ..connection.ack_parser import AckParser
from ..connection.client_errors import from_client
from ..connection.connection import Connection
from ..jetstream.api import NO_MESSAGE, ApiError, ask
from .direct_get import DirectGetParser, headers_of, stored
from .events import StoredMessage

T = TypeVar("T")

_PAGE = 2000
_PAGE_BYTES = 8 * 1024 * 1024
_LEFT = re.compile(r"Nats-Num-Pending=(\d+)")
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)


class StreamClient:
    """:param timeout: seconds that a call may take in all
    :param answer: seconds that one try may take
    """

    def __init__(self, connection: Connection, timeout: float, answer: float) -> None:
        self.connection, self.timeout, self.answer = connection, timeout, answer

    async def patiently(self, what: str, once: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Try ``once`` until it does not raise for want of an answer.

        :raises Unavailable: patience has ended; the text says ``what``
        """
        now = asyncio.get_running_loop().time
        until, tries = now() + (self.timeout if timeout is None else timeout), 0
        while True:
            try:
                return await once()
            except (Unavailable, NoRespondersError, PublishError) as e:
                if isinstance(e, PublishError) and not e.retryable:
                    raise
                pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
                if self.connection.closed or not self.connection.loop.alive or now() + pause > until:
                    why = "nobody is there to answer" if isinstance(e, NoRespondersError) else e
                    raise Unavailable(f"{what}: {why}") from e
            tries += 1
            await asyncio.sleep(pause)

    async def api(
        self, what: str, stream: str, body: dict[str, Any] | None = None, ok: int | None = None
    ) -> dict[str, Any] | None:
        """A call of the JetStream API; None if it is refused with the number ``ok``.

        :raises ConfigError: forbidden
        :raises Said: refused
        """
        payload = b"" if body is None else orjson.dumps(body)
        try:
            return await ask(self.connection, f"{what}.{stream}", payload, self.timeout, self.answer)
        except ApiError as e:
            if e.code == ok:
                return None
            raise

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str], timeout: float | None = None) -> int:
        """Store one message; its number in the stream.

        :raises ConfigError: forbidden
        :raises PublishError: refused for good
        """

        async def once() -> int:
            reply = await self.connection.request(subject, payload, self.answer, headers or None)
            if reply is None:
                raise ConfigError(f"no permission to publish to {subject!r}, which discovery needs")
            answer = _json(reply)
            error = answer.get("error")
            if error is not None:
                raise errors.from_reply(
                    int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description"))
                )
            return int(answer["seq"])

        return await self.patiently(f"publish to {subject!r}", once, timeout)

    # --- reading ---------------------------------------------------------------------------------------------

    async def one(self, stream: str, body: dict[str, Any], timeout: float | None = None) -> StoredMessage | None:
        """The message that a direct get finds: ``{"seq": n}``, ``{"last_by_subj": s}``, ``{"seq": n, "next_by_subj":
        s}``."""
        subject, payload = f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(body)

        async def once() -> StoredMessage | None:
            reply = await self.connection.request(subject, payload, self.answer)
            if reply is None:
                raise ConfigError(f"no permission for {subject!r}: the stream {stream!r} cannot be read")
            headers = reply.headers or {}
            if headers.get("Status") == "404":
                return None
            if "Status" in headers or "Nats-Sequence" not in headers:
                raise Unavailable(f"direct get from {stream!r}: {headers}")
            return stored(dict(headers), reply.data)

        return await self.patiently(f"direct get from the stream {stream!r}", once, timeout)

    async def leaders(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message of a subject as the leader has it; for what must not be stale."""
        answer = await self.api("STREAM.MSG.GET", stream, {"last_by_subj": subject}, ok=NO_MESSAGE)
        if answer is None:
            return None
        found = answer["message"]
        headers = headers_of(base64.b64decode(found.get("hdrs", "")))
        return StoredMessage(
            int(found["seq"]), found["time"], found["subject"], base64.b64decode(found.get("data", "")), headers
        )

    async def first_and_last(self, stream: str) -> tuple[int, int]:
        """Numbers of the first and the last message; (0, 0) when there is none."""
        first = await self.one(stream, {"seq": 1, "next_by_subj": ">"})
        last = await self.one(stream, {"last_by_subj": ">"})
        return (0, 0) if first is None or last is None else (first.sequence, max(first.sequence, last.sequence))

    async def pages(
        self, stream: str, after: int, subject: str, up_to: int | None = None, *, beyond: bool = False
    ) -> AsyncIterator[list[StoredMessage]]:
        """Messages behind ``after`` on ``subject`` (wildcards), to the end or ``up_to``, and perhaps beyond in the last
        page.

        With ``up_to`` it goes on until a record at or beyond it is seen, or the leader says that there is none: a
        replica may not have it yet.

        :param beyond: then go on to the end all the same: what was written again meanwhile has moved there
        """
        now = asyncio.get_running_loop().time
        until, tries = now() + self.timeout, 0
        while True:
            records, pending = await self._page(stream, after, subject)
            if records:
                yield records
                after, tries, until = records[-1].sequence, 0, now() + self.timeout
            if up_to is not None and after >= up_to and not (beyond and pending):
                return
            if pending:
                continue
            if up_to is None or await self._ends_before(stream, subject, up_to):
                return
            if now() > until:
                raise Unavailable(f"no replica of the stream {stream!r} has number {up_to} yet")
            await asyncio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
            tries += 1

    async def _ends_before(self, stream: str, subject: str, up_to: int) -> bool:
        last = await self.leaders(stream, subject)
        return last is None or last.sequence < up_to

    async def _page(self, stream: str, after: int, subject: str) -> tuple[list[StoredMessage], int]:
        what = f"read of the stream {stream!r}"
        body = {"seq": after + 1, "next_by_subj": subject, "batch": _PAGE, "max_bytes": _PAGE_BYTES}
        return await self.patiently(what, lambda: self.batch(stream, body))

    async def batch(self, stream: str, body: dict[str, Any]) -> tuple[list[StoredMessage], int]:
        """One try of a direct get of many: the messages, and how many are left.

        :raises Unavailable: it broke off
        :raises ConfigError: forbidden
        """
        subject = f"$JS.API.DIRECT.GET.{stream}"
        answer = DirectGetReply(self.connection)
        try:
            await answer.listen()
            try:
                with self.connection.denials(subject) as refused:
                    await self.connection.client.publish(subject, orjson.dumps(body), reply=answer.inbox)
                    await answer.wait(refused, self.answer)
                    if refused.done():
                        raise ConfigError(f"no permission for {subject!r}: the stream {stream!r} cannot be read")
            finally:
                await answer.end()
        except (nats.errors.Error, OSError) as e:
            raise Unavailable(f"direct get from {stream!r}: {from_client(e)}") from e
        if not answer.ended.done():
            raise Unavailable(f"direct get from {stream!r} broke off")
        status, text = answer.ended.result()
        if status == 503:
            raise NoRespondersError
        if status not in (204, 404):
            raise Unavailable(f"direct get from {stream!r}: {status} {text}")
        left = _LEFT.search(text)
        return answer.records(), 0 if left is None else int(left[1])


class DirectGetReply:
    """What comes to one direct get of many: cut out of the connection's bytes, or by public calls."""

    def __init__(self, connection: Connection) -> None:
        self._client: Any = connection.client
        self._ack_parser = self._client._ps if connection.fast and isinstance(self._client._ps, AckParser) else None
        self.inbox = self._client.new_inbox()
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._messages: list[tuple[dict[str, str], bytes]] = []
        self._subscription: Subscription | None = None
        self._parser = DirectGetParser(0)

    async def listen(self) -> None:
        """Subscribe."""
        self._subscription = await self._client.subscribe(
            self.inbox, cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )
        if self._ack_parser is not None and self._subscription is not None:
            self._parser = DirectGetParser(self._subscription._id)
            self._ack_parser.feeds[b"%d" % self._subscription._id] = self

    def take(self, data: bytes, at: int) -> tuple[int, int]:
        """See :class:`~mama_spark.bridges.nats.connection.ack_parser.Deliveries`."""
        return self._parser.take(data, at)

    def on_status(self, subject: str, status: int, text: str) -> None:
        """See :class:`~mama_spark.bridges.nats.connection.ack_parser.Deliveries`."""
        if not self.ended.done():
            self.ended.set_result((status, text))

    async def _on_message(self, msg: Msg) -> None:
        headers = dict(msg.headers or {})
        if "Status" in headers and "Nats-Sequence" not in headers:
            text = " ".join(f"{name}={value}" for name, value in headers.items())
            self.on_status(msg.subject, int(headers["Status"]), text)
        else:
            self._messages.append((headers, msg.data))

    async def wait(self, refused: asyncio.Future[str], silence: float) -> None:
        """Until it has ended, or is forbidden, or nothing came for ``silence`` seconds."""
        either: set[asyncio.Future[Any]] = {self.ended, refused}
        while True:
            before = self._came
            await asyncio.wait(either, timeout=silence, return_when=asyncio.FIRST_COMPLETED)
            if self.ended.done() or refused.done() or self._came == before:
                return

    @property
    def _came(self) -> int:
        return len(self._messages) + len(self._parser.found)

    def records(self) -> list[StoredMessage]:
        """What came, in order."""
        cut = ((headers_of(block), payload) for block, payload in self._parser.found)
        return [r for headers, payload in (*self._messages, *cut) if (r := stored(headers, payload)) is not None]

    async def end(self) -> None:
        """Hear no more of it."""
        if self._subscription is not None:
            if self._ack_parser is not None:
                self._ack_parser.feeds.pop(b"%d" % self._subscription._id, None)
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()


def _json(reply: Msg) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = orjson.loads(reply.data)
    except orjson.JSONDecodeError as e:
        raise Unavailable(f"no acknowledgement: {reply.data[:100]!r}") from e
    return answer
