"""Inboxes of a peer: the requests that it sent and may still get replies to, and the replies that it owes others. Pure.

A reply is a message to a topic, so it is lost unless its requester's subscription has arrived: replies wait for that.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..protocol.frames import INBOX_PREFIX
from ..protocol.framings import Framing
from .subscription_table import SubscriptionTable

MAX_REPLIES, REPLY_TIMEOUT = 10_000, 10.0  #: replies that wait for their requester, and seconds of each


class OpenInboxes:
    """Requests under way.

    :param transport: uuid of the peer
    """

    def __init__(self, framing: Framing, transport: str) -> None:
        self._framing, self._transport = framing, transport
        self._number = 0
        self._requests: dict[str, int] = {}
        self._inboxes: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._inboxes)

    def topic_of(self, number: int | None) -> str | None:
        """The topic of an open inbox."""
        return None if number is None else self._inboxes.get(number)

    def open(self) -> tuple[int, str]:
        """Number and topic of a new inbox."""
        self._number += 1
        inbox = self._framing.inbox(self._transport, self._number)
        self._requests[inbox], self._inboxes[self._number] = self._number, inbox
        return self._number, inbox

    def subscription(self, inbox: str) -> str:
        return self._framing.inbox_subscription(self._transport, inbox)

    def close(self, number: int) -> str | None:
        """Forget a request; its inbox, or None if it is not known."""
        inbox = self._inboxes.pop(number, None)
        if inbox is not None:
            del self._requests[inbox]
        return inbox

    def request_of(self, topic: str) -> int | None:
        """The request whose inbox this is."""
        return self._requests.get(topic)


class _Waiting(NamedTuple):
    until: float
    topic: bytes
    data: bytes


class PendingReplies:
    """Replies that wait for the subscription of their requester.

    :ivar dropped: whose requester did not subscribe in time, or which were too many
    """

    def __init__(self, most: int = MAX_REPLIES, timeout: float = REPLY_TIMEOUT) -> None:
        self._most, self._timeout = most, timeout
        self._waiting: deque[_Waiting] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, topic: str, data: bytes, now: float) -> None:
        if len(self._waiting) >= self._most:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(_Waiting(now + self._timeout, topic.encode(), data))

    def due(self, readers: SubscriptionTable, now: float) -> list[bytes]:
        """Those that can be sent now, in order."""
        found: list[bytes] = []
        kept: deque[_Waiting] = deque()
        for reply in self._waiting:
            if readers.wanted(reply.topic):
                found.append(reply.data)
            elif now < reply.until:
                kept.append(reply)
            else:
                self.dropped += 1
        self._waiting = kept
        return found


def is_inbox(topic: str) -> bool:
    return topic.startswith(f"{INBOX_PREFIX}.")
