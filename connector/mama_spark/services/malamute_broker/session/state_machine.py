"""The broker's side of MLP: what every command of every client leads to. Pure.

:class:`ServerMachine` takes frames and times and gives values: frames to send (:attr:`~ServerMachine.out`) and commands
for the engines of streams (:attr:`~ServerMachine.orders`). It never raises for what a client sends. A client is known
by its routing id and nothing else; one that is not connected has no state here, so strangers cost nothing.

Replies to one client keep the order of its commands, also where an engine has to answer first: READ is answered when
the engine has compiled the pattern, the PONG behind the sends of a client that asked for it when the engine has them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, Command, StatusCode
from mama_spark.malamute.protocol.credit import DELIVERY_WINDOW_OCTETS, CreditAllocator
from mama_spark.malamute.protocol.extensions import NOTHING, AckRun, Extension, Feature, read, write

from ..engines import Delivery
from ..engines.commands import (
    AcceptMessage,
    AnsweredCommand,
    CancelSubscriptions,
    CompilePattern,
    ConnectTraffic,
    GiveCredit,
    SyncOutcomes,
)
from .backlog import OVERHEAD
from .broker_events import OF_CLIENTS
from .byte_queue import ByteQueue, Overflow
from .clients import ClientSession, PendingReply, SessionSettings
from .delivery_scheduler import OK, PONG, error_frames
from .log_query_server import ReadableStreams
from .mailbox_server import MailboxServer
from .states import EVENTS, TABLE, SessionEvent, SessionState

#: Seconds from which a PONG does not wait for engines that start: clients ping once a second, and give up after four.
SLOW_START = 1.0
#: Answers that one engine may owe to all clients; while it is stuck, those who come and go add to them.
MOST_AWAITED = 100_000
#: Command frames of STREAM SENDs that are remembered.
REMEMBERED = 4096
_NOBODY = ClientSession(b"", b"", Feature(0), 0.0, alive=False)
_OK_STORED = commands.encode(commands.Ok(trailing=write(Extension(stored=1))))
_INVALID = commands.encode(commands.Error())


class _Awaited(NamedTuple):
    """A command that an engine answers."""

    client: ClientSession
    slot: PendingReply
    pattern: bytes | None = None  #: of a fresh READ
    cancel: bool = False


class ServerMachine(MailboxServer):
    """All clients of one broker. Not thread-safe: one loop drives it.

    :param holds: does the engine of this stream hold what is beyond a client's credit
    :param shelf: which stored streams there are
    """

    def __init__(
        self,
        settings: SessionSettings | None = None,
        holds: Callable[[bytes], bool] = lambda stream: False,
        shelf: ReadableStreams | None = None,
    ) -> None:
        super().__init__(settings or SessionSettings(), shelf)
        self.events: list[tuple[str, bytes, bytes, bytes]] = []  #: kind, client's address, stream, detail
        self.clients: OrderedDict[bytes, ClientSession] = OrderedDict()  #: by routing id, longest silent first
        self.holding: set[bytes] = set()  #: those of them whose engine holds
        self.stored: set[bytes] = set()  #: those of them that are stored
        self._early: dict[bytes, int] = {}  # octets that were sent to them
        self._subjects: dict[bytes, bytes] = {}  # of plain STREAM SENDs
        self._holds = holds
        self._awaited: dict[bytes, deque[_Awaited]] = {}

    def __repr__(self) -> str:
        return f"<ServerMachine {len(self.clients)} clients, {len(self.streams)} streams>"

    # --- in ------------------------------------------------------------------------------------------------------

    def receive(self, identity: bytes, frames: Sequence[bytes], now: float) -> None:
        """What the client with this routing id sent."""
        self.now = now
        client = self.clients.get(identity)
        if client is not None:
            client.seen = now
            self.clients.move_to_end(identity)
            if client.stream is not None:
                subject = self._subjects.get(frames[0]) or self._subject(frames[0]) if frames else None
                if subject is not None:  # the most frequent command, without a detour
                    if client.allowance is not None:
                        client.allowance.sent(sum(map(len, frames)))
                    self._accept(client, client.stream, subject, frames[1:], NOTHING if client.features else None)
                    return
        try:
            command = commands.decode(frames)
        except BadFrame:  # no reply, no change of state (the reference's rule for all that is no command)
            self.counters["malformed"] += 1
            return
        event = EVENTS.get(type(command), SessionEvent.SERVER_ONLY)
        if client is None:
            self._stranger(identity, event, command, now)
            return
        if event is SessionEvent.SEND:
            if client.stream is None:
                event = SessionEvent.SEND_NOWHERE
        elif event is SessionEvent.CONFIRM and Feature.CONFIRM not in client.features:
            event = SessionEvent.CONFIRM_UNASKED
        _DO[event](self, client, command, now)
        if TABLE[SessionState.CONNECTED][event] is SessionState.START:
            self._drop(client, event)

    def _subject(self, frame: bytes) -> bytes | None:
        """Of a plain STREAM SEND; most are the same few."""
        subject = commands.subject_of_send([frame])
        if subject is not None:
            if len(self._subjects) >= REMEMBERED:
                self._subjects.clear()
            self._subjects[frame] = subject
        return subject

    def _stranger(self, identity: bytes, event: SessionEvent, command: Command, now: float) -> None:
        if isinstance(command, commands.Open):
            self._open(identity, command, now)
        elif event is SessionEvent.CLOSE:  # the reference dies of this
            self.out.append((identity, OK))
        else:
            self.counters["refused"] += 1
            self.out.append((identity, _INVALID))

    def expire(self, now: float) -> None:
        """Drop silent clients and letters that are too old; let unused credit go round."""
        self.now = now
        self._rotate(now)
        if self.settings.timeout:
            while self.clients:
                client = next(iter(self.clients.values()))
                if client.seen + self.settings.timeout > now:
                    break
                self.counters["expired"] += 1
                self._drop(client, SessionEvent.EXPIRED)
        if self._deadlines and now >= self._sweep:
            self._discard(now)

    def forgive(self, seconds: float) -> None:
        """Nobody was listened to for so long, so nobody was silent."""
        for client in self.clients.values():
            client.seen += seconds

    def next_expiry(self) -> float | None:
        """When :meth:`expire` has something to do at the earliest; None = nothing is in sight."""
        due = max(self._deadlines[0][0], self._sweep) if self._deadlines else None
        if self.settings.timeout and self.clients:
            silent = next(iter(self.clients.values())).seen + self.settings.timeout
            due = silent if due is None or silent < due else due
        if self._turns:
            turns = [client.shares.rotation_due for client in self._turns if client.shares.rotation_due is not None]
            due = min([*turns, *(() if due is None else (due,))], default=None)
        return due

    # --- connection ----------------------------------------------------------------------------------------------

    def _open(self, identity: bytes, command: commands.Open, now: float) -> None:
        announced = read(command.trailing).features
        client = ClientSession(identity, command.address, (announced or Feature(0)) & self.settings.features, now)
        client.queue = ByteQueue(self.settings.queue, None, self.settings.overflow)
        client.unconfirmed = ByteQueue(self.settings.queue, None, Overflow.DROP_OLDEST)
        client.shares = CreditAllocator(min(DELIVERY_WINDOW_OCTETS, self.settings.queue))
        if Feature.CREDIT in client.features:
            client.credit = 0
        if client.address:
            older = self.addresses.get(client.address)
            if older is not None:
                self._drop(older, SessionEvent.TAKEN_OVER)
            self.addresses[client.address] = client
        self.clients[identity] = client
        credit = self._admit(client)
        trailing = b"" if announced is None else write(Extension(features=client.features, credit=credit))
        self._reply(client, commands.encode(commands.Ok(trailing=trailing)))
        self._event("CONNECTED", client)
        if client.address:
            self._hand_over(client, self.mailboxes.take(client.address))

    def _open_again(self, client: ClientSession, command: Command, now: float) -> None:
        self._reply(client, _INVALID)

    def _close(self, client: ClientSession, command: Command, now: float) -> None:
        self._reply(client, OK)

    def _ping(self, client: ClientSession, command: commands.Ping, now: float) -> None:
        if command.trailing and Feature.LOG in client.features:
            question = read(command.trailing).question
            if question:
                self._ask(client, question)
                return
        if Feature.ACKS not in client.features or not client.sent:
            slow = any(now - since > SLOW_START for since in self.opening.values())
            if slow and not any(slot.syncs for slot in client.slots):
                self._emit(client, PONG)  # ahead of its turn: the broker must not look dead
            else:
                self._reply(client, self._pong(client, PendingReply(octets=self._asked(client))))
            return
        slot = PendingReply(sent=client.sent, octets=self._asked(client), syncs=len(client.sent))
        for stream in client.sent:
            self._order_awaited(stream, SyncOutcomes(client), client, slot)
        client.sent = {}
        client.slots.append(slot)

    def _drop(self, client: ClientSession, event: SessionEvent) -> None:
        """Forget the client; it is told nothing beyond what has been said."""
        if not client.alive:
            return
        client.alive = False
        self._dismiss(client)
        if event is not SessionEvent.CLOSE:
            self.counters["dropped"] += 1
        for slot in client.slots:  # what stands ready in front of an awaited answer goes out still
            if slot.frames is not None and not slot.silent:
                self.out.append((client.identity, slot.frames))
        client.slots.clear()
        self.clients.pop(client.identity, None)
        if self.addresses.get(client.address) is client:
            del self.addresses[client.address]
        self.services.withdraw(client)
        self._leave(client)
        for stream in client.sent:  # or the engine would keep what became of them for who does not ask any more
            self._order_awaited(stream, SyncOutcomes(client), client, PendingReply(silent=True))
        client.sent = {}
        for stream in client.reads:
            self._order_awaited(stream, CancelSubscriptions(client), client, PendingReply(silent=True))
            self._event("UNSUBSCRIBED", client, stream)
        for stream in client.wrote:
            self._event("STOPPED", client, stream)
        letters = [*client.unconfirmed, *(letter for _, letter in client.queue if letter is not None)]
        client.queue, client.unconfirmed, client.replies = ByteQueue(0), ByteQueue(0), ByteQueue(0)
        client.held = ByteQueue(0)
        for letter in reversed(letters):
            self._return(letter)
        self._event("GONE", client, detail=event.value.encode())

    # --- streams -------------------------------------------------------------------------------------------------

    def _write(self, client: ClientSession, command: commands.StreamWrite, now: float) -> None:
        if client.stream == command.stream and not self._answer_repeat(client, now):
            return
        client.stream = None  # whoever does not wait for the answer must not write to the stream before if it is no
        own = command.stream == self.settings.events and bool(command.stream)
        if own and Feature.DISCOVERY not in client.features:
            self._fail(client, b"the stream is the broker's own")
            return
        if not self._stream(client, command.stream):
            return
        client.stream = command.stream
        if command.stream not in client.wrote:
            client.wrote[command.stream] = None
            self._event("WRITING", client, command.stream)
        self._await(client, command.stream, ConnectTraffic(), writes=True)

    def _read(self, client: ClientSession, command: commands.StreamRead, now: float) -> None:
        fresh = command.pattern not in client.reads.get(command.stream, ())
        if not fresh and not self._answer_repeat(client, now):
            return
        if fresh and sum(map(len, client.reads.values())) >= self.settings.patterns:
            self._fail(client, b"too many subscriptions")
            return
        if not self._stream(client, command.stream):
            return
        after = read(command.trailing).after if Feature.SEQUENCE in client.features else None
        order = CompilePattern(client, command.pattern, after)
        self._await(client, command.stream, order, command.pattern if fresh else None)
        if command.stream not in client.reads:
            client.reads[command.stream] = set()
            if command.stream in self.holding:  # nothing until some is lent
                self._order(command.stream, GiveCredit(client, 0))
                client.shares.add_stream(command.stream)
                self._balance(client)
        client.reads[command.stream].add(command.pattern)

    def _cancel(self, client: ClientSession, command: commands.StreamCancel, now: float) -> None:
        if client.reads.pop(command.stream, None) is None:
            self._reply(client, OK)  # never read: the reference makes the stream, ours does not
            return
        self._await(client, command.stream, CancelSubscriptions(client))
        client.shares.cancel(command.stream)
        self._event("UNSUBSCRIBED", client, command.stream)

    def _send(self, client: ClientSession, command: commands.StreamSend, now: float) -> None:
        assert client.stream is not None
        extension = read(command.trailing) if client.features else None
        octets = 4 + len(command.subject) + len(command.trailing) + sum(map(len, command.content))
        if extension is not None and extension.block is not None and Feature.BLOCKS in client.features:
            self._send_block(client, client.stream, command.content, extension.block, octets)
            return
        if client.allowance is not None:
            client.allowance.sent(octets)
        self._accept(client, client.stream, command.subject, command.content, extension)

    def _accept(
        self,
        client: ClientSession,
        stream: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None,
    ) -> None:
        if self.opening and stream in self.opening and not self._ahead(client, stream, content):
            return
        if stream == self.settings.events and not subject.startswith(OF_CLIENTS):
            self._fail(client, b"such subjects are the broker's own")
            self._drop(client, SessionEvent.FOREIGN)
            return
        if self.full and stream in self.full:
            self._overrun(client)
            return
        if client.features:
            client.sent[stream] = client.sent.get(stream, 0) + 1
        self._order(stream, AcceptMessage(client, client.address, subject, content, extension))

    def _ahead(self, client: ClientSession, stream: bytes, content: Sequence[bytes]) -> bool:
        """May the client send before its stream is open? Whoever does not wait for the answer to WRITE, so far."""
        self._early[stream] += sum(map(len, content)) + OVERHEAD
        if self._early[stream] <= self.settings.queue:
            return True
        self._fail(client, b"the stream is not open yet")
        self._drop(client, SessionEvent.AHEAD)
        return False

    def _send_nowhere(self, client: ClientSession, command: Command, now: float) -> None:
        self._fail(client, b"")

    def _stream(self, client: ClientSession, stream: bytes) -> bool:
        """The stream is there, or will be, and its engine has not too much to answer; else the client is told."""
        if len(self._awaited.get(stream, ())) >= MOST_AWAITED:
            self._reply(client, error_frames(StatusCode.INTERNAL_ERROR, b"the stream does not keep up"))
            return False
        if stream not in self.streams:
            if len(self.streams) >= self.settings.streams:
                self._fail(client, b"too many streams")
                return False
            self._add_stream(stream)
        return True

    def _add_stream(self, stream: bytes) -> None:
        if stream not in self.streams:
            self.streams.add(stream)
            self.opening[stream] = self.now
            self._early[stream] = 0
            if self._holds(stream):
                self.holding.add(stream)

    def _await(
        self,
        client: ClientSession,
        stream: bytes,
        order: AnsweredCommand,
        pattern: bytes | None = None,
        writes: bool = False,
    ) -> None:
        slot = PendingReply(writes=writes)
        client.slots.append(slot)
        self._order_awaited(stream, order, client, slot, pattern)

    def _order_awaited(
        self,
        stream: bytes,
        order: AnsweredCommand,
        client: ClientSession,
        slot: PendingReply,
        pattern: bytes | None = None,
    ) -> None:
        self._awaited.setdefault(stream, deque()).append(
            _Awaited(client, slot, pattern, isinstance(order, CancelSubscriptions))
        )
        self._order(stream, order)

    # --- answers of engines --------------------------------------------------------------------------------------

    def taken(
        self, stream: bytes, error: str | None = None, runs: tuple[AckRun, ...] = (), position: int | None = None
    ) -> None:
        """The engine did its oldest TRAFFIC, COMPILE, CANCEL or SYNC that was not answered yet.

        :param error: why it refused the pattern
        :param runs: what it says to SYNC
        :param position: what it says to COMPILE
        """
        client, slot, pattern, cancel = self._awaited[stream].popleft()
        if self.opening and self.opening.pop(stream, None) is not None:
            del self._early[stream]
        if cancel and client.alive:
            client.shares.cancelled(stream)
            self._release(client)
            self._balance(client)
        if slot.frames is not None:
            return  # another stream that it asked about is lost, and that was the answer
        if slot.syncs:
            slot.runs[stream] = runs
            slot.syncs -= 1
            if slot.syncs:
                return
            slot.frames = self._pong(client, slot)
        elif error is None:
            told = slot.writes and stream in self.stored and Feature.ACKS in client.features
            slot.frames = _OK_STORED if told else OK
            if pattern is not None and position is not None and Feature.SEQUENCE in client.features:
                slot.frames = commands.encode(commands.Ok(trailing=write(Extension(sequence=position))))
            if pattern is not None and client.alive:
                self._event("SUBSCRIBED", client, stream, pattern)
        else:
            patterns = client.reads.get(stream)
            if patterns is not None and pattern is not None:
                patterns.discard(pattern)
                if not patterns:
                    del client.reads[stream]
                    client.shares.cancel(stream)
                    self._order_awaited(stream, CancelSubscriptions(client), client, PendingReply(silent=True))
            slot.frames = error_frames(StatusCode.FAILED, _octets(error))
            self._event("REFUSED", client, stream, _octets(error))
        if not slot.silent:
            self._advance(client)

    def opened(self, stream: bytes, stored: bool = False) -> None:
        """The shell said TRAFFIC to a new engine before all that is in :attr:`orders`; its answer is nobody's.

        :param stored: what the engine says of itself
        """
        if stored:
            self.stored.add(stream)
        self._awaited.setdefault(stream, deque()).appendleft(_Awaited(_NOBODY, PendingReply(silent=True)))

    def lost(self, stream: bytes, reason: str) -> None:
        """The engine of a stream is gone: whoever waits for it is told (ERROR 502), nobody reads there any more."""
        self.events.append(("STREAM_LOST", b"", stream, _octets(reason)))
        self.orders.pop(stream, None)
        self.streams.discard(stream)
        self.stored.discard(stream)
        self.full.discard(stream)
        self.holding.discard(stream)
        self.opening.pop(stream, None)
        self._early.pop(stream, None)
        for client, slot, *_ in self._awaited.pop(stream, ()):
            slot.frames = error_frames(StatusCode.INTERNAL_ERROR, _octets(reason))
            slot.syncs = 0
            if client.allowance is not None:
                client.allowance.answered(slot.octets)
            self._advance(client)
        self._unanswerable(stream, reason)
        for client in self.clients.values():
            client.reads.pop(stream, None)
            client.wrote.pop(stream, None)
            client.sent.pop(stream, None)
            if client.stream == stream:
                client.stream = None
            client.shares.remove(stream)
            self._release(client)
            self._balance(client)

    def delivered(self, stream: bytes, deliveries: Iterable[Delivery]) -> None:
        """What the engine of a stream has for clients (ML-17).

        :raises BadFrame: one of them fits in no command
        """
        holding = stream in self.holding
        lent: dict[ClientSession, None] = {}
        heads: dict[tuple[bytes, bytes], bytes] = {}  # of a sender and a subject: most come again and again
        for client, sender, subject, content, extension in deliveries:
            if isinstance(client, ClientSession) and client.alive:  # no delivery to one that is gone
                frame = heads.get((sender, subject))
                if frame is None:
                    try:
                        frame = heads[sender, subject] = commands.deliver_frame(stream, sender, subject)
                    except IndexError:
                        raise BadFrame(f"a delivery on a subject of {len(subject)} octets") from None
                if extension is not None and client.features:
                    frame += write(_for_client(extension, client.features))
                if holding:
                    self._deliver_lent(client, stream, [frame, *content])
                    lent[client] = None
                else:
                    self._deliver(client, [frame, *content])
        for client in lent:
            if client.shares.needs_refill(stream):
                self._balance(client)

    def returned(self, stream: bytes, client: Hashable, amount: int) -> None:
        """The engine gave back what it had left of the client's credit."""
        if isinstance(client, ClientSession) and client.alive:
            client.shares.returned(stream, amount)
            self._release(client)
            self._balance(client)

    # --- events ------------------------------------------------------------------------------------------------------

    def publish(self, stream: bytes, messages: Iterable[tuple[bytes, Sequence[bytes], Extension]]) -> None:
        """Messages of the broker itself: subject, content, headers."""
        self._add_stream(stream)
        for subject, content, extension in messages:
            self._order(stream, AcceptMessage(_NOBODY, b"", subject, content, extension))
        # nobody wants to know what became of them, and the engine is not to keep it
        self._order_awaited(stream, SyncOutcomes(_NOBODY), _NOBODY, PendingReply(silent=True))

    def _event(self, kind: str, client: ClientSession, stream: bytes = b"", detail: bytes = b"") -> None:
        quiet = Feature.DISCOVERY | (Feature.LOG if kind in ("CONNECTED", "GONE") else Feature(0))
        if not client.features & quiet:  # else reading what happened would make something happen
            self.events.append((kind, client.address, stream, detail))


def _octets(reason: str) -> bytes:
    """Of an engine, which may say anything."""
    return reason.encode("utf-8", "backslashreplace")


def _for_client(extension: Extension, features: Feature) -> Extension:
    """What of it the client announced."""
    numbers = Feature.SEQUENCE in features
    headers = Feature.HEADERS in features
    return Extension(
        sequence=extension.sequence if numbers else None,
        time=extension.time if numbers else None,
        message_id=extension.message_id if headers else b"",
        headers=extension.headers if headers else (),
    )


_DO: dict[SessionEvent, Any] = {
    SessionEvent.OPEN: ServerMachine._open_again,
    SessionEvent.CLOSE: ServerMachine._close,
    SessionEvent.PING: ServerMachine._ping,
    SessionEvent.WRITE: ServerMachine._write,
    SessionEvent.READ: ServerMachine._read,
    SessionEvent.CANCEL: ServerMachine._cancel,
    SessionEvent.SEND: ServerMachine._send,
    SessionEvent.SEND_NOWHERE: ServerMachine._send_nowhere,
    SessionEvent.MAILBOX_SEND: ServerMachine._mailbox_send,
    SessionEvent.OFFER: ServerMachine._offer,
    SessionEvent.SERVICE_SEND: ServerMachine._service_send,
    SessionEvent.CREDIT: ServerMachine._credit,
    SessionEvent.CONFIRM: ServerMachine._confirm,
    SessionEvent.CONFIRM_UNASKED: ServerMachine._confirm_unasked,
    SessionEvent.SERVER_ONLY: ServerMachine._open_again,
}
