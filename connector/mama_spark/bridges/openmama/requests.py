"""Requests and replies over a peer: a :class:`~mama_spark.bridge.RequestBridge`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mama_spark.bridge import RequestMessage
from mama_spark.errors import BadTopic, NoResponders, PublishError
from mama_spark.openmama_wire.peer import OpenMamaPeer, ReceivedFrame
from mama_spark.openmama_wire.protocol.frames import BridgeFrame, FrameType, why_unsendable

_SEPARATOR = "\0"  #: in an address of a reply: no topic holds it


class _Waiting(NamedTuple):
    until: float
    topic: str
    payload: bytes
    inbox: int


class PeerRequests:
    """Requests and replies of one bridge.

    A request waits until its topic is subscribed to, ``timeout`` seconds at most: sent earlier it would be lost.
    """

    def __init__(self, peer: OpenMamaPeer, timeout: float) -> None:
        self._peer, self._timeout = peer, timeout
        self._waiting: deque[_Waiting] = deque()
        self._sent: dict[int, tuple[int, str]] = {}  # number of the peer -> inbox, topic
        self._numbers: dict[int, int] = {}  # inbox -> number
        self._received: deque[RequestMessage] = deque()

    def request(self, topic: str, payload: bytes, inbox: int) -> None:
        """See :class:`~mama_spark.bridge.RequestBridge`."""
        if (fault := why_unsendable(topic)) is not None:
            raise BadTopic(fault)
        self._peer.check_requests()
        self._waiting.append(_Waiting(time.monotonic() + self._timeout, topic, payload, inbox))
        self._send_waiting()

    def forget(self, inbox: int) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if waiting.inbox != inbox)
        number = self._numbers.pop(inbox, None)
        if number is not None:
            self._sent.pop(number, None)
            self._peer.forget(number)

    def reply(self, to: str, payload: bytes) -> None:
        """:raises PublishError: ``to`` is no address of a reply"""
        address, separator, topic = to.partition(_SEPARATOR)
        if not separator:
            raise PublishError(f"{to!r} is no address of a reply", status="INVALID_ARG")
        self._peer.reply(BridgeFrame(FrameType.REQUEST, topic, b"", address), payload)

    def listen(self, topic: str) -> None:
        self._peer.subscribe(topic)

    def unlisten(self, topic: str) -> None:
        self._peer.unsubscribe(topic)

    def received(self) -> list[RequestMessage]:
        self._send_waiting()
        return [self._received.popleft() for _ in range(len(self._received))]

    def take(self, frames: Sequence[ReceivedFrame]) -> None:
        """What the peer received."""
        for received in frames:
            frame, number = received.frame, received.inbox
            if number is not None:
                known = self._sent.get(number)
                if known is not None:
                    self._received.append(RequestMessage(known[1], frame.payload, known[0]))
            else:
                to = f"{frame.address}{_SEPARATOR}{frame.topic}" if frame.type is FrameType.REQUEST else None
                self._received.append(RequestMessage(frame.topic, frame.payload, None, to))

    def _send_waiting(self) -> None:
        now, kept = time.monotonic(), deque[_Waiting]()
        for waiting in self._waiting:
            if self._peer.wanted(waiting.topic):
                number = self._peer.request(waiting.topic, waiting.payload)
                self._sent[number] = (waiting.inbox, waiting.topic)
                self._numbers[waiting.inbox] = number
            elif now < waiting.until:
                kept.append(waiting)
            else:
                error = NoResponders(f"nobody subscribed to {waiting.topic!r} within {self._timeout:g} s")
                self._received.append(RequestMessage(waiting.topic, b"", waiting.inbox, None, error))
        self._waiting = kept
