"""Requests and replies over a peer: a :class:`~mama_spark.contracts.bridge.RequestBridge`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mama_spark.contracts.bridge import RequestMessage
from mama_spark.contracts.errors import BadTopic, NoResponders, PublishError, Unavailable
from mama_spark.openmama.wire.frame_filter import ReceivedFrame
from mama_spark.openmama.wire.frames import BridgeFrame, FrameType, why_unsendable
from mama_spark.openmama.wire.peer import OpenMamaPeer

_SEPARATOR = "\0"  #: in an address of a reply: no topic holds it
AGAIN = 1.0  #: seconds after which a request without a reply is sent again


@dataclass(slots=True)
class _Request:
    """A request that waits for a subscriber or for a reply.

    :ivar until: monotonic time in seconds; end of waiting for subscribers and of resends
    :ivar number: number of the peer's inbox; None: it was not sent yet
    """

    until: float
    topic: str
    payload: bytes
    inbox: int
    number: int | None = None


class PeerRequests:
    """Requests and replies of one bridge.

    A request waits up to ``timeout`` seconds until its topic is subscribed to: sent earlier it is lost. Then it is sent
    again until a reply comes: the first reply is lost if our subscription to the inbox arrived later.
    """

    def __init__(self, peer: OpenMamaPeer, timeout: float) -> None:
        self._peer, self._timeout = peer, timeout
        self._waiting: deque[_Request] = deque()  # for a subscriber
        self._unanswered: deque[tuple[float, _Request]] = deque()  # when each is sent again
        self._sent: dict[int, _Request] = {}  # number of the peer -> request, until it is forgotten
        self._received: deque[RequestMessage] = deque()

    def request(self, topic: str, payload: bytes, inbox: int) -> None:
        if (fault := why_unsendable(topic)) is not None:
            raise BadTopic(fault)
        self._peer.check_requests()
        self._waiting.append(_Request(time.monotonic() + self._timeout, topic, payload, inbox))
        self._send_waiting()

    def forget(self, inbox: int) -> None:
        self._waiting = deque(request for request in self._waiting if request.inbox != inbox)
        self._unanswered = deque(one for one in self._unanswered if one[1].inbox != inbox)
        for number in [number for number, request in self._sent.items() if request.inbox == inbox]:
            del self._sent[number]
            self._peer.forget(number)

    def reply(self, to: str, payload: bytes) -> None:
        """Answer a request.

        :raises PublishError: ``to`` is no address of a reply
        """
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
        self._send_again()
        return [self._received.popleft() for _ in range(len(self._received))]

    def take(self, frames: Sequence[ReceivedFrame]) -> None:
        """Take the messages that the peer received."""
        for received in frames:
            frame, number = received.frame, received.inbox
            if number is not None:
                known = self._sent.get(number)
                if known is not None:
                    known.until = 0.0
                    self._received.append(RequestMessage(known.topic, frame.payload, known.inbox))
            else:
                to = f"{frame.address}{_SEPARATOR}{frame.topic}" if frame.type is FrameType.REQUEST else None
                self._received.append(RequestMessage(frame.topic, frame.payload, None, to))

    def _send_waiting(self) -> None:
        now, kept = time.monotonic(), deque[_Request]()
        for request in self._waiting:
            if self._peer.wanted(request.topic) and self._send(request, now):
                continue
            if now < request.until:
                kept.append(request)
            else:
                error = NoResponders(f"nobody took a request to {request.topic!r} within {self._timeout:g} s")
                self._received.append(RequestMessage(request.topic, b"", request.inbox, None, error))
        self._waiting = kept

    def _send_again(self) -> None:
        now = time.monotonic()
        while self._unanswered and self._unanswered[0][0] <= now:
            _, request = self._unanswered.popleft()
            if now < request.until and not self._send(request, now):
                self._unanswered.append((now + AGAIN, request))

    def _send(self, request: _Request, now: float) -> bool:
        """False: a reader takes nothing."""
        try:
            request.number = self._peer.request(request.topic, request.payload, request.number)
        except Unavailable:
            return False
        self._sent[request.number] = request
        self._unanswered.append((now + AGAIN, request))
        return True
