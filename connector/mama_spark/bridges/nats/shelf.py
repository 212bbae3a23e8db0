"""Requests about the streams of discovery, on one connection: made again until they are answered or patience ends.

Everything is read by *direct get*: it needs no consumer, so nothing is left behind by a reader that dies, and it makes
no advisories, so that readers of discovery do not fill the stream they read. Any replica may answer, from what it has:
each answer is a prefix of the stream without holes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from ...errors import ConfigError, PublishError, Unavailable
from . import errors
from .changes import Stored
from .client_errors import from_client
from .link import Link

T = TypeVar("T")

_PAGE = 2000
_PAGE_BYTES = 8 * 1024 * 1024
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)


class Shelf:
    """:param patience: seconds that a call may take in all
    :param answer: seconds that one try may take
    """

    def __init__(self, link: Link, patience: float, answer: float) -> None:
        self.link, self.patience, self.answer = link, patience, answer

    async def patiently(self, what: str, once: Callable[[], Awaitable[T]], patience: float | None = None) -> T:
        """Try ``once`` until it does not raise for want of an answer.

        :raises Unavailable: patience has ended; the text says ``what``
        """
        now = asyncio.get_running_loop().time
        until, tries = now() + (self.patience if patience is None else patience), 0
        while True:
            try:
                return await once()
            except (Unavailable, NoRespondersError, PublishError) as e:
                if isinstance(e, PublishError) and not e.retryable:
                    raise
                pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
                if self.link.closed or not self.link.loop.alive or now() + pause > until:
                    why = "nobody is there to answer" if isinstance(e, NoRespondersError) else e
                    raise Unavailable(f"{what}: {why}") from e
            tries += 1
            await asyncio.sleep(pause)

    async def api(
        self, what: str, stream: str, body: dict[str, Any] | None = None, ok: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """A call of the JetStream API; errors whose number is in ``ok`` are handed back.

        :raises ConfigError: forbidden, or refused
        """
        subject = f"$JS.API.{what}.{stream}"
        payload = b"" if body is None else orjson.dumps(body)

        async def once() -> dict[str, Any]:
            answer = await self.link.ask(subject, payload, self.answer)
            if answer is None:
                raise ConfigError(f"no permission for {subject!r}, which discovery needs of the stream {stream!r}")
            error = answer.get("error")
            if error is not None and error.get("err_code") not in ok:
                text = f"{what.lower()} of the stream {stream!r}: {error.get('description')}"
                if error.get("code") == 503:
                    raise Unavailable(text)
                raise ConfigError(text)
            return answer

        return await self.patiently(f"{what.lower()} of the stream {stream!r}", once)

    async def publish(
        self, subject: str, payload: bytes, headers: dict[str, str], patience: float | None = None
    ) -> int:
        """Store one message; its number in the stream.

        :raises ConfigError: forbidden
        :raises PublishError: refused for good
        """

        async def once() -> int:
            reply = await self.link.request(subject, payload, self.answer, headers or None)
            if reply is None:
                raise ConfigError(f"no permission to publish to {subject!r}, which discovery needs")
            answer = _json(reply)
            error = answer.get("error")
            if error is not None:
                raise errors.from_reply(
                    int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description"))
                )
            return int(answer["seq"])

        return await self.patiently(f"publish to {subject!r}", once, patience)

    # --- reading ---------------------------------------------------------------------------------------------

    async def one(self, stream: str, body: dict[str, Any], patience: float | None = None) -> Stored | None:
        """The message that a direct get finds: ``{"seq": n}``, ``{"last_by_subj": s}``, ``{"seq": n, "next_by_subj":
        s}``."""
        subject, payload = f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(body)

        async def once() -> Stored | None:
            reply = await self.link.request(subject, payload, self.answer)
            if reply is None:
                raise ConfigError(f"no permission for {subject!r}: the stream {stream!r} cannot be read")
            headers = reply.headers or {}
            if headers.get("Status") == "404":
                return None
            if "Status" in headers or "Nats-Sequence" not in headers:
                raise Unavailable(f"direct get from {stream!r}: {headers}")
            return _stored(reply)

        return await self.patiently(f"direct get from the stream {stream!r}", once, patience)

    async def leaders(self, stream: str, subject: str) -> Stored | None:
        """The last message of a subject as the leader has it; for what must not be stale."""
        answer = await self.api("STREAM.MSG.GET", stream, {"last_by_subj": subject}, ok=(10037,))
        found = answer.get("message")
        if found is None:
            return None
        headers = _header_lines(found.get("hdrs", ""))
        return Stored(
            int(found["seq"]), found["time"], found["subject"], base64.b64decode(found.get("data", "")), headers
        )

    async def first_and_last(self, stream: str) -> tuple[int, int]:
        """Numbers of the first and the last message; (0, 0) when there is none."""
        first = await self.one(stream, {"seq": 1, "next_by_subj": ">"})
        last = await self.one(stream, {"last_by_subj": ">"})
        return (0, 0) if first is None or last is None else (first.sequence, max(first.sequence, last.sequence))

    async def pages(
        self, stream: str, after: int, subject: str, up_to: int | None = None
    ) -> AsyncIterator[list[Stored]]:
        """Messages behind ``after`` on ``subject`` (wildcards), to the end or ``up_to``, and perhaps beyond in the last
        page.

        With ``up_to`` it goes on until a record at or beyond it is seen, or the leader says that there is none: a
        replica may not have it yet.
        """
        now = asyncio.get_running_loop().time
        until, tries = now() + self.patience, 0
        while True:
            records, pending = await self._page(stream, after, subject)
            if records:
                yield records
                after, tries, until = records[-1].sequence, 0, now() + self.patience
            if up_to is not None and after >= up_to:
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

    async def _page(self, stream: str, after: int, subject: str) -> tuple[list[Stored], int]:
        what = f"read of the stream {stream!r}"
        body = {"seq": after + 1, "next_by_subj": subject, "batch": _PAGE, "max_bytes": _PAGE_BYTES}
        return await self.patiently(what, lambda: self.batch(stream, body))

    async def batch(self, stream: str, body: dict[str, Any]) -> tuple[list[Stored], int]:
        """One try of a direct get of many: the messages, and how many are left.

        :raises Unavailable: it broke off
        :raises ConfigError: forbidden
        """
        client, subject = self.link.client, f"$JS.API.DIRECT.GET.{stream}"
        found: list[Msg] = []
        ended: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        async def take(msg: Msg) -> None:
            if msg.headers is not None and "Status" in msg.headers and "Nats-Sequence" not in msg.headers:
                if not ended.done():
                    ended.set_result(msg)
            else:
                found.append(msg)

        inbox = client.new_inbox()
        try:
            sub = await client.subscribe(inbox, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
            try:
                with self.link.denials(subject) as refused:
                    await client.publish(subject, orjson.dumps(body), reply=inbox)
                    await self._until_ended(ended, refused, found)
                    if refused.done():
                        raise ConfigError(f"no permission for {subject!r}: the stream {stream!r} cannot be read")
            finally:
                with contextlib.suppress(nats.errors.Error):
                    await sub.unsubscribe()
        except (nats.errors.Error, OSError) as e:
            raise Unavailable(f"direct get from {stream!r}: {from_client(e)}") from e
        if not ended.done():
            raise Unavailable(f"direct get from {stream!r} broke off after {len(found)} messages")
        headers = ended.result().headers or {}
        if headers.get("Status") == "503":
            raise NoRespondersError
        if headers.get("Status") not in ("204", "404"):
            raise Unavailable(f"direct get from {stream!r}: {headers}")
        return [_stored(m) for m in found], int(headers.get("Nats-Num-Pending", 0))

    async def _until_ended(self, ended: asyncio.Future[Msg], refused: asyncio.Future[str], found: list[Msg]) -> None:
        """Wait as long as messages come."""
        either: set[asyncio.Future[Any]] = {ended, refused}
        while True:
            before = len(found)
            await asyncio.wait(either, timeout=self.answer, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() or refused.done() or len(found) == before:
                return


def _json(reply: Msg) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = orjson.loads(reply.data)
    except orjson.JSONDecodeError as e:
        raise Unavailable(f"no acknowledgement: {reply.data[:100]!r}") from e
    return answer


def _stored(msg: Msg) -> Stored:
    headers = dict(msg.headers or {})
    sequence, time, subject = (headers.pop(name, "") for name in ("Nats-Sequence", "Nats-Time-Stamp", "Nats-Subject"))
    return Stored(int(sequence), time, subject, msg.data, headers)


def _header_lines(block: str) -> dict[str, str]:
    headers = {}
    for line in base64.b64decode(block).decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers
