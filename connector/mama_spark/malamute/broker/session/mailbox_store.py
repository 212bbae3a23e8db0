"""The queues of mailboxes and services, bounded in bytes. Pure.

A message is an undelivered MAILBOX SEND or SERVICE SEND. Limits count bytes of content. Messages beyond them are
dropped, which is reported to senders that requested confirmations.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from mama_spark.malamute.protocol.patterns import Pattern
from mama_spark.options.declare import option
from mama_spark.options.values import byte_size, integer, member

from .byte_queue import ByteQueue, Overflow

log = logging.getLogger(__name__)
#: Approximate memory overhead of a message, in bytes.
OVERHEAD = 512


@dataclass(slots=True, eq=False)
class MailboxMessage:
    """:ivar sender: the client that sent it; it may have left
    :ivar source: its address, empty for an anonymous client
    :ivar deadline: in the caller's clock; 0 = none
    """

    service: bool
    sender: Hashable
    source: bytes
    address: bytes
    subject: bytes
    tracker: bytes = b""
    deadline: float = 0.0
    content: Sequence[bytes] = ()
    size: int = field(init=False)
    kept: bool = field(init=False, default=False)  #: waits in a store

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.content))

    @property
    def cost(self) -> int:
        """Approximate bytes of memory."""
        return self.size + OVERHEAD


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one mailbox or one service's queue (``each``), in bytes of content, and of all together (``total``),
    in bytes of content plus :data:`OVERHEAD` per message."""

    each: int | None = option("size", byte_size, 64 * 1024 * 1024, "mailboxes", "For one address.", shown="64 MiB")
    total: int | None = option(
        "size", byte_size, 512 * 1024 * 1024, "mailboxes", "For all together; a message counts 512 octets more.",
        shown="512 MiB",
    )  # fmt: skip
    warn: int | None = option("size", byte_size, None, "mailboxes", "Log a warning beyond this.", shown="never")
    overflow: Overflow = option(
        "`drop-newest`, `drop-oldest`", member(Overflow), Overflow.DROP_NEWEST, "mailboxes",
        "What happens beyond a limit.", shown="`drop-newest`",
    )  # fmt: skip
    count: int = option("integer", integer(1), 100_000, "mailboxes", "Addresses with something waiting.")


class MailboxStore:
    """Waiting messages by address."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.size = 0
        self._count = 0
        self._queues: dict[bytes, ByteQueue[MailboxMessage]] = {}

    def __len__(self) -> int:
        return self._count

    def put(self, message: MailboxMessage) -> list[MailboxMessage]:
        """Store the message; returns the messages dropped for it, which may include it."""
        limits = self.limits
        queue = self._queues.get(message.address)
        if limits.total is not None and self.size + OVERHEAD * self._count + message.cost > limits.total:
            return [message]
        if queue is None:
            if len(self._queues) >= limits.count:
                return [message]
            queue = ByteQueue(limits.each, limits.warn, limits.overflow)
            self._queues[message.address] = queue
        before = queue.size, len(queue)
        message.kept = True
        lost = queue.put(message, message.size)
        for one in lost:
            one.kept = False
        if queue.should_warn():
            kind = "service" if message.service else "mailbox"
            log.warning("the %s %r holds %d bytes that nobody takes", kind, message.address, queue.size)
        self._changed(message.address, queue, before)
        return lost

    def put_back(self, message: MailboxMessage) -> None:
        """Put back to the front a message that its receiver did not confirm."""
        queue = self._queues.setdefault(
            message.address, ByteQueue(self.limits.each, self.limits.warn, self.limits.overflow)
        )
        queue.put_back(message, message.size)
        message.kept = True
        self.size += message.size
        self._count += 1

    def take(self, address: bytes, pattern: Pattern | None = None) -> list[MailboxMessage]:
        """Remove and return the messages of an address in order; with a pattern, only those it matches."""
        queue = self._queues.get(address)
        if queue is None:
            return []
        taken = [message for message in queue if pattern is None or pattern.search(message.subject)]
        self._remove(address, queue, taken)
        return taken

    def discard(self, messages: Iterable[MailboxMessage]) -> list[MailboxMessage]:
        """Remove messages; returns those that were still waiting."""
        chosen: dict[bytes, list[MailboxMessage]] = {}
        for message in messages:
            if message.kept:
                chosen.setdefault(message.address, []).append(message)
        for address, waiting in chosen.items():
            self._remove(address, self._queues[address], waiting)
        return [message for waiting in chosen.values() for message in waiting]

    def _remove(self, address: bytes, queue: ByteQueue[MailboxMessage], messages: list[MailboxMessage]) -> None:
        before = queue.size, len(queue)
        for message in messages:
            message.kept = False
        queue.remove({id(message) for message in messages})
        self._changed(address, queue, before)

    def _changed(self, address: bytes, queue: ByteQueue[MailboxMessage], before: tuple[int, int]) -> None:
        self.size += queue.size - before[0]
        self._count += len(queue) - before[1]
        if not len(queue):
            del self._queues[address]


@dataclass(frozen=True, slots=True)
class _Offer:
    client: Hashable
    pattern: Pattern


class Services:
    """Offers of services: requests are distributed round robin over the matching offers."""

    def __init__(self) -> None:
        self._offers: dict[bytes, list[_Offer]] = {}

    def offer(self, client: Hashable, service: bytes, pattern: Pattern) -> None:
        """Add an offer that the client has not made before."""
        self._offers.setdefault(service, []).append(_Offer(client, pattern))

    def choose(self, service: bytes, subject: bytes) -> Hashable | None:
        """The client of the first offer that matches, which moves to the end; None if there is none."""
        offers = self._offers.get(service, [])
        for i, offer in enumerate(offers):
            if offer.pattern.search(subject):
                offers.append(offers.pop(i))
                return offer.client
        return None

    def withdraw(self, client: Hashable) -> None:
        """Remove all offers of a client."""
        for service, offers in list(self._offers.items()):
            offers[:] = [o for o in offers if o.client is not client]
            if not offers:
                del self._offers[service]
