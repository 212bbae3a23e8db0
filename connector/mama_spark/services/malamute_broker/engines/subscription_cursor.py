"""How far each subscribed client of a stored stream is. Pure.

A reader that takes everything at once is *live*: it has all up to the end of the stream. One that asked for older
messages, or has no credit, falls behind; it has a cursor then, everything up to which is done, and the store is read
from there until it is live again. As one thread does both, live and replay meet without a hole or a double.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Span:
    """:ivar after: the pattern is for messages with a higher sequence
    :ivar done: and up to here, they were delivered already
    """

    after: int
    done: int


@dataclass(slots=True, eq=False)
class SubscriptionCursor:
    """:ivar origin: stands in the store at messages that the client itself sent
    :ivar credit: messages that it takes still; None = any number
    :ivar cursor: all up to this sequence is done; of no meaning while live
    """

    client: Hashable
    origin: int
    credit: int | None = None
    live: bool = True
    cursor: int = 0
    patterns: dict[bytes, _Span] = field(default_factory=dict)

    def __repr__(self) -> str:
        state = "live" if self.live else f"at {self.cursor}"
        return f"<SubscriptionCursor {self.client!r} {state}, {len(self.patterns)} patterns, credit {self.credit}>"

    def subscribe(self, pattern: bytes, after: int | None, last: int) -> None:
        """One pattern more, for what comes after ``after`` in a stream that ends at ``last``; None = from there."""
        done = last if self.live else self.cursor
        for span in self.patterns.values():
            span.done = max(span.done, done)
        start = last if after is None else min(after, last)
        self.patterns[pattern] = _Span(start, start)
        if start < done:
            self.live = False
            self.cursor = start

    def fall_behind(self, cursor: int) -> None:
        self.live = False
        self.cursor = cursor

    def give(self, amount: int | None) -> None:
        self.credit = None if amount is None else (self.credit or 0) + amount

    @property
    def hungry(self) -> bool:
        """There is something to read for it, and it takes it."""
        return not self.live and self.credit != 0

    def wants(self, sequence: int, matching: Iterable[bytes]) -> bool:
        """A message behind the cursor, and the patterns (of anybody) that match it: one copy, and not a second."""
        wanted = False
        for pattern in matching:
            span = self.patterns.get(pattern)
            if span is not None and sequence > span.after:
                if sequence <= span.done:
                    return False
                wanted = True
        return wanted
