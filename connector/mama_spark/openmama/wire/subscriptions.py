"""Prefixes that connected readers want, and waiters for them: requests and replies of a peer. Pure.

An XPUB socket delivers a byte (1 = begin, 0 = end) and a prefix for each subscription of each reader; the end of a
connection ends its subscriptions. A subscription is a prefix of the whole message, so one to ``FOO\\0`` is to the topic
FOO alone, and one to ``FOO`` also to FOOBAR: real programs subscribe so and compare topics when they receive.

A reply is a message to a topic, so it is lost unless its requester's subscription has arrived: replies wait for that.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .frames import INBOX_PREFIX, Framing

MAX_PREFIXES = 1_000_000
_BEGIN, _END = 1, 0


class SubscriptionChange(NamedTuple):
    """The first reader of a prefix (without the NUL at its end) came, or the last one went."""

    prefix: bytes
    begins: bool

    @property
    def topic(self) -> str:
        return self.prefix.decode("utf-8", "backslashreplace")


class SubscriptionTable:
    """Counts the readers of each prefix.

    :ivar version: rises with each change of what is wanted
    """

    def __init__(self, most: int = MAX_PREFIXES) -> None:
        self._most = most
        self._readers: dict[bytes, int] = {}
        self._lengths: dict[int, int] = {}  # of a prefix -> how many prefixes have it
        self.version = 0

    def __len__(self) -> int:
        return len(self._readers)

    def readers(self, prefix: bytes) -> int:
        return self._readers.get(prefix, 0)

    def prefixes(self) -> list[bytes]:
        return list(self._readers)

    def apply(self, message: bytes) -> SubscriptionChange | None:
        """Take a message of the XPUB socket; return the change: a prefix got its first reader, or lost its last one.

        None: the message changes the number of readers only, is no subscription, ends one that did not begin, or adds
        a prefix beyond the limit (:data:`MAX_PREFIXES` by default).
        """
        if not message or message[0] not in (_BEGIN, _END):
            return None
        prefix = message[1:]
        return self._begin(prefix) if message[0] == _BEGIN else self._end(prefix)

    def wanted(self, topic: bytes) -> bool:
        """Whether some reader wants messages of this topic (without NUL), or may want them."""
        readers, topic_bytes = self._readers, topic + b"\0"
        return any(topic_bytes[:size] in readers for size in self._lengths if size <= len(topic_bytes))

    def _begin(self, prefix: bytes) -> SubscriptionChange | None:
        known = self._readers.get(prefix, 0)
        if not known and len(self._readers) >= self._most:
            return None
        self._readers[prefix] = known + 1
        if known:
            return None
        self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
        self.version += 1
        return SubscriptionChange(prefix.rstrip(b"\0"), True)

    def _end(self, prefix: bytes) -> SubscriptionChange | None:
        known = self._readers.get(prefix, 0)
        if not known:
            return None
        if known > 1:
            self._readers[prefix] = known - 1
            return None
        del self._readers[prefix]
        self._lengths[len(prefix)] -= 1
        if not self._lengths[len(prefix)]:
            del self._lengths[len(prefix)]
        self.version += 1
        return SubscriptionChange(prefix.rstrip(b"\0"), False)


MAX_REPLIES, REPLY_TIMEOUT = 10_000, 10.0  #: replies that wait for their requester, and seconds of each


class OpenInboxes:
    """Requests under way; ``transport``: uuid of the peer."""

    def __init__(self, framing: Framing, transport: str) -> None:
        self._framing, self._transport = framing, transport
        self._number = 0
        self._requests: dict[str, int] = {}
        self._inboxes: dict[int, str] = {}

    def topic_of(self, number: int | None) -> str | None:
        return None if number is None else self._inboxes.get(number)

    def open(self) -> tuple[int, str]:
        """Number and topic of a new inbox."""
        self._number += 1
        inbox = self._framing.inbox(self._transport, self._number)
        self._requests[inbox], self._inboxes[self._number] = self._number, inbox
        return self._number, inbox

    def close(self, number: int) -> str | None:
        """Forget a request; its inbox, or None if it is not known."""
        inbox = self._inboxes.pop(number, None)
        if inbox is not None:
            del self._requests[inbox]
        return inbox

    def request_of(self, topic: str) -> int | None:
        return self._requests.get(topic)


class _Waiting(NamedTuple):
    until: float
    topic: bytes
    data: bytes


class PendingReplies:
    """Replies that wait for the subscription of their requester, for a limited time; of too many, the newest."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque(maxlen=MAX_REPLIES)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, topic: str, data: bytes, now: float) -> None:
        self._waiting.append(_Waiting(now + REPLY_TIMEOUT, topic.encode(), data))

    def due(self, readers: SubscriptionTable, now: float) -> list[bytes]:
        """The messages that can be sent now, in order."""
        found: list[bytes] = []
        kept: deque[_Waiting] = deque(maxlen=MAX_REPLIES)
        for reply in self._waiting:
            if readers.wanted(reply.topic):
                found.append(reply.data)
            elif now < reply.until:
                kept.append(reply)
        self._waiting = kept
        return found


def is_inbox(topic: str) -> bool:
    return topic.startswith(f"{INBOX_PREFIX}.")
