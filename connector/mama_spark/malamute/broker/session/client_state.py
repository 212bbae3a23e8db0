"""The state of one connected client. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mama_spark.malamute.protocol.credit import CreditAllocator, DeliveryCredit, SendWindow
from mama_spark.malamute.protocol.extensions import AckRun, Feature
from mama_spark.malamute.protocol.log_query import LogQuery

from .byte_queue import ByteQueue
from .mailbox_store import MailboxMessage
from .states import SessionState

Frames = list[bytes]


@dataclass(slots=True, eq=False)
class PendingReply:
    """A reply that waits for an engine, or for an earlier reply."""

    frames: Frames | None = None  #: None until the engine has answered
    silent: bool = False  #: nothing is sent to the client when the engine answers
    for_write: bool = False  #: the answer to WRITE, which has the extension ``stored``
    sends: dict[bytes, int] = field(default_factory=dict)  #: of a PING: messages that it acknowledges, by stream
    send_octets: int = 0  #: of a PING: their bytes of the send window
    syncs: int = 0  #: of a PING: engines that have not answered SYNC
    outcomes: dict[bytes, tuple[AckRun, ...]] = field(default_factory=dict)  #: of a PING: answers of the engines


@dataclass(slots=True, eq=False)
class ClientSession:
    """A connected client; to engines, an opaque reference."""

    identity: bytes
    address: bytes
    features: Feature
    last_heard: float
    state: SessionState
    plain: bool = False  #: it announced no extensions, as the C client
    last_pong: float = 0.0  #: when it was sent its last PONG, or connected
    write_stream: bytes | None = None  #: stream of its STREAM SENDs
    written_streams: dict[bytes, None] = field(default_factory=dict)  #: all streams that it has written to
    subscriptions: dict[bytes, set[bytes]] = field(default_factory=dict)  #: patterns by stream
    has_sent: bool = False  #: mail, or requests
    offers: set[tuple[bytes, bytes]] = field(default_factory=set)  #: service and pattern
    credit: DeliveryCredit = field(default_factory=DeliveryCredit)
    blocked: bool = False  #: its socket accepts no more frames
    pending_replies: deque[PendingReply] = field(default_factory=deque)
    replies: ByteQueue[Frames] = field(default_factory=ByteQueue)  #: sent first when it is unblocked
    queue: ByteQueue[tuple[Frames, MailboxMessage | None]] = field(default_factory=ByteQueue)
    lent_deliveries: ByteQueue[Frames] = field(default_factory=ByteQueue)  #: bounded by the credit lent to engines
    allocator: CreditAllocator = field(default_factory=CreditAllocator)
    send_window: SendWindow | None = None  #: None: it did not announce the feature
    unsynced_sends: dict[bytes, int] = field(default_factory=dict)  #: messages by stream since its last PING
    lost_sends: bytes = b""  #: why nobody knows the outcome of messages since its last PING; empty = it is known
    unconfirmed: ByteQueue[MailboxMessage] = field(default_factory=ByteQueue)  #: delivered to it and not confirmed
    open_queries: int = 0  #: queries about stored streams that are not answered
    parked_queries: list[LogQuery] = field(default_factory=list)  #: of them, those that wait for its blocked socket
    repeats: int = 0  #: repeated commands in the second since ``repeats_since``
    repeats_since: float = 0.0

    @property
    def connected(self) -> bool:
        return self.state is SessionState.CONNECTED

    @property
    def queued(self) -> int:
        """Deliveries and replies that wait for its socket, or for its credit."""
        return len(self.queue) + len(self.lent_deliveries) + len(self.replies)

    @property
    def queued_octets(self) -> int:
        return self.queue.size + self.lent_deliveries.size + self.replies.size

    def __repr__(self) -> str:
        state = "" if self.connected else ", gone"
        return (
            f"<ClientSession {self.address!r} {len(self.subscriptions)} streams read, {len(self.queue)} queued, "
            f"credit {self.credit}{state}>"
        )
