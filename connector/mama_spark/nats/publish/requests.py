"""Core NATS requests and replies over the pooled connection of a bridge."""

from __future__ import annotations

import contextlib
from collections import deque

from mama_spark.contracts.bridge import RequestMessage
from mama_spark.contracts.errors import BadTopic, MamaError
from mama_spark.contracts.topics import why_unpublishable

from ..connection.socket_connection import SocketConnection, new_inbox
from ..error_codes import no_responders, not_entitled
from ..protocol.acks import is_nobody
from ..protocol.parser import Frame

_REMEMBERED = 4096  #: requests that may still be denied; a denial arrives within one round trip


class NatsRequests:
    """A :class:`~mama_spark.contracts.bridge.RequestBridge`. If a stream takes the topic, the stream answers, too.
    ``timeout``: seconds to wait for the connection."""

    def __init__(self, connection: SocketConnection, timeout: float) -> None:
        self._connection, self._timeout = connection, timeout
        self._prefix = new_inbox() + "."
        self._inbox: int | None = None  # id of the subscription
        self._topics: dict[str, int] = {}
        self._inbox_topics: dict[int, dict[str, None]] = {}  # topics of the requests of each inbox, the latest last
        self._sent: deque[tuple[str, int]] = deque(maxlen=_REMEMBERED)  # topic and inbox of each, the latest last
        self._received: deque[RequestMessage] = deque()

    def request(self, topic: str, payload: bytes, inbox: int) -> None:
        _check_topic(topic)
        if self._inbox is None:
            self._inbox = self._connection.subscribe(f"{self._prefix}*", self._on_answer, self._timeout)
            self._connection.denials.handlers.append(self._denied)
        self._connection.publish(topic, payload, f"{self._prefix}{inbox}".encode())
        topics = self._inbox_topics.setdefault(inbox, {})
        topics.pop(topic, None)
        topics[topic] = None
        self._sent.append((topic, inbox))

    def forget(self, inbox: int) -> None:
        self._inbox_topics.pop(inbox, None)

    def reply(self, to: str, payload: bytes) -> None:
        _check_topic(to)
        self._connection.publish(to, payload)

    def listen(self, topic: str) -> None:
        _check_topic(topic)
        if topic not in self._topics:
            self._topics[topic] = self._connection.subscribe(topic, self._on_request, self._timeout)

    def unlisten(self, topic: str) -> None:
        sid = self._topics.pop(topic, None)
        if sid is not None:
            self._connection.unsubscribe(sid)

    def received(self) -> list[RequestMessage]:
        self._connection.drive(0)
        return [self._received.popleft() for _ in range(len(self._received))]

    def close(self) -> None:
        """Unsubscribe. Never raises."""
        mine = [*self._topics.values(), *([self._inbox] if self._inbox is not None else [])]
        self._topics, self._inbox = {}, None
        if self._denied in self._connection.denials.handlers:  # the connection returns to the pool
            self._connection.denials.handlers.remove(self._denied)
        for sid in mine:
            with contextlib.suppress(MamaError):
                self._connection.unsubscribe(sid)

    def _denied(self, kind: str, subject: str) -> bool:
        """Attribute a denial to the oldest request to its subject that was not denied yet; False if there is none."""
        for topic, inbox in self._sent if kind == "publish" else ():
            if topic == subject:
                self._sent.remove((topic, inbox))
                self._received.append(RequestMessage(topic, b"", inbox, None, not_entitled(topic)))
                return True
        return False

    def _on_request(self, frame: Frame) -> None:
        to = None if frame.reply is None else _text(frame.reply)
        self._received.append(RequestMessage(_text(frame.subject), frame.payload, None, to))

    def _on_answer(self, frame: Frame) -> None:
        number = frame.subject[len(self._prefix) :]
        topics = self._inbox_topics.get(int(number)) if number.isdigit() and len(number) < 40 else None
        if topics is None:
            return
        topic = next(reversed(topics))
        error = no_responders(topic) if is_nobody(frame) else None
        to = None if frame.reply is None else _text(frame.reply)
        self._received.append(RequestMessage(topic, frame.payload, int(number), to, error))


def _text(subject: bytes) -> str:
    """A requester's subject; bytes that are no text are replaced, and get no answer."""
    return subject.decode(errors="replace")


def _check_topic(topic: str) -> None:
    if (fault := why_unpublishable(topic)) is not None:
        raise BadTopic(fault)
