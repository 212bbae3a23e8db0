"""What goes to clients, and what waits for them: credit, queues with limits, replies in order. Pure.

A message that counts for credit goes at once if the client has credit and its socket takes it. What comes from an
engine that holds was lent to it (:mod:`mama_spark.malamute.protocol.credit`), so little can wait of that, and none is
dropped; all else waits in the client's queue, with its limit and policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mama_spark.malamute.protocol import commands, message_blocks
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.credit import SendWindow, window_for
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, write

from ..engines.commands import AcceptBlock, EngineCommand, GiveCredit, RecallCredit
from .backlog import OVERHEAD, BacklogPolicy
from .byte_queue import Overflow
from .clients import ClientSession, Frames, PendingReply, SessionSettings
from .mailbox_store import MailboxMessage
from .states import SessionEvent

#: Answers of one client that may wait for an engine.
MAX_SLOTS = 100_000
PONG = commands.encode(commands.Pong())
OK = commands.encode(commands.Ok())


class DeliveryScheduler:
    """The sending half of :class:`~mama_spark.services.malamute_broker.session.state_machine.ServerMachine`."""

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        self.now = 0.0  #: of the last input
        self.out: list[tuple[ClientSession | bytes, Frames]] = []  #: to send, in order; a stranger is its routing id
        self.orders: dict[bytes, list[EngineCommand]] = {}  #: stream -> commands for its engine, in order
        self.counters = dict.fromkeys(
            ("malformed", "refused", "dropped", "lost_letters", "lost_deliveries", "lost_sends", "expired", "repeats"),
            0,
        )
        self.opening: dict[bytes, float] = {}  #: streams whose engine has not started, and since when
        self.unpacked = 0  #: messages that came in blocks, but for one a block; the shell counts them with the others
        self.full: set[bytes] = set()  #: streams whose backlog is full; the shell knows
        self.publishers = 0  #: clients that keep to an allowance and have used it
        self._turns: dict[ClientSession, None] = {}  # who has streams that wait for their turn of the credit

    def _drop(self, client: ClientSession, event: SessionEvent) -> None:
        raise NotImplementedError

    def _accept(
        self,
        client: ClientSession,
        stream: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None,
    ) -> None:
        raise NotImplementedError

    def _tell(self, letter: MailboxMessage, code: int, reason: bytes) -> None:
        raise NotImplementedError

    def _handed_over(self, receiver: ClientSession, letter: MailboxMessage) -> None:
        raise NotImplementedError

    # --- credit, and what waits for it ---------------------------------------------------------------------------

    def _credit(self, client: ClientSession, command: commands.Credit, now: float) -> None:
        client.credit = (client.credit or 0) + command.amount
        self._release(client)
        self._balance(client)

    def _balance(self, client: ClientSession) -> None:
        """Lend the engines that hold what is free; call back what is not used where it is needed."""
        shares = client.shares
        if client.blocked or not client.alive or not len(shares):
            return
        room = shares.window if client.credit is None else min(client.credit, shares.window)
        free = room - shares.lent - len(client.held)
        for stream, amount in shares.lend(free):
            self._order(stream, GiveCredit(client, amount))
            free -= amount
        if free <= 0:
            self._recall(client, shares.recall(len(client.queue) > 0, self.now))
            if shares.rotation_due is not None:
                self._turns[client] = None

    def _recall(self, client: ClientSession, streams: Iterable[bytes]) -> None:
        for stream in streams:
            self._order(stream, RecallCredit(client))

    def _deliver_lent(self, client: ClientSession, stream: bytes, frames: Frames) -> None:
        """A delivery for which the engine has credit, so it is never dropped."""
        size = frames_size(frames)
        if not client.shares.use(stream, size):
            self._deliver(client, frames)
        elif client.blocked or client.held.size or client.credit == 0:
            client.held.put(frames, size)
        elif client.credit is None:
            self.out.append((client, frames))
        else:
            self._pass(client, frames, None)

    def _deliver(self, client: ClientSession, frames: Frames, letter: MailboxMessage | None = None) -> bool:
        """Send or keep a message that counts for credit; False if it is lost."""
        if not client.alive:
            return False
        if self._may_pass(client) and not client.blocked and not len(client.queue):
            self._pass(client, frames, letter)
            return True
        lost = client.queue.put((frames, letter), frames_size(frames))
        self.counters["lost_deliveries"] += len(lost)
        for _, other in lost:
            if other is not None and other is not letter:
                self._tell(other, StatusCode.FAILED, b"no room")
        if lost and client.queue.overflow is Overflow.DISCONNECT:
            self._drop(client, SessionEvent.OVERRUN)
        self._balance(client)
        return not any(one is frames for one, _ in lost)

    @staticmethod
    def _may_pass(client: ClientSession) -> bool:
        """What was not lent to an engine may go to the client now."""
        return not len(client.held) and (client.credit is None or client.credit > client.shares.lent)

    def _release(self, client: ClientSession) -> None:
        while not client.blocked and (frames := self.next_for(client)) is not None:
            self.out.append((client, frames))

    def _pass(self, client: ClientSession, frames: Frames, letter: MailboxMessage | None) -> None:
        self.out.append((client, self._counted(client, frames, letter)))

    def _counted(self, client: ClientSession, frames: Frames, letter: MailboxMessage | None) -> Frames:
        if client.credit is not None:
            client.credit -= 1
        if letter is not None:
            self._handed_over(client, letter)
        return frames

    def block(self, client: ClientSession, frames: Frames) -> None:
        """The socket of the client did not take these; until :meth:`unblock`, nothing for it comes to :attr:`out`."""
        client.blocked = True
        client.replies.put(frames, frames_size(frames))

    def next_for(self, client: ClientSession) -> Frames | None:
        """Take what waits longest for a client whose socket may take more; None = nothing that may go now."""
        if len(client.replies):
            return client.replies.get()
        if len(client.held) and client.credit != 0:
            return self._counted(client, client.held.get(), None)
        if len(client.queue) and self._may_pass(client):
            return self._counted(client, *client.queue.get())
        return None

    def put_back(self, client: ClientSession, frames: Frames) -> None:
        """The socket did not take what :meth:`next_for` gave."""
        client.replies.put_back(frames, frames_size(frames))

    def unblock(self, client: ClientSession) -> None:
        """The socket took all that :meth:`next_for` gave."""
        client.blocked = False
        self._release(client)
        self._balance(client)

    def _order(self, stream: bytes, order: EngineCommand) -> None:
        orders = self.orders.get(stream)
        if orders is None:
            self.orders[stream] = [order]
        else:
            orders.append(order)

    @property
    def rotating(self) -> bool:
        """Somebody waits for a turn of the credit, or did, or is gone: somebody has to look."""
        return bool(self._turns)

    def _rotate(self, now: float) -> None:
        for client in list(self._turns):
            due = client.shares.rotation_due
            if client.alive and due is not None and due > now:
                continue
            del self._turns[client]
            if client.alive and due is not None:
                self._recall(client, client.shares.rotate())

    # --- what clients send ---------------------------------------------------------------------------------------

    def _admit(self, client: ClientSession) -> int | None:
        """What a new client may send, if it keeps to that."""
        if Feature.SENDING | Feature.ACKS not in client.features:
            return None
        client.allowance = SendWindow()
        return self._grant(client.allowance)

    def _dismiss(self, client: ClientSession) -> None:
        if client.allowance is not None:
            self.publishers -= client.allowance.in_use
            client.allowance = None

    def _grant(self, allowance: SendWindow) -> int:
        return allowance.grant(window_for(self.publishers, self.settings.backlog))

    def _asked(self, client: ClientSession) -> int:
        """A PING of the client: octets that its answer covers."""
        if client.allowance is None:
            return 0
        octets = client.allowance.ping()
        if octets and not client.allowance.in_use:
            client.allowance.in_use = True
            self.publishers += 1
        return octets

    def _pong(self, client: ClientSession, slot: PendingReply) -> Frames:
        """:param slot: of the PING; all engines have answered it"""
        acks: tuple[AckRun, ...] = ()
        for stream, count in slot.sent.items():
            acks += slot.runs.get(stream) or (AckRun(StoreOutcome.ACCEPTED, count),)
        credit = None
        if client.allowance is not None:
            client.allowance.answered(slot.octets)
            credit = self._grant(client.allowance) or None
        return commands.encode(commands.Pong(write(Extension(acks=acks, credit=credit)))) if acks or credit else PONG

    def _send_block(
        self, client: ClientSession, stream: bytes, content: Sequence[bytes], count: int, octets: int
    ) -> None:
        try:
            block = message_blocks.unpack(count, content)
        except BadFrame:
            self.counters["malformed"] += 1
            return
        self.unpacked += count - 1
        if client.allowance is not None:
            client.allowance.sent(octets, count)
        if stream in self.opening or stream in self.full or stream == self.settings.events:
            for message in block.messages():
                if client.alive:
                    self._accept(client, stream, *message)
            return
        client.sent[stream] = client.sent.get(stream, 0) + count
        self._order(stream, AcceptBlock(client, client.address, block))

    def _overrun(self, client: ClientSession) -> None:
        """The client sends to a stream whose backlog is full; whoever counts answers must not miss one."""
        self.counters["lost_sends"] += 1
        if self.settings.behind is BacklogPolicy.DISCONNECT or client.features:
            self._fail(client, b"the stream does not keep up")
            self._drop(client, SessionEvent.BEHIND)

    # --- replies -------------------------------------------------------------------------------------------------

    def _fail(self, client: ClientSession, reason: bytes) -> None:
        self._reply(client, error_frames(StatusCode.FAILED, reason))

    def _answer_repeat(self, client: ClientSession, now: float) -> bool:
        if now - client.repeats_since >= 1.0:
            client.repeats, client.repeats_since = 0, now
        client.repeats += 1
        if client.repeats > self.settings.repeats:
            self.counters["repeats"] += 1
            return False
        return True

    def _reply(self, client: ClientSession, frames: Frames) -> None:
        if client.slots:
            client.slots.append(PendingReply(frames))
            if len(client.slots) > MAX_SLOTS:  # asks and asks, and an engine does not come to its answer
                self._drop(client, SessionEvent.OVERRUN)
        else:
            self._emit(client, frames)

    def _advance(self, client: ClientSession) -> None:
        while client.slots and client.slots[0].frames is not None:
            self._emit(client, client.slots.popleft().frames or [])

    def _emit(self, client: ClientSession, frames: Frames) -> None:
        if client.blocked:
            client.replies.put(frames, frames_size(frames))
            if client.replies.size > self.settings.queue:  # asks and asks and does not read the answers
                self._drop(client, SessionEvent.OVERRUN)
        else:
            self.out.append((client, frames))


def frames_size(frames: Frames) -> int:
    """What frames cost in a queue; a small message takes several times its octets."""
    return sum(map(len, frames)) + OVERHEAD


def error_frames(code: StatusCode, reason: bytes) -> Frames:
    return commands.encode(commands.Error(code, reason.replace(b"\0", b"?")[:255]))
