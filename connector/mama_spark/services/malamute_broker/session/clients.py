"""What the broker knows of one client, and the limits for all of them. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mama_spark.malamute.protocol.credit import CreditAllocator, SendWindow
from mama_spark.malamute.protocol.extensions import ALL, AckRun, Feature
from mama_spark.options.declare import option
from mama_spark.options.values import Duration, byte_size, integer, member

from .backlog import BacklogPolicy
from .byte_queue import ByteQueue, Overflow
from .mailbox_store import Limits, MailboxMessage

Frames = list[bytes]


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The table ``[clients]``, and limits of mailboxes and services.

    :ivar repeats: repeated WRITE, READ and OFFER answered per client and second; more are taken and not answered,
        which ends the replay storm of the C client
    """

    timeout: float = option(
        "duration", Duration(zero=True, warn=True), 10.0, "clients",
        "Without a frame for that long, a client is dropped; 0 = never.", shown="10s",
    )  # fmt: skip
    queue: int = option(
        "size", byte_size, 64 * 1024 * 1024, "clients",
        "That may wait for one client whose socket takes no more, or that gave no credit; a message counts 256 octets "
        "more.", shown="64 MiB",
    )  # fmt: skip
    overflow: Overflow = option(
        "`drop-newest`, `drop-oldest`, `disconnect`", member(Overflow), Overflow.DROP_NEWEST, "clients",
        "What happens beyond `queue`; deliveries of engines that hold never come to that.", shown="`drop-newest`",
    )  # fmt: skip
    backlog: int = option(
        "size", byte_size, 64 * 1024 * 1024, "clients", "That may wait for the engine of one stream.", shown="64 MiB"
    )
    behind: BacklogPolicy = option(
        "`drop-newest`, `disconnect`, `hold`", member(BacklogPolicy), BacklogPolicy.DROP_NEWEST, "clients",
        "What happens beyond `backlog`; `hold`: all clients wait.", shown="`drop-newest`",
    )  # fmt: skip
    repeats: int = 100
    events: bytes = b"_MAMA_EVENTS"  #: the broker's own stream (:mod:`.broker_events`); empty = none
    streams: int = option(
        "integer", integer(1), 4096, "clients", "That clients may make; they live as long as the broker."
    )
    patterns: int = option("integer", integer(1), 100_000, "clients", "Subscriptions and offers of one client.")
    mailboxes: Limits = field(default_factory=Limits)
    services: Limits = field(default_factory=Limits)
    features: Feature = ALL  #: what is done for clients that announce it


@dataclass(slots=True, eq=False)
class PendingReply:
    """A reply that an earlier one, or an engine, holds back."""

    frames: Frames | None = None  #: None while it is awaited
    silent: bool = False  #: awaited, but nothing is to be sent
    sent: dict[bytes, int] = field(default_factory=dict)  #: sends that its acknowledgement covers, by stream
    octets: int = 0  #: and what they cost
    syncs: int = 0  #: engines that have to answer
    writes: bool = False  #: the answer to WRITE, which tells whether the stream is stored
    runs: dict[bytes, tuple[AckRun, ...]] = field(default_factory=dict)  #: what became of these


@dataclass(slots=True, eq=False)
class ClientSession:
    """A connected client; to engines, an opaque reference."""

    identity: bytes
    address: bytes
    features: Feature
    seen: float
    alive: bool = True
    stream: bytes | None = None  #: the one it writes to
    wrote: dict[bytes, None] = field(default_factory=dict)  #: all that it ever wrote to
    reads: dict[bytes, set[bytes]] = field(default_factory=dict)
    offers: set[tuple[bytes, bytes]] = field(default_factory=set)
    credit: int | None = None  #: None = unlimited: it never sent CREDIT, nor announced that it will
    blocked: bool = False  #: its socket takes no more
    slots: deque[PendingReply] = field(default_factory=deque)
    replies: ByteQueue[Frames] = field(default_factory=ByteQueue)  #: to go first once it is not blocked
    queue: ByteQueue[tuple[Frames, MailboxMessage | None]] = field(default_factory=ByteQueue)
    held: ByteQueue[Frames] = field(default_factory=ByteQueue)  #: of engines that hold; bounded by the shares
    shares: CreditAllocator = field(default_factory=CreditAllocator)
    allowance: SendWindow | None = None  #: for what it sends; None = it does not keep to any
    sent: dict[bytes, int] = field(default_factory=dict)  #: stream -> sends since the last sync
    unconfirmed: ByteQueue[MailboxMessage] = field(default_factory=ByteQueue)  #: handed over, to be confirmed
    repeats: int = 0
    repeats_since: float = 0.0

    def __repr__(self) -> str:
        credit = "" if self.credit is None else f", credit {self.credit}"
        state = "" if self.alive else ", gone"
        return f"<ClientSession {self.address!r} {len(self.reads)} reads, {len(self.queue)} queued{credit}{state}>"
