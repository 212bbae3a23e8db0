"""Core NATS requests and replies over the pooled connection of a bridge."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from mama_spark.contracts.bridge import RequestMessage
from mama_spark.contracts.errors import BadTopic, ConfigError, MamaError, Unavailable
from mama_spark.contracts.topics import why_unpublishable

from ..connection.connection import Connection
from ..connection.nats_py_errors import from_client
from ..errors import no_responders, not_entitled

T = TypeVar("T")

_REMEMBERED = 4096  #: requests that may still be denied; a denial arrives within one round trip


class NatsRequests:
    """See :class:`~mama_spark.contracts.bridge.RequestBridge`. If a stream takes the topic, the stream answers, too.

    :param timeout: seconds to wait for the connection
    """

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._connection, self._timeout = connection, timeout
        self._prefix = connection.client.new_inbox() + "."
        self._inbox: Subscription | None = None
        self._topics: dict[str, Subscription] = {}
        self._inbox_topics: dict[int, dict[str, None]] = {}  # topics of the requests of each inbox, the latest last
        self._sent: deque[tuple[str, int]] = deque(maxlen=_REMEMBERED)  # topic and inbox of each, the latest last
        self._received: deque[RequestMessage] = deque()  # appended by the loop's thread

    def request(self, topic: str, payload: bytes, inbox: int) -> None:
        """See :class:`~mama_spark.contracts.bridge.RequestBridge`."""
        _check_topic(topic)
        self._run(self._request(topic, payload, inbox), f"sending a request to {topic!r}")

    def forget(self, inbox: int) -> None:
        """See :class:`~mama_spark.contracts.bridge.RequestBridge`."""
        self._inbox_topics.pop(inbox, None)

    def reply(self, to: str, payload: bytes) -> None:
        """See :class:`~mama_spark.contracts.bridge.RequestBridge`."""
        _check_topic(to)
        self._run(self._connection.client.publish(to, payload), f"answering {to!r}")

    def listen(self, topic: str) -> None:
        """See :class:`~mama_spark.contracts.bridge.RequestBridge`."""
        _check_topic(topic)
        if topic not in self._topics:
            self._topics[topic] = self._run(self._subscribe(topic, self._on_request), f"subscribing to {topic!r}")

    def unlisten(self, topic: str) -> None:
        """See :class:`~mama_spark.contracts.bridge.RequestBridge`."""
        subscription = self._topics.pop(topic, None)
        if subscription is not None:
            self._run(_unsubscribe([subscription]), f"leaving {topic!r}")

    def received(self) -> list[RequestMessage]:
        """See :class:`~mama_spark.contracts.bridge.RequestBridge`."""
        return [self._received.popleft() for _ in range(len(self._received))]

    def close(self) -> None:
        """Unsubscribe: no more requests or answers arrive. Never raises."""
        mine = [*self._topics.values(), *([self._inbox] if self._inbox else [])]
        self._topics, self._inbox = {}, None
        if self._denied in self._connection.denial_handlers:  # the connection returns to the pool
            self._connection.denial_handlers.remove(self._denied)
        if mine and self._connection.loop.alive:
            with contextlib.suppress(MamaError):
                self._connection.loop.soon(lambda: self._connection.loop.loop.create_task(_unsubscribe(mine)))

    def _run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        if not self._connection.up:
            work.close()
            raise Unavailable(f"not connected to NATS: {what}")
        try:
            return self._connection.loop.run(work, 2 * self._timeout, what)
        except (nats.errors.Error, OSError, TimeoutError) as e:
            raise from_client(e) from e

    async def _request(self, topic: str, payload: bytes, inbox: int) -> None:
        if self._inbox is None:
            self._inbox = await self._subscribe(f"{self._prefix}*", self._on_answer)
            self._connection.denial_handlers.append(self._denied)
        topics = self._inbox_topics.setdefault(inbox, {})
        topics.pop(topic, None)
        topics[topic] = None
        self._sent.append((topic, inbox))
        await self._connection.client.publish(topic, payload, reply=f"{self._prefix}{inbox}")

    async def _subscribe(self, subject: str, call: Any) -> Subscription:
        """:raises ConfigError: the permissions forbid it"""
        subscription = await self._connection.subscribe(subject, call, self._timeout)
        if subscription is None:
            raise ConfigError(f"no permission to subscribe to {subject!r}")
        return subscription

    def _denied(self, kind: str, subject: str) -> bool:
        """Attribute a denial to the oldest request to its subject that was not denied yet; False if there is none."""
        for topic, inbox in self._sent if kind == "publish" else ():
            if topic.lower() == subject.lower():
                self._sent.remove((topic, inbox))
                self._received.append(RequestMessage(topic, b"", inbox, None, not_entitled(topic)))
                return True
        return False

    async def _on_request(self, msg: Msg) -> None:
        self._received.append(RequestMessage(msg.subject, msg.data, None, msg.reply or None))

    async def _on_answer(self, msg: Msg) -> None:
        number = msg.subject[len(self._prefix) :]
        ours = number.isascii() and number.isdigit() and len(number) < 40
        topics = self._inbox_topics.get(int(number)) if ours else None
        if topics is None:
            return
        topic = next(reversed(topics))
        missing = not msg.data and (msg.headers or {}).get("Status") == "503"
        error = no_responders(topic) if missing else None
        self._received.append(RequestMessage(topic, msg.data, int(number), msg.reply or None, error))


async def _unsubscribe(subscriptions: list[Subscription]) -> None:
    for subscription in subscriptions:
        with contextlib.suppress(nats.errors.Error, OSError, asyncio.CancelledError):
            await subscription.unsubscribe()


def _check_topic(topic: str) -> None:
    if (fault := why_unpublishable(topic)) is not None:
        raise BadTopic(fault)
