"""Base of the engines that store their streams: subscriptions, credit, live delivery and replay. Pure.

A subclass implements storing and reading of messages; this class decides which clients get them. A message is delivered
to a live cursor when it is stored. A cursor without credit, or with a subscription from an earlier sequence, is
*behind*: it reads from the store until it is live again. One thread does both, so there is no gap or duplicate between
replay and live delivery.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from mama_spark.malamute.protocol.credit import DeliveryCredit
from mama_spark.malamute.protocol.extensions import of_stored
from mama_spark.malamute.protocol.patterns import BadPattern

from .base import Delivery, StreamEngine
from .subscription_index import SubscriptionIndex


@dataclass(slots=True)
class _DeliveredRange:
    """The range of sequences for one pattern of a client, and up to where it was delivered."""

    after: int
    up_to: int


@dataclass(slots=True, eq=False, repr=False)
class SubscriptionCursor:
    """The position of one subscribed client in the stream: the last sequence delivered; not used while live. ``origin``
    is stored with the messages that the client sends; ``address``: under which it last sent one here, empty = it has
    not."""

    client: Hashable
    origin: int
    address: bytes = b""
    credit: DeliveryCredit = field(default_factory=DeliveryCredit)
    live: bool = True
    position: int = 0
    patterns: dict[bytes, _DeliveredRange] = field(default_factory=dict)

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
        return not self.live and not self.credit.exhausted

    def wants(self, sequence: int, matching: Iterable[bytes]) -> bool:
        """Whether a replayed message, matched by these patterns of any client, is for this one and still new to it."""
        wanted = False
        for pattern in matching:
            covered = self.patterns.get(pattern)
            if covered is not None and sequence > covered.after:
                if sequence <= covered.up_to:
                    return False
                wanted = True
        return wanted


#: A stored message for live cursors: sequence, the cursor of the client that sent it (None: that client does not
#: subscribe here), address of the sender, subject, content, id, headers. A plain tuple: one is made per message.
LiveMessage = tuple[
    int, SubscriptionCursor | None, bytes, bytes, Sequence[bytes], bytes, tuple[tuple[bytes, bytes], ...]
]
M = TypeVar("M", bound=tuple[Any, ...])


class StoredStreamEngine(StreamEngine, Generic[M]):
    """A stream whose messages are numbered and stored before they are delivered (ML-01, ML-22).

    A client that subscribes with ``after`` gets the stored messages after that sequence and then new ones, in order,
    each once. A client never receives messages that it sent while subscribed, live or by replay (ML-15).
    """

    stored: ClassVar[bool] = True

    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, settings)
        self._subscriptions: SubscriptionIndex[SubscriptionCursor] = SubscriptionIndex()
        self._cursors: dict[Hashable, SubscriptionCursor] = {}
        self._behind: dict[SubscriptionCursor, None] = {}  # cursors that are not live, the next one first

    @abstractmethod
    def position(self) -> int:
        """Highest sequence delivered to live cursors."""

    @abstractmethod
    def _complete_accepted(self) -> None:
        """Store accepted messages and deliver them to live cursors."""

    def _prepare_subscription(self, after: int | None) -> None:
        """Called before a client subscribes; :meth:`position` must be valid after it."""

    def _last_subscriber_left(self) -> None:
        """Called when the last subscription has ended."""

    @abstractmethod
    def _replayed(self, cursor: SubscriptionCursor, message: M) -> Delivery | None:
        """The delivery of a stored message to a cursor that is behind; None = the message is not for its client."""

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        self._complete_accepted()  # earlier messages are for earlier subscriptions
        cursor = self._cursors.get(client)
        if cursor is None:
            cursor = SubscriptionCursor(client, origin=secrets.randbits(62) + 1)
        elif pattern in cursor.patterns:
            return
        self._prepare_subscription(after)
        try:
            self._subscriptions.add(pattern, cursor)
        except BadPattern:
            self._release_unused()
            raise
        self._cursors[client] = cursor
        before = cursor.position
        cursor.subscribe(pattern, after, self.position())
        if not cursor.live and (cursor not in self._behind or cursor.position < before):
            self._stop_replay(cursor)
            self._behind[cursor] = None

    def cancel(self, client: Hashable) -> None:
        self._complete_accepted()  # earlier messages are for this client, if they match
        cursor = self._cursors.pop(client, None)
        if cursor is not None:
            self._subscriptions.remove(cursor, cursor.patterns)
            self._stop_replay(cursor)
            self._release_unused()

    def _release_unused(self) -> None:
        if not self._cursors:
            self._last_subscriber_left()

    def _stop_replay(self, cursor: SubscriptionCursor) -> None:
        """Called when the replay to a cursor ends or must restart at another position."""
        self._behind.pop(cursor, None)

    def credit(self, client: Hashable, amount: int | None) -> None:
        cursor = self._cursors.get(client)
        if cursor is not None:
            cursor.credit.give(amount)

    def _deliver_live(self, messages: Iterable[LiveMessage], time: int) -> None:
        """Deliver messages stored at ``time`` (microseconds since the epoch) to the live cursors; the others find
        them in the store."""
        if not self._cursors:
            return
        receivers, deliver = self._subscriptions.receivers, self._deliver
        for sequence, sender, address, subject, content, message_id, headers in messages:
            found = receivers(subject)
            if not found:
                continue
            extension = of_stored(sequence, time, message_id, headers)
            for cursor in found:
                if not cursor.live or cursor is sender:
                    continue
                if not cursor.credit.use():
                    cursor.fall_behind(sequence - 1)
                    self._behind[cursor] = None
                    continue
                deliver(Delivery(cursor.client, address, subject, content, extension))

    def _replay_to(self, cursor: SubscriptionCursor, messages: Iterable[M]) -> None:
        """Deliver the next stored messages to a cursor that is behind, as far as its credit allows."""
        for message in messages:
            delivery = self._replayed(cursor, message)
            if delivery is not None:
                if not cursor.credit.use():
                    return
                self._deliver(delivery)
            cursor.position = message[0]

    def _go_live_if_caught_up(self, cursor: SubscriptionCursor, *, exhausted: bool) -> None:
        """Make a cursor live that has all up to :meth:`position`, or is ``exhausted``: what followed it was removed."""
        if exhausted or cursor.position >= self.position():
            cursor.live = True
