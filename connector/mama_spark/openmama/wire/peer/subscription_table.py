"""Which prefixes of topics the connected readers want. Pure.

An XPUB socket delivers an octet (1 = begin, 0 = end) and a prefix for each subscription of each reader; when a reader's
connection ends, its subscriptions end, too. A subscription is a prefix of the whole message, so one to ``FOO\\0`` is to
the topic FOO alone, and one to ``FOO`` also to FOOBAR: real programs subscribe so and compare topics when they receive.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_PREFIXES = 1_000_000
_BEGIN, _END = 1, 0


class SubscriptionChange(NamedTuple):
    """The first reader of a prefix came, or the last one went.

    :ivar prefix: octets without the NUL at the end
    """

    prefix: bytes
    begins: bool

    @property
    def topic(self) -> str:
        return self.prefix.decode("utf-8", "backslashreplace")


class SubscriptionTable:
    """Counts the readers of each prefix.

    :ivar ignored: messages that are no subscription, ends without a begin, and what exceeds :data:`MAX_PREFIXES`
    :ivar version: rises with each change of what is wanted
    """

    def __init__(self, most: int = MAX_PREFIXES) -> None:
        self._most = most
        self._readers: dict[bytes, int] = {}
        self._lengths: dict[int, int] = {}  # of a prefix -> how many prefixes have it
        self.ignored = 0
        self.version = 0

    def __len__(self) -> int:
        return len(self._readers)

    def __repr__(self) -> str:
        return f"<SubscriptionTable of {len(self)} prefixes>"

    def readers(self, prefix: bytes) -> int:
        """How many subscriptions to exactly this prefix there are."""
        return self._readers.get(prefix, 0)

    def prefixes(self) -> list[bytes]:
        """What is subscribed to, in no order."""
        return list(self._readers)

    def apply(self, message: bytes) -> SubscriptionChange | None:
        """One message of the XPUB socket; what it changes."""
        if not message or message[0] not in (_BEGIN, _END):
            self.ignored += 1
            return None
        prefix = message[1:]
        return self._begin(prefix) if message[0] == _BEGIN else self._end(prefix)

    def wanted(self, topic: bytes) -> bool:
        """Whether some reader wants messages of this topic (without NUL), or may want them."""
        readers, octets = self._readers, topic + b"\0"
        return any(octets[:size] in readers for size in self._lengths if size <= len(octets))

    def _begin(self, prefix: bytes) -> SubscriptionChange | None:
        known = self._readers.get(prefix, 0)
        if not known and len(self._readers) >= self._most:
            self.ignored += 1
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
            self.ignored += 1
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
