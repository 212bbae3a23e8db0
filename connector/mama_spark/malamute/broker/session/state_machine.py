"""State machine of an MLP broker for all its clients, without I/O. Pure.

:class:`ServerMachine` takes frames, answers of engines and times, and returns frames to send, commands for the engines
of streams, and events. No input of a client makes it raise. A client is identified by its routing id; a peer without a
session has no state here.

The machine decides by its table (:data:`~.states.TABLE`) and connects its parts, each with its own state:

| part | what it does |
|---|---|
| :mod:`.client_table`, :mod:`.client_session` | the connected clients and their states |
| :mod:`.client_output` | frames to send, replies in order, blocked sockets |
| :mod:`.delivery_scheduler`, :mod:`.engine_credit` | queues of deliveries; credit of clients, lent to engines |
| :mod:`.streams.stream_table`, :mod:`.streams.stream_opener` | the existing streams and which are idle; opening them |
| :mod:`.streams.engine_command_queue` | commands for engines, and their awaited answers |
| :mod:`.streams.engine_answer_handler` | makes replies from answers of engines |
| :mod:`.streams.publish_handler`, :mod:`.streams.publish_windows` | WRITE, SEND; send windows |
| :mod:`.streams.subscription_handler` | READ, CANCEL; deliveries of streams |
| :mod:`.streams.log_query_server`, :mod:`.streams.ping_handler` | queries about stored streams; PING and PONG |
| :mod:`.mailboxes.mailbox_server`, :mod:`.mailboxes.mailbox_receipts` | mailboxes and services; CONFIRM |

Replies to one client keep the order of its commands, even if an engine has to answer first: READ is answered when the
engine has compiled the pattern, PING of a client with acknowledgements when the engines have its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, Command
from mama_spark.malamute.protocol.credit import DELIVERY_WINDOW_OCTETS, CreditAllocator, DeliveryCredit
from mama_spark.malamute.protocol.extensions import NO_EXTENSION, AckRun, Extension, Feature, read, write
from mama_spark.malamute.protocol.log_query import LogQueryAnswer

from ..engines import Delivery
from ..engines.commands import CancelSubscriptions, EngineCommand, SyncOutcomes
from .broker_events import EventRecorder
from .byte_queue import ByteQueue, Overflow
from .client_output import OK, ClientOutput
from .client_session import ClientSession, Frames
from .client_table import ClientTable
from .counters import SessionClock, SessionCounters
from .delivery_scheduler import DeliveryScheduler
from .engine_credit import EngineCredit
from .mailboxes.mailbox_receipts import MailboxReceipts
from .mailboxes.mailbox_server import MailboxServer
from .repeat_limiter import RepeatLimiter
from .settings import SessionSettings
from .states import CONNECTED, EVENTS, START, TABLE, SessionAction, SessionEvent
from .streams.engine_answer_handler import EngineAnswerHandler, encoded
from .streams.engine_command_queue import EngineCommandQueue
from .streams.log_query_server import LogQueryServer, NoReadableStreams, ReadableStreams
from .streams.ping_handler import PingHandler, UnaskedPongs
from .streams.publish_handler import PublishHandler
from .streams.publish_windows import PublishWindows
from .streams.stream_opener import StreamOpener
from .streams.stream_table import StreamTable
from .streams.subscription_handler import SubscriptionHandler

_INVALID = commands.encode(commands.Error())
#: Queued messages of a client that is gone that are freed at a time: a millisecond.
TURN = 1000
#: The client is gone, and what it had not sent yet with it.
_WITHOUT_CLOSE = (SessionEvent.EXPIRED, SessionEvent.TAKEN_OVER)


class ServerMachine:
    """State machine for all clients of one broker. Not thread-safe: one loop drives it.

    :param has_flow_control: whether the engine of a stream delivers only against credit
    :param catalog: the stored streams
    """

    def __init__(
        self,
        settings: SessionSettings | None = None,
        has_flow_control: Callable[[bytes], bool] = lambda stream: False,
        catalog: ReadableStreams | None = None,
    ) -> None:
        self.settings = settings = settings or SessionSettings()
        self.clock = clock = SessionClock()
        self.counters = counters = SessionCounters()
        self.events = events = EventRecorder()
        self.clients = clients = ClientTable()
        self.streams = streams = StreamTable(settings, has_flow_control, clock)
        self.engines = engines = EngineCommandQueue()
        self.output = output = ClientOutput(settings.queue, self._drop)
        self.publish_windows = PublishWindows(settings.backlog)
        self.lender = EngineCredit(engines, clock)
        receipts = MailboxReceipts(output)
        self.deliveries = DeliveryScheduler(output, self.lender, receipts, counters, self._drop)
        repeats = RepeatLimiter(settings.repeats, counters)
        opener = StreamOpener(settings.client_streams, streams, engines, output)
        self.mailboxes = MailboxServer(settings, clients, output, self.deliveries, receipts, repeats, counters)
        self.queries = LogQueryServer(catalog or NoReadableStreams(), streams, engines, output)
        self.publishing = PublishHandler(
            settings, streams, opener, engines, output, repeats, events, counters, self._drop
        )
        self._subjects, self._accept = self.publishing.subjects, self.publishing.accept
        self._subscriptions = SubscriptionHandler(
            settings.patterns, streams, opener, output, self.deliveries, self.lender, repeats, events
        )
        self._pings = PingHandler(output, engines, streams, self.publish_windows, self.queries)
        self._discarded: list[ByteQueue[Any]] = []  # queues of clients that are gone
        self._unasked_pongs = UnaskedPongs(settings.pong_silence, clients, output)
        self._answers = EngineAnswerHandler(
            streams, engines, output, self.deliveries, self._pings, self.publish_windows, events
        )
        self._actions: dict[SessionAction, Callable[[ClientSession, Any, float], None]] = {
            SessionAction.REPLY_OK: self._reply_ok,
            SessionAction.REPLY_INVALID: self._reply_invalid,
            SessionAction.REPLY_FAILED: self.publishing.fail,
            SessionAction.PING: self._pings.ping,
            SessionAction.WRITE: self.publishing.write,
            SessionAction.READ: self._subscriptions.read,
            SessionAction.CANCEL: self._subscriptions.cancel,
            SessionAction.SEND: self.publishing.send,
            SessionAction.MAILBOX_SEND: self.mailboxes.mailbox_send,
            SessionAction.OFFER: self.mailboxes.offer,
            SessionAction.SERVICE_SEND: self.mailboxes.service_send,
            SessionAction.CREDIT: self._give_credit,
            SessionAction.CONFIRM: self.mailboxes.confirm,
        }

    def __repr__(self) -> str:
        return f"<ServerMachine {len(self.clients)} clients, {len(self.streams)} streams>"

    # --- input of clients ----------------------------------------------------------------------------------------

    def receive(self, identity: bytes, frames: Sequence[bytes], now: float) -> None:
        """Process frames from the peer with this routing id."""
        self.clock.now = now
        clients = self.clients.by_identity
        client = clients.get(identity)
        if client is not None:
            client.last_heard = now
            clients.move_to_end(identity)
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
        if client is None:
            self._receive_without_session(identity, command, now)
        else:
            self._receive_from_client(client, command, now)

    def _receive_from_client(self, client: ClientSession, command: Command | None, now: float) -> None:
        event = _event(client, command)
        step = TABLE.step(client.state, event)
        if step.action is SessionAction.COUNT_MALFORMED:
            self.counters.malformed += 1
        elif step.action is not None:
            self._actions[step.action](client, command, now)
        if step.state is START:
            self._drop(client, event)

    def _receive_without_session(self, identity: bytes, command: Command | None, now: float) -> None:
        step = TABLE.step(START, _event(None, command))
        if step.action is SessionAction.OPEN:
            assert isinstance(command, commands.Open)
            self._open(identity, command, now)
        elif step.action is SessionAction.REPLY_OK:
            self.output.send(identity, OK)
        elif step.action is SessionAction.COUNT_MALFORMED:
            self.counters.malformed += 1
        else:
            self.counters.refused += 1
            self.output.send(identity, _INVALID)

    # --- time ----------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Drop silent clients and expired messages; rotate unused credit; send PONGs that are not asked for."""
        self.clock.now = now
        self._unasked_pongs.look(now)
        self.lender.rotate(now)
        if self.settings.timeout:
            while (client := self.clients.longest_silent()) is not None:
                if client.last_heard + self.settings.timeout > now:
                    break
                self.counters.expired += 1
                self._drop(client, SessionEvent.EXPIRED)
        self.mailboxes.expire(now)

    def next_expiry(self) -> float | None:
        """Earliest time at which :meth:`expire` has something to do; None if nothing is scheduled."""
        times = [self.mailboxes.next_expiry(), self.lender.next_rotation(), self._unasked_pongs.next_look()]
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

    # --- connections ---------------------------------------------------------------------------------------------

    def _open(self, identity: bytes, command: commands.Open, now: float) -> None:
        announced = read(command.trailing).features
        client = self._new_session(identity, command.address, announced, now)
        older = self.clients.by_address.get(client.address)
        if older is not None:
            self._drop(older, SessionEvent.TAKEN_OVER)
        self.clients.add(client)
        credit = self.publish_windows.connected(client)
        trailing = b"" if announced is None else write(Extension(features=client.features, credit=credit))
        self.output.reply(client, commands.encode(commands.Ok(trailing=trailing)))
        self.events.record("CONNECTED", client)
        self.mailboxes.connected(client)

    def _new_session(self, identity: bytes, address: bytes, announced: Feature | None, now: float) -> ClientSession:
        settings = self.settings
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
            allocator=CreditAllocator(min(DELIVERY_WINDOW_OCTETS, settings.queue)),
        )

    def _reply_ok(self, client: ClientSession, command: Command, now: float) -> None:
        self.output.reply(client, OK)

    def _reply_invalid(self, client: ClientSession, command: Command, now: float) -> None:
        self.output.reply(client, _INVALID)

    def _give_credit(self, client: ClientSession, command: commands.Credit, now: float) -> None:
        self.deliveries.give_credit(client, command.amount)

    def _drop(self, client: ClientSession, event: SessionEvent) -> None:
        """End the session; only replies that are complete are still sent. Idempotent."""
        if client.state is not CONNECTED:
            return
        client.state = TABLE.step(client.state, event).state
        self.publish_windows.gone(client)
        if event is not SessionEvent.CLOSE:
            self.counters.dropped += 1
        if event in _WITHOUT_CLOSE and (client.written_streams or client.has_sent):
            self.counters.unclosed += 1
        self.output.flush(client)
        self.clients.remove(client)
        self.mailboxes.withdraw_offers(client)
        self.queries.gone(client)
        # makes the engines drop the outcomes for this client
        self.engines.put_silent(client.unsynced_sends, SyncOutcomes(client), client)
        client.unsynced_sends = {}
        self.engines.put_silent(client.subscriptions, CancelSubscriptions(client), client)
        for stream in client.subscriptions:
            self.events.record("UNSUBSCRIBED", client, stream)
        for stream in client.written_streams:
            self.events.record("STOPPED", client, stream)
        undelivered = [*client.unconfirmed, *(message for _, message in client.queue if message is not None)]
        self._discarded += [q for q in (client.queue, client.lent_deliveries, client.replies) if len(q) > TURN]
        client.queue, client.unconfirmed = ByteQueue(0), ByteQueue(0)
        client.replies, client.lent_deliveries = ByteQueue(0), ByteQueue(0)
        self.mailboxes.return_messages(reversed(undelivered))
        self.events.record("GONE", client, detail=event.value.encode())

    # --- input of engines ----------------------------------------------------------------------------------------

    def opened(self, stream: bytes, stored: bool = False) -> None:
        """To be called when TRAFFIC was sent to a new engine, ahead of all other commands.

        :param stored: the engine stores messages
        """
        self._answers.opened(stream, stored)

    def command_done(
        self, stream: bytes, error: str | None = None, outcomes: tuple[AckRun, ...] = (), position: int | None = None
    ) -> None:
        """Process the answer of an engine to its oldest unanswered TRAFFIC, COMPILE, CANCEL or SYNC.

        :param error: why it refused the pattern; None if it did not
        :param outcomes: its answer to SYNC
        :param position: its answer to COMPILE
        """
        self._answers.done(stream, error, outcomes, position)

    def delivered(self, stream: bytes, deliveries: Iterable[Delivery]) -> None:
        """Process deliveries of the engine of a stream (ML-17).

        :raises BadFrame: a delivery does not fit in a command
        """
        self._subscriptions.delivered(stream, deliveries)

    def credit_returned(self, stream: bytes, client: Hashable, amount: int) -> None:
        """Process the engine's answer to RECALL."""
        if isinstance(client, ClientSession) and client.connected:
            self.deliveries.credit_returned(client, stream, amount)

    def query_answered(self, stream: bytes, client: Hashable, answer: LogQueryAnswer, records: list[Frames]) -> None:
        """Process the engine's answer to its oldest query, with the records of a fetch."""
        self.queries.answered(stream, client, answer, records)

    def stream_lost(self, stream: bytes, reason: str) -> None:
        """Process the failure of an engine: waiting clients get ERROR 502, and its subscriptions and writers end."""
        why = encoded(reason)
        self.events.record_lost_stream(stream, why)
        self.streams.remove(stream)
        self._answers.lost(stream, why)
        self.queries.stream_lost(stream, why)
        for client in list(self.clients):
            client.subscriptions.pop(stream, None)
            client.written_streams.pop(stream, None)
            if client.unsynced_sends.pop(stream, None):
                client.lost_sends = why
            if client.write_stream == stream:
                client.write_stream = None
            self.deliveries.stream_lost(client, stream)

    def idle_streams(self, now: float) -> list[bytes]:
        """Streams that may end, because no client has used them for a while and nothing waits for their engines."""
        found = self.streams.idle(self.clients, now)
        return [name for name in found if self.engines.is_idle(name) and not self.queries.asks_about(name)]

    def stream_ended(self, stream: bytes) -> None:
        """To be called when the engine of an idle stream ends; the next command for the stream opens it again."""
        self.streams.remove(stream)
        self.engines.discard(stream)
        self.queries.stream_ended(stream)
        for client in self.clients:
            if client.written_streams and client.written_streams.pop(stream, b"") is None:
                self.events.record("STOPPED", client, stream)

    # --- output --------------------------------------------------------------------------------------------------

    def take_output(self) -> list[tuple[ClientSession | bytes, Frames]]:
        """Take the frames to send, each with its client, or the routing id of a peer without session."""
        return self.output.take()

    def take_commands(self) -> dict[bytes, list[EngineCommand]]:
        """Take the commands for the engine of each stream, in order."""
        return self.engines.take()

    def unblock(self, client: ClientSession) -> None:
        """To be called when the client's socket accepted all queued frames."""
        self.deliveries.unblock(client)
        self.queries.unblocked(client)


def _event(client: ClientSession | None, command: Command | None) -> SessionEvent:
    """The session event of a command; None = frames that are no command."""
    if command is None:
        return SessionEvent.MALFORMED
    event = EVENTS.get(type(command), SessionEvent.SERVER_ONLY)
    if client is not None:
        if event is SessionEvent.SEND and client.write_stream is None:
            return SessionEvent.SEND_WITHOUT_STREAM
        if event is SessionEvent.CONFIRM and Feature.CONFIRM not in client.features:
            return SessionEvent.CONFIRM_UNANNOUNCED
    return event
