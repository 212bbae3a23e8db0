"""The position of each subscribed client in a stored stream. Pure.

A cursor at the end of the stream, whose client accepts every new message, is *live*. A cursor that requested older
messages, or whose client has no credit, is *behind*: it has a position, from which the store is read until it is live
again. One thread does both, so there is no gap or duplicate between replay and live delivery.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from mama_spark.malamute.protocol.credit import DeliveryCredit


@dataclass(slots=True)
class _DeliveredRange:
    """The range of sequences for one pattern of a client.

    :ivar after: the pattern is for messages with a higher sequence
    :ivar up_to: messages up to this sequence were delivered already
    """

    after: int
    up_to: int


@dataclass(slots=True, eq=False)
class SubscriptionCursor:
    """:ivar origin: number stored with the messages that the client sends
    :ivar credit: deliveries that the client still accepts
    :ivar position: last sequence delivered; not used while live
    """

    client: Hashable
    origin: int
    credit: DeliveryCredit = field(default_factory=DeliveryCredit)
    live: bool = True
    position: int = 0
    patterns: dict[bytes, _DeliveredRange] = field(default_factory=dict)

    def __repr__(self) -> str:
        state = "live" if self.live else f"at {self.position}"
        return f"<SubscriptionCursor {self.client!r} {state}, {len(self.patterns)} patterns, credit {self.credit}>"

    def subscribe(self, pattern: bytes, after: int | None, last: int) -> None:
        """Add a pattern for messages after ``after`` (None = after ``last``), in a stream that ends at ``last``."""
        delivered = last if self.live else self.position
        for covered in self.patterns.values():
            covered.up_to = max(covered.up_to, delivered)
        start = last if after is None else min(after, last)
        self.patterns[pattern] = _DeliveredRange(start, start)
        if start < delivered:
            self.fall_behind(start)

    def fall_behind(self, position: int) -> None:
        self.live = False
        self.position = position

    @property
    def can_read(self) -> bool:
        """Whether the cursor is behind and its client has credit."""
        return not self.live and not self.credit.exhausted

    def wants(self, sequence: int, matching: Iterable[bytes]) -> bool:
        """Whether a replayed message is for this client and was not delivered to it before.

        :param matching: patterns of any client that match its subject
        """
        wanted = False
        for pattern in matching:
            covered = self.patterns.get(pattern)
            if covered is not None and sequence > covered.after:
                if sequence <= covered.up_to:
                    return False
                wanted = True
        return wanted
