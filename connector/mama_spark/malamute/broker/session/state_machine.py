"""State machine of an MLP broker for all its clients, without I/O. Pure.

:class:`ServerMachine` takes frames, answers of engines and times, and returns frames to send, commands for the engines
of streams, and events. No input of a client makes it raise. A client is identified by its routing id; a peer without a
session has no state here.

The machine decides by its table (:data:`~.states.TABLE`); what it does is in four parts, each with one table:

| part | table | what it does |
|---|---|---|
| :mod:`.clients` | clients | replies in order, blocked sockets, silence |
| :mod:`.publishing` | streams (:mod:`.streams`) | WRITE, SEND, PING and its acknowledgements, send windows |
| :mod:`.deliveries` | patterns of clients | READ, CANCEL; deliveries with credit |
| :mod:`.mailboxes` | waiting messages (:mod:`.queues`) | mailboxes and services; their expiry |

Replies to one client keep the order of its commands, even if an engine has to answer first: READ is answered when the
engine has compiled the pattern, PING of a client with acknowledgements when the engines have its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, Command, StatusCode
from mama_spark.malamute.protocol.credit import DELIVERY_WINDOW_BYTES, CreditAllocator, DeliveryCredit
from mama_spark.malamute.protocol.extensions import NO_EXTENSION, AckRun, Extension, Feature, read, write

from ..engines.commands import CancelSubscriptions
from .clients import OK, ClientSession, Connections, PendingReply, error_frames
from .deliveries import ClientDeliveries
from .log_queries import LogQueryServer
from .mail_and_services import Mailboxes
from .publishing import BROKER, Publishing
from .queues import ByteQueue
from .settings import Overflow, SessionSettings
from .states import CONNECTED, EVENTS, START, TABLE, SessionAction, SessionEvent
from .streams import AwaitedAnswer, StreamCatalog, Streams

_INVALID = commands.encode(commands.Error())
_OK_STORED = commands.encode(commands.Ok(trailing=write(Extension(stored=1))))
#: Queued messages of a client that is gone that are freed at a time: a millisecond.
TURN = 1000
#: The client is gone, and with it what it had not sent yet.
_WITHOUT_CLOSE = (SessionEvent.EXPIRED, SessionEvent.TAKEN_OVER)


class ServerMachine:
    """State machine for all clients of one broker. Not thread-safe: one loop drives it."""

    def __init__(self, settings: SessionSettings, catalog: StreamCatalog) -> None:
        self.settings = settings
        self.clients = clients = Connections(self.settings, self._drop)
        self.streams = streams = Streams(clients, catalog)
        self.deliveries = ClientDeliveries(clients, streams)
        self.publishing = Publishing(clients, streams)
        self.mailboxes = Mailboxes(clients, self.deliveries)
        self.queries = LogQueryServer(catalog, clients, streams)
        self._subjects, self._accept = self.publishing.subjects, self.publishing.accept
        self._discarded: list[ByteQueue[Any]] = []
        self._commands: dict[type[Command], Callable[[ClientSession, Any], None]] = {
            commands.Ping: self._ping,
            commands.StreamWrite: self.publishing.write,
            commands.StreamRead: self.deliveries.read,
            commands.StreamCancel: self.deliveries.cancel,
            commands.StreamSend: self.publishing.send,
            commands.MailboxSend: self.mailboxes.send,
            commands.ServiceOffer: self.mailboxes.offer,
            commands.ServiceSend: self.mailboxes.send,
            commands.Credit: self.deliveries.give_credit,
            commands.Confirm: self.deliveries.confirm,
        }

    def receive(self, identity: bytes, frames: Sequence[bytes], now: float) -> None:
        clients = self.clients
        clients.now = now
        client = clients.by_identity.get(identity)
        if client is not None:
            client.last_heard = now
            clients.by_identity.move_to_end(identity)
            if client.write_stream is not None and frames:
                subject = self._subjects[frames[0]]
                if subject is not None:  # fast path for SEND, the most frequent command; the state stays the same
                    if client.send_window is not None:
                        client.send_window.sent(sum(map(len, frames)))
                    extension = NO_EXTENSION if client.features else None
                    self._accept(client, client.write_stream, subject, frames[1:], extension)
                    return
        try:
            command = commands.decode(frames)
        except BadFrame:
            command = None
        event = _event(client, command)
        step = TABLE.step(START if client is None else client.state, event)
        if step.action is SessionAction.COUNT_MALFORMED:
            clients.counters.malformed += 1
        elif client is None:
            self._answer_stranger(identity, command, step.action)
        elif step.action is SessionAction.EXECUTE:
            assert command is not None
            self._commands[type(command)](client, command)
        elif step.action is SessionAction.REPLY_FAILED:
            clients.fail(client, b"")
        else:
            clients.reply(client, OK if step.action is SessionAction.REPLY_OK else _INVALID)
        if client is not None and step.state is START:
            self._drop(client, event)

    def _answer_stranger(self, identity: bytes, command: Command | None, action: SessionAction | None) -> None:
        if action is SessionAction.OPEN:
            assert isinstance(command, commands.Open)
            self._open(identity, command)
        elif action is SessionAction.REPLY_OK:
            self.clients.send(identity, OK)
        else:
            self.clients.counters.refused += 1
            self.clients.send(identity, _INVALID)

    def _ping(self, client: ClientSession, command: commands.Ping) -> None:
        query = read(command.trailing).question if command.trailing and Feature.LOG in client.features else b""
        if query:
            self.queries.ask(client, query)
        else:
            self.publishing.ping(client)

    def expire(self, now: float) -> None:
        """Drop silent clients and expired messages; rotate unused credit; send PONGs that are not asked for."""
        self.clients.now = now
        self.clients.send_pongs()
        self.deliveries.rotate(now)
        if self.settings.timeout:
            while (client := self.clients.longest_silent()) is not None:
                if client.last_heard + self.settings.timeout > now:
                    break
                self.clients.counters.expired += 1
                self._drop(client, SessionEvent.EXPIRED)
        self.mailboxes.expire(now)

    def next_expiry(self) -> float | None:
        """Earliest time at which :meth:`expire` has something to do; None if nothing is scheduled."""
        times = [self.mailboxes.next_expiry(), self.deliveries.next_rotation(), self.clients.next_pongs()]
        client = self.clients.longest_silent()
        if self.settings.timeout and client is not None:
            times.append(client.last_heard + self.settings.timeout)
        return min((time for time in times if time is not None), default=None)

    @property
    def has_garbage(self) -> bool:
        return bool(self._discarded)

    def free_some(self) -> None:
        """Free a part of what waited for clients that are gone: to free a full queue at once delays all others."""
        if self._discarded:
            self._discarded[-1].discard(TURN)
            if not len(self._discarded[-1]):
                del self._discarded[-1]

    def _open(self, identity: bytes, command: commands.Open) -> None:
        announced = read(command.trailing).features
        client = self._new_session(identity, command.address, announced)
        older = self.clients.by_address.get(client.address)
        if older is not None:
            self._drop(older, SessionEvent.TAKEN_OVER)
        self.clients.add(client)
        credit = self.publishing.open_window(client)
        trailing = b"" if announced is None else write(Extension(features=client.features, credit=credit))
        self.clients.reply(client, commands.encode(commands.Ok(trailing=trailing)))
        self.clients.events.record("CONNECTED", client)
        self.mailboxes.connected(client)

    def _new_session(self, identity: bytes, address: bytes, announced: Feature | None) -> ClientSession:
        settings, now = self.settings, self.clients.now
        features = (announced or Feature(0)) & settings.features
        return ClientSession(
            identity,
            address,
            features,
            now,
            TABLE.step(START, SessionEvent.OPEN).state,
            plain=announced is None,
            last_pong=now,
            credit=DeliveryCredit(0 if Feature.CREDIT in features else None),
            queue=ByteQueue(settings.queue, None, settings.overflow),
            unconfirmed=ByteQueue(settings.queue, None, Overflow.DROP_OLDEST),
            allocator=CreditAllocator(min(DELIVERY_WINDOW_BYTES, settings.queue)),
        )

    def _drop(self, client: ClientSession, event: SessionEvent) -> None:
        """End the session; only replies that are complete are still sent. Idempotent."""
        if client.state is not CONNECTED:
            return
        clients = self.clients
        client.state = TABLE.step(client.state, event).state
        self.publishing.close_window(client)
        if event is not SessionEvent.CLOSE:
            clients.counters.dropped += 1
        if event in _WITHOUT_CLOSE and (client.written_streams or client.has_sent):
            clients.counters.unclosed += 1
        clients.flush(client)
        clients.remove(client)
        self.mailboxes.services.withdraw(client)
        self.queries.gone(client)
        self.publishing.drop_outcomes(client)
        self.streams.put_silent(client.subscriptions, CancelSubscriptions(client), client)
        for stream in client.subscriptions:
            clients.events.record("UNSUBSCRIBED", client, stream)
        for stream in client.written_streams:
            clients.events.record("STOPPED", client, stream)
        undelivered = [*client.unconfirmed, *(message for _, message in client.queue if message is not None)]
        self._discarded += [q for q in (client.queue, client.lent_deliveries, client.replies) if len(q) > TURN]
        client.queue, client.unconfirmed = ByteQueue(0), ByteQueue(0)
        client.replies, client.lent_deliveries = ByteQueue(0), ByteQueue(0)
        for message in reversed(undelivered):
            self.mailboxes.give_back(message)
        clients.events.record("GONE", client, detail=event.value.encode())

    def opened(self, stream: bytes, stored: bool = False) -> None:
        """TRAFFIC was sent to a new engine, ahead of all other commands; its answer is for no client."""
        self.streams[stream].stored = stored
        self.streams[stream].awaited.appendleft(AwaitedAnswer(BROKER, PendingReply(silent=True)))

    def command_done(
        self, stream: bytes, error: str | None = None, outcomes: tuple[AckRun, ...] = (), position: int | None = None
    ) -> None:
        """Process the answer of an engine to its oldest unanswered TRAFFIC, COMPILE (``position``, or in ``error`` why
        it refused the pattern), CANCEL or SYNC (``outcomes``)."""
        awaited = self.streams.answered(stream)
        client, reply = awaited.client, awaited.reply
        if awaited.cancels and client.connected:
            client.allocator.cancelled(stream)
            self.deliveries.resume(client)
        if reply.frames is not None:
            return  # PING was answered already, because another of its streams was lost
        if reply.syncs:
            self.publishing.synced(client, reply, stream, outcomes)
        elif error is not None:
            reply.frames = self.deliveries.refused(stream, awaited, _bytes(error))
        elif awaited.pattern is not None:
            reply.frames = self.deliveries.accepted(stream, awaited, position)
        else:
            says_stored = reply.for_write and self.streams[stream].stored and Feature.ACKS in client.features
            reply.frames = _OK_STORED if says_stored else OK
        if not reply.silent:
            self.clients.advance(client)

    def credit_returned(self, stream: bytes, client: Hashable, amount: int) -> None:
        if isinstance(client, ClientSession) and client.connected:
            client.allocator.returned(stream, amount)
            self.deliveries.resume(client)

    def stream_lost(self, stream: bytes, reason: str) -> None:
        """The engine failed: waiting clients get ERROR 502, and its subscriptions and writers end."""
        why = _bytes(reason)
        self.clients.events.record_lost_stream(stream, why)
        lost = self.streams.remove(stream)
        for client in self.clients:
            client.subscriptions.pop(stream, None)
            client.written_streams.pop(stream, None)
            client.allocator.remove(stream)
            if client.unsynced_sends.pop(stream, None):
                client.lost_sends = why
            if client.write_stream == stream:
                client.write_stream = None
        if lost is None:
            return
        for client, reply, *_ in lost.awaited:
            reply.frames = error_frames(StatusCode.INTERNAL_ERROR, why)
            reply.syncs = 0
            self.publishing.sends_lost(client, reply.send_bytes)
            self.clients.advance(client)
        self.queries.stream_lost(lost, why)
        for client in list(self.clients):
            self.deliveries.resume(client)

    def stream_ended(self, stream: bytes) -> None:
        """The engine of an idle stream ends; the next command for the stream opens it again."""
        self.streams.remove(stream)
        for client in self.clients:
            if client.written_streams and client.written_streams.pop(stream, b"") is None:
                self.clients.events.record("STOPPED", client, stream)

    def unblock(self, client: ClientSession) -> None:
        """The client's socket accepted all queued frames."""
        client.blocked = False
        self.deliveries.resume(client)
        self.queries.unblocked(client)


def _event(client: ClientSession | None, command: Command | None) -> SessionEvent:
    if command is None:
        return SessionEvent.MALFORMED
    event = EVENTS.get(type(command), SessionEvent.SERVER_ONLY)
    if client is not None:
        if event is SessionEvent.SEND and client.write_stream is None:
            return SessionEvent.SEND_WITHOUT_STREAM
        if event is SessionEvent.CONFIRM and Feature.CONFIRM not in client.features:
            return SessionEvent.CONFIRM_UNANNOUNCED
    return event


def _bytes(reason: str) -> bytes:
    """An engine's text may contain surrogates."""
    return reason.encode("utf-8", "backslashreplace")
