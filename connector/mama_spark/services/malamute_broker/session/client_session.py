"""The state of one connected client. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mama_spark.malamute.protocol.credit import CreditAllocator, DeliveryCredit, SendWindow
from mama_spark.malamute.protocol.extensions import AckRun, Feature

from .byte_queue import ByteQueue
from .mailboxes.mailbox_store import MailboxMessage
from .states import SessionState

Frames = list[bytes]


@dataclass(slots=True, eq=False)
class PendingReply:
    """A reply that waits for an engine, or behind one that does."""

    frames: Frames | None = None  #: None while an engine has to answer
    silent: bool = False  #: an engine has to answer, but nothing is sent to the client
    for_write: bool = False  #: the answer to WRITE, which says whether the stream is stored
    sends: dict[bytes, int] = field(default_factory=dict)  #: of a PING: messages that it acknowledges, by stream
    send_octets: int = 0  #: of a PING: what they take of the send window
    syncs: int = 0  #: of a PING: engines that have not answered SYNC
    outcomes: dict[bytes, tuple[AckRun, ...]] = field(default_factory=dict)  #: of a PING: what the engines answered


@dataclass(slots=True, eq=False)
class ClientSession:
    """A connected client; to engines, an opaque reference."""

    identity: bytes
    address: bytes
    features: Feature
    last_heard: float
    state: SessionState
    write_stream: bytes | None = None  #: where its STREAM SENDs go
    written_streams: dict[bytes, None] = field(default_factory=dict)  #: all that it has ever written to
    subscriptions: dict[bytes, set[bytes]] = field(default_factory=dict)  #: patterns by stream
    offers: set[tuple[bytes, bytes]] = field(default_factory=set)  #: service and pattern
    credit: DeliveryCredit = field(default_factory=DeliveryCredit)
    blocked: bool = False  #: its socket takes no more
    pending_replies: deque[PendingReply] = field(default_factory=deque)
    replies: ByteQueue[Frames] = field(default_factory=ByteQueue)  #: to go first once it is not blocked
    queue: ByteQueue[tuple[Frames, MailboxMessage | None]] = field(default_factory=ByteQueue)
    lent_deliveries: ByteQueue[Frames] = field(default_factory=ByteQueue)  #: bounded by what was lent to the engines
    allocator: CreditAllocator = field(default_factory=CreditAllocator)
    send_window: SendWindow | None = None  #: None: it did not announce that it keeps to one
    unsynced_sends: dict[bytes, int] = field(default_factory=dict)  #: messages by stream since its last PING
    unconfirmed: ByteQueue[MailboxMessage] = field(default_factory=ByteQueue)  #: delivered, to be confirmed by it
    repeats: int = 0  #: repeated commands in the second since ``repeats_since``
    repeats_since: float = 0.0

    @property
    def connected(self) -> bool:
        return self.state is SessionState.CONNECTED

    def __repr__(self) -> str:
        state = "" if self.connected else ", gone"
        return (
            f"<ClientSession {self.address!r} {len(self.subscriptions)} streams read, {len(self.queue)} queued, "
            f"credit {self.credit}{state}>"
        )
