"""Reads messages of a stream without a consumer, by direct get (NATS ADR-31).

A reader that ends leaves nothing behind, and makes no advisories that would fill the stream of advisories it may read.
Any replica may answer, from what it has: each answer is a prefix of the stream without holes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from mama_spark.contracts.errors import NoResponders, Unavailable

from ..connection.socket_connection import is_nobody
from ..errors import no_responders
from ..protocol.direct_get import StoredMessage, stored
from ..protocol.parser import Frame
from .answers import ApiForbidden

if TYPE_CHECKING:
    from .client import JetStream

_LEFT = re.compile(r"\d+")


def get(client: JetStream, stream: str, timeout: float | None, which: dict[str, Any]) -> StoredMessage | None:
    """The message that a direct get finds; None: there is none.

    :param which: see :meth:`~.client.JetStreamApi.message`
    """
    subject, payload, limit = _subject(client, stream), orjson.dumps(which), client.attempt_timeout(timeout)

    def attempt(_: float) -> StoredMessage | None:
        reply = client.connection().request(subject, payload, limit)
        if reply is None:
            raise _forbidden(stream, subject)
        if reply.status == 404:
            return None
        found = None if reply.status else stored(dict(reply.headers), reply.payload)
        if found is None:
            raise Unavailable(f"{reply.status} {reply.status_text} {reply.headers}")
        return found

    return client.retry(f"the direct get from the stream {stream!r}", attempt, timeout)


def is_served(client: JetStream, stream: str) -> bool:
    """Whether direct gets from the stream are answered. One request, which makes no advisory.

    :raises Unavailable: no answer
    """
    try:
        client.connection().request(_subject(client, stream), b'{"seq":1}', client.attempt_timeout())
    except NoResponders:
        return False
    return True


def get_many(client: JetStream, stream: str, body: dict[str, Any]) -> tuple[list[StoredMessage], int]:
    """The messages that one multi-message direct get returns, and how many are left.

    :raises ApiForbidden: the permissions do not allow it
    """

    def attempt(_: float) -> tuple[list[StoredMessage], int]:
        *frames, end = _ask(client, stream, body)
        if is_nobody(end):
            raise no_responders(end.subject.decode(errors="replace"))
        if end.status not in (204, 404):
            raise Unavailable(f"{end.status} {end.status_text}" if end.status else "it broke off")
        left = _LEFT.fullmatch(dict(end.headers).get("Nats-Num-Pending", ""))
        messages = (stored(dict(frame.headers), frame.payload) for frame in frames)
        return [message for message in messages if message is not None], 0 if left is None else int(left[0])

    return client.retry(f"the read of the stream {stream!r}", attempt)


def _ask(client: JetStream, stream: str, body: dict[str, Any]) -> list[Frame]:
    """The frames of the answer, of which the last one has a status, if the answer did not break off."""
    subject, connection, silence = _subject(client, stream), client.connection(), client.attempt_timeout()
    frames: list[Frame] = []
    told: list[bool] = []
    with connection.watch(subject, lambda: told.append(True)):
        number = connection.ask(subject, orjson.dumps(body), None, frames.append)
        try:
            before = -1
            while before < len(frames):
                before = len(frames)
                connection.drive(silence, lambda: bool(told or not connection.up or (frames and frames[-1].status)))
                if told:
                    raise _forbidden(stream, subject)
                if not connection.up or (frames and frames[-1].status):
                    break
        finally:
            connection.forget(number)
    if not frames:
        raise Unavailable("it broke off")
    return frames


def _subject(client: JetStream, stream: str) -> str:
    return f"{client.prefix}DIRECT.GET.{stream}"


def _forbidden(stream: str, subject: str) -> ApiForbidden:
    return ApiForbidden(f"no permission for {subject!r}: the stream {stream!r} cannot be read")
