"""The connected clients of a broker, and the frames for them: replies in the order of their commands, what waits for
blocked sockets, PONGs that nobody asked for. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.credit import CreditAllocator, DeliveryCredit, SendWindow, send_cost
from mama_spark.malamute.protocol.extensions import AckRun, Feature
from mama_spark.malamute.protocol.log_query import LogQuery

from .broker_events import EventRecorder
from .queues import ByteQueue, MailboxMessage
from .settings import SessionSettings
from .states import SessionEvent, SessionState

Frames = list[bytes]
#: Replies of one client that may wait for an engine.
MAX_PENDING_REPLIES = 100_000
#: Seconds between looks for clients that need a PONG: with the silence allowed, under half of the C client's patience.
PONG_LOOK = 0.5
OK = commands.encode(commands.Ok())
PONG = commands.encode(commands.Pong())


@dataclass(slots=True, eq=False)
class PendingReply:
    """A reply that waits for an engine, or for an earlier reply."""

    frames: Frames | None = None  #: None until the engine has answered
    silent: bool = False  #: nothing is sent to the client when the engine answers
    for_write: bool = False  #: the answer to WRITE
    sends: dict[bytes, int] = field(default_factory=dict)  #: of a PING: messages that it acknowledges, by stream
    send_bytes: int = 0  #: of a PING: their bytes of the send window
    syncs: int = 0  #: of a PING: engines that have not answered SYNC
    outcomes: dict[bytes, tuple[AckRun, ...]] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class ClientSession:
    """A connected client; to engines, an opaque reference."""

    identity: bytes
    address: bytes
    features: Feature
    last_heard: float
    state: SessionState
    plain: bool = False  #: no extensions announced, as the C client
    last_pong: float = 0.0  #: or when it connected
    write_stream: bytes | None = None
    written_streams: dict[bytes, None] = field(default_factory=dict)
    subscriptions: dict[bytes, set[bytes]] = field(default_factory=dict)  #: patterns by stream
    has_sent: bool = False  #: mail, or requests
    offers: set[tuple[bytes, bytes]] = field(default_factory=set)  #: service and pattern
    credit: DeliveryCredit = field(default_factory=DeliveryCredit)
    blocked: bool = False
    pending_replies: deque[PendingReply] = field(default_factory=deque)
    replies: ByteQueue[Frames] = field(default_factory=ByteQueue)  #: sent first when it is unblocked
    queue: ByteQueue[tuple[Frames, MailboxMessage | None]] = field(default_factory=ByteQueue)
    lent_deliveries: ByteQueue[Frames] = field(default_factory=ByteQueue)  #: bounded by the credit lent to engines
    allocator: CreditAllocator = field(default_factory=CreditAllocator)
    send_window: SendWindow | None = None  #: None: feature not announced
    unsynced_sends: dict[bytes, int] = field(default_factory=dict)  #: messages by stream since its last PING
    lost_sends: bytes = b""  #: why nobody knows the outcome of messages since its last PING; empty = it is known
    unconfirmed: ByteQueue[MailboxMessage] = field(default_factory=ByteQueue)
    open_queries: int = 0
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
    def queued_bytes(self) -> int:
        return self.queue.size + self.lent_deliveries.size + self.replies.size


@dataclass(slots=True)
class SessionCounters:
    """Counters since the start of the broker; see :mod:`~mama_spark.malamute.broker.broker.metrics`."""

    malformed: int = 0
    refused: int = 0
    dropped: int = 0
    lost_letters: int = 0
    lost_deliveries: int = 0
    lost_sends: int = 0
    expired: int = 0
    unclosed: int = 0
    repeats: int = 0


class Connections:
    """The sessions of the connected clients, and the frames to send to them.

    :param drop: ends the session of a client that exceeds a limit
    :ivar by_identity: clients by routing id, longest silent first
    :ivar plain: number of those that announced no extensions
    :ivar now: the caller's time of the last input, seconds of a monotonic clock
    :ivar outgoing: frames to send, each with its client, or the routing id of a peer without session
    """

    def __init__(self, settings: SessionSettings, drop: Callable[[ClientSession, SessionEvent], None]) -> None:
        self.settings = settings
        self.drop = drop
        self.counters = SessionCounters()
        self.events = EventRecorder()
        self.now = 0.0
        self.by_identity: OrderedDict[bytes, ClientSession] = OrderedDict()
        self.by_address: dict[bytes, ClientSession] = {}
        self.plain = 0
        self.outgoing: list[tuple[ClientSession | bytes, Frames]] = []
        self._pongs_looked = 0.0
        self._pong_pending = False  # a client was heard, and its last PONG is not long ago

    def __len__(self) -> int:
        return len(self.by_identity)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(self.by_identity.values())

    def add(self, client: ClientSession) -> None:
        """The client's address must be free."""
        self.by_identity[client.identity] = client
        self.plain += client.plain
        if client.address:
            self.by_address[client.address] = client

    def remove(self, client: ClientSession) -> None:
        if self.by_identity.pop(client.identity, None) is not None:
            self.plain -= client.plain
        if self.by_address.get(client.address) is client:
            del self.by_address[client.address]

    def take_output(self) -> list[tuple[ClientSession | bytes, Frames]]:
        outgoing, self.outgoing = self.outgoing, []
        return outgoing

    def send(self, receiver: ClientSession | bytes, frames: Frames) -> None:
        self.outgoing.append((receiver, frames))

    def send_or_keep(self, client: ClientSession, messages: list[Frames]) -> None:
        """Send messages that must stay contiguous, or queue them without a limit; the caller bounds them."""
        if client.blocked:
            for frames in messages:
                client.replies.put(frames, frames_size(frames))
        else:
            self.outgoing += [(client, frames) for frames in messages]

    def emit(self, client: ClientSession, frames: Frames) -> None:
        """Send a reply ahead of those that wait for engines. A client that does not read its replies is dropped."""
        self.send_or_keep(client, [frames])
        if client.blocked and client.replies.size > self.settings.queue:
            self.drop(client, SessionEvent.QUEUE_FULL)

    def reply(self, client: ClientSession, frames: Frames) -> None:
        """Send a reply after those to earlier commands."""
        if client.pending_replies:
            client.pending_replies.append(PendingReply(frames))
            if len(client.pending_replies) > MAX_PENDING_REPLIES:  # it sends commands while an engine does not answer
                self.drop(client, SessionEvent.QUEUE_FULL)
        else:
            self.emit(client, frames)

    def fail(self, client: ClientSession, reason: bytes, end: SessionEvent | None = None) -> None:
        """Reply ERROR 300, and end the session by this event."""
        self.reply(client, error_frames(StatusCode.FAILED, reason))
        if end is not None:
            self.drop(client, end)

    def advance(self, client: ClientSession) -> None:
        while client.pending_replies and client.pending_replies[0].frames is not None:
            self.emit(client, client.pending_replies.popleft().frames or [])

    def flush(self, client: ClientSession) -> None:
        """At the end of a session: send the complete replies at the front, drop the others."""
        for reply in client.pending_replies:
            if reply.frames is not None and not reply.silent:
                self.outgoing.append((client.identity, reply.frames))
        client.pending_replies.clear()

    def block(self, client: ClientSession, frames: Frames) -> None:
        """The client's socket did not accept these frames, which are queued with all later ones."""
        client.blocked = True
        client.replies.put(frames, frames_size(frames))

    def put_back(self, client: ClientSession, frames: Frames) -> None:
        client.replies.put_back(frames, frames_size(frames))

    def answers_repeat(self, client: ClientSession) -> bool:
        """Count a repeated command; False: do not answer, for the C client repeats commands on reconnect endlessly."""
        if self.now - client.repeats_since >= 1.0:
            client.repeats, client.repeats_since = 0, self.now
        client.repeats += 1
        refused = client.repeats > self.settings.repeats
        self.counters.repeats += refused
        return not refused

    def longest_silent(self) -> ClientSession | None:
        return next(iter(self.by_identity.values()), None)

    def excuse_silence(self, seconds: float) -> None:
        """Exclude ``seconds`` in which the sockets were not read from the silence of all clients."""
        for client in self:
            client.last_heard += seconds

    def next_pongs(self) -> float | None:
        """Time of the next :meth:`send_pongs`; None while no client may need it."""
        newest = next(reversed(self.by_identity.values()), None) if self.settings.pong_silence and self.plain else None
        if newest is not None and (self._pong_pending or newest.last_heard > self._pongs_looked):
            return self._pongs_looked + PONG_LOOK
        return None

    def send_pongs(self) -> None:
        """Send PONG unasked to plain clients whose PINGs wait behind their own messages: to each that was heard since
        its last PONG, if that was ``pong_silence`` ago.

        The C client sends PING each second through the same pipe as its messages, and takes the broker for gone after 4
        s without input. While the broker holds it back (it reads no faster than its engines work), that PING is far
        behind: the client then discards what is delivered to it, and when destroyed in that state it throws away its
        queue and sends no CLOSE. It accepts an unasked PONG in every state. A client that announces extensions gets
        none: its PONG acknowledges messages, and it waits for as long as it likes.

        Time in which the sockets were not read counts as heard (:meth:`excuse_silence`): clients get PONGs then, too.
        """
        now, silence = self.now, self.settings.pong_silence
        if now < self._pongs_looked + PONG_LOOK or not silence or not self.plain:
            return
        self._pongs_looked, self._pong_pending = now, False
        for client in reversed(self.by_identity.values()):
            if client.last_heard + silence + PONG_LOOK < now:
                break  # all others were silent for longer
            if not client.plain or client.last_heard <= client.last_pong:
                continue
            if now - client.last_pong < silence:
                self._pong_pending = True
            elif not client.blocked:  # what waits for a socket that takes no more is input enough
                client.last_pong = now
                self.emit(client, PONG)


def frames_size(frames: Frames) -> int:
    """Bytes of memory that frames take in a queue, overhead included."""
    return send_cost(sum(map(len, frames)), 1)


def error_frames(code: StatusCode, reason: bytes) -> Frames:
    return commands.encode(commands.Error(code, commands.shortened(reason)))
