"""State machine of an MLP client, without I/O: takes events and the time, and collects frames to send in ``out``. Pure.

Commands that a broker answers are *calls* with a deadline; answers arrive in order, so calls can be pipelined. After
ERROR 500 (the broker does not know this client: it was restarted, or the client expired), or on a new connection after
silence, the machine restores the stream written to, subscriptions and offers. It gives unused credit again and reads a
stream with sequences from the one after the last delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from mama_spark.contracts.errors import ClientClosed, ConfigError, MamaError, Unavailable

from ..protocol import commands as wire
from ..protocol.commands import BadFrame, Command, StatusCode
from ..protocol.credit import DeliveryCredit, GrantedWindow
from ..protocol.extensions import AckRun, Extension, Feature, read, write
from ..protocol.log_query import LogQuery
from ..protocol.transition_table import IllegalMachineStep
from .calls import Call, CallFailed, LogQueryClient, NoStream, PendingCalls, PendingQuery, Registrations
from .connection_settings import ConnectionSettings
from .states import TABLE, ClientAction, ClientEvent, ClientState, event_of, require_connected

_NEVER = float("inf")


class ClientMachine:
    """State machine of one client. Not thread-safe.

    :ivar out: frames to send, in order
    :ivar received: deliveries and CONFIRMs for the application, in order
    :ivar reset: the connection must be replaced (and ``out`` sent on the new one); the caller then clears this
    :ivar send_window: bytes that may be sent to streams
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        address, features = settings.address.encode("utf-8", "surrogateescape"), settings.features
        self._open = wire.Open(address, b"" if features is None else write(Extension(features=features)))
        self.state = ClientState.START
        self.out: list[Sequence[bytes]] = []
        self.received: list[Command] = []
        self.reset = False
        self.features = Feature(0)  #: of the broker for this client
        self.malformed = 0
        self.reconnects = 0
        self.registered = Registrations()
        self.credit = DeliveryCredit(0)  #: given to the broker and not used
        self.send_window = GrantedWindow()
        self._queries = LogQueryClient()
        self._calls = PendingCalls()
        self._acks: tuple[AckRun, ...] = ()  # received with answers to internal PINGs
        self._connect: Call | None = None
        self._last_heard = 0.0
        self._last_ping = 0.0

    def _step(self, event: ClientEvent, command: Command | None = None) -> None:
        """The state changes nowhere else.

        :raises ClientClosed: the table has no such step
        """
        try:
            step = TABLE.step(self.state, event)
        except IllegalMachineStep:
            raise ClientClosed(f"{event.value} while {self.state.value}") from None
        self.state = step.state
        match step.action:
            case ClientAction.DELIVER:
                self._deliver(command)
            case ClientAction.ANSWER_PING:
                self._answer_ping(command)
            case ClientAction.ANSWER_CALL:
                self._answer_call(command)
            case ClientAction.CONFIRM if command is not None:
                self.received.append(command)
            case ClientAction.COUNT_MALFORMED:
                self.malformed += 1
            case ClientAction.OPEN:
                self.out.append(wire.encode(self._open))
            case ClientAction.RESTORE:
                self._restore(command)
            case ClientAction.REOPEN | ClientAction.RECONNECT:
                self.reset = self.reset or step.action is ClientAction.RECONNECT
                self._reopen()
            case ClientAction.FAIL:
                assert isinstance(command, wire.Error)
                self._end(CallFailed("connecting", command.code, command.reason))
            case ClientAction.END:
                self._end(ClientClosed("closed"))

    # --- calls ---------------------------------------------------------------------------------------------------

    def connect(self, now: float, deadline: float) -> Call:
        """Send OPEN; the call ends with the broker's answer.

        :raises ClientClosed: the client was closed, or has begun to connect before
        """
        self._step(ClientEvent.CONNECT)
        self._last_heard = now
        self._connect = Call(self._open, deadline)
        return self._connect

    def call(self, command: Command, deadline: float) -> Call:
        """Send WRITE, READ, CANCEL, OFFER or PING; if the client is reconnecting, after OPEN. The position of READ goes
        only to a broker that takes it.

        :raises ClientClosed: not connected
        """
        if isinstance(command, wire.StreamRead) and Feature.SEQUENCE not in self.features:
            command = replace(command, trailing=b"")
        call = Call(command, deadline)
        frames = wire.encode(command)
        if self.state not in (ClientState.CONNECTED, ClientState.RECONNECTING):
            raise ClientClosed(f"not connected ({self.state.value})")
        self._calls.add(call)
        if self.state is ClientState.CONNECTED:
            self.out.append(frames)
        return call

    def ping(self, now: float, deadline: float) -> Call:
        """Done when the broker has received all messages sent before; then ``extension.acks`` has acknowledgements."""
        self._last_ping = now
        self.send_window.pinged()
        return self.call(wire.Ping(), deadline)

    def ask(self, query: LogQuery, deadline: float) -> PendingQuery:
        """Send a query about stored streams. While queries are pending, deliveries of streams belong to them: use a
        separate client without subscriptions.

        :raises ConfigError: the broker does not answer queries, or this client has subscribed
        :raises Unavailable: not connected now
        :raises BadFrame: the query does not fit in a frame
        """
        require_connected(self.state)
        if Feature.LOG not in self.features:
            raise ConfigError("NOT_IMPLEMENTED: this broker keeps no log that could be read; mama broker does")
        if self.registered.reads:
            raise ConfigError("a client that subscribes cannot ask about streams, too")
        pending, frames = self._queries.ask(query, deadline)
        self.out.append(frames)
        return pending

    def close(self, deadline: float) -> Call:
        call = Call(wire.Close(), deadline)
        self._step(ClientEvent.CLOSE)
        if self.state is ClientState.TERMINATING:
            self._send_call(call)
        else:
            call.done = True
        return call

    def _send_call(self, call: Call) -> None:
        self.out.append(wire.encode(call.command))
        self._calls.add(call)

    # --- commands without an answer ------------------------------------------------------------------------------

    def send_frames(self, commands: Sequence[Sequence[bytes]], count: int | None = None) -> None:
        """Send encoded STREAM SENDs to the stream of the last WRITE.

        :param count: number of messages, where one is a block of several
            (:mod:`mama_spark.malamute.protocol.message_blocks`), to a broker with this feature
        :raises NoStream: there was no WRITE
        :raises Unavailable: not connected now
        """
        if self.registered.stream is None:
            raise NoStream("send before write")
        require_connected(self.state)
        self.out.extend(commands)
        if self.send_window.left is not None:
            frame_bytes = sum(map(len, chain.from_iterable(commands)))
            self.send_window.sent(frame_bytes, len(commands) if count is None else count)
            self._request_window()

    def _request_window(self) -> None:
        if self.send_window.needs_ping and not self._calls.has_ping:
            self.send_window.pinged()
            self._send_call(Call(wire.Ping(), _NEVER, internal=True))

    def confirm(self, tracker: bytes, code: int = StatusCode.SUCCESS, reason: bytes = b"") -> None:
        """Send CONFIRM for the message with this tracker.

        :raises ConfigError: the broker drops clients that confirm (it is not ours)
        :raises Unavailable: not connected now
        """
        if Feature.CONFIRM not in self.features:
            raise ConfigError("this broker takes no confirmations")
        self.send_message(wire.Confirm(tracker, code, reason))

    def give_credit(self, amount: int) -> None:
        """Allow the broker to deliver ``amount`` messages more, of all kinds together."""
        self.credit.give(amount)
        if self.state is ClientState.CONNECTED:
            self.out += _credit_frames(amount)

    def send_message(self, command: wire.MailboxSend | wire.ServiceSend | wire.Confirm) -> None:
        require_connected(self.state)
        self.out.append(wire.encode(command))

    # --- commands of the broker ----------------------------------------------------------------------------------

    def receive(self, frames: Sequence[bytes], now: float) -> None:
        """Process one received message; malformed ones are counted. Never raises."""
        self._last_heard = now
        if self._queries.pending and not self.registered.reads and self._queries.keep(frames):
            return
        try:
            command = wire.decode(frames)
        except BadFrame:
            self._step(ClientEvent.MALFORMED)
            return
        if isinstance(command, wire.Pong) and (answer := read(command.trailing).answer):
            self._queries.answered(answer)
            return
        self._step(event_of(command), command)

    def _deliver(self, command: Command | None) -> None:
        assert command is not None
        self.credit.use()
        if isinstance(command, wire.StreamDeliver) and command.trailing:
            self.registered.delivered(command.address, read(command.trailing).sequence)
        self.received.append(command)

    def _answer_call(self, command: Command | None) -> None:
        """OK or ERROR answers the oldest call that is no PING."""
        assert isinstance(command, wire.Ok | wire.Error)
        oldest = self._calls.oldest
        call = self._calls.answered(ping=False)
        if call is not None:  # an answer without a call is ignored, as by the C client
            extension = read(command.trailing)
            if isinstance(command, wire.Ok):
                self.registered.accepted(call.command, extension.sequence)
                call.finish(None, extension)
            else:
                what = "a command" if oldest is None else type(oldest.command).__name__
                call.finish(CallFailed(what, command.code, command.reason), extension)
        finished = self.state is ClientState.TERMINATING and not self._calls.has_close
        if finished and isinstance(command, wire.Ok):
            self._step(ClientEvent.FINISHED)

    def _answer_ping(self, command: Command | None) -> None:
        assert isinstance(command, wire.Pong)
        extension = read(command.trailing)
        call = self._calls.answered(ping=True)
        if call is not None:
            acks = self._acks + extension.acks  # those of internal PINGs come first
            self._acks, answer = (acks, extension) if call.internal else ((), replace(extension, acks=acks))
            call.finish(None, answer)
        self.send_window.grow(extension.credit)
        self._request_window()

    # --- connection ----------------------------------------------------------------------------------------------

    def _reopen(self) -> None:
        """Pending PINGs are lost, and with them the acknowledgements of earlier sends; other calls are sent again."""
        self.reconnects += 1
        self._acks = ()
        lost = "the connection was lost before the broker answered"
        self._queries.give_up(Unavailable(lost))
        for call in self._calls.take():
            if call.is_ping:
                call.finish(Unavailable(lost))
            elif not (call.done or call.internal):
                self._calls.add(call)
        self.out.append(wire.encode(self._open))

    def _restore(self, command: Command | None) -> None:
        assert isinstance(command, wire.Ok)
        extension = read(command.trailing)
        self.features = (extension.features or Feature(0)) & (self.settings.features or Feature(0))
        self.send_window.begin(limited=Feature.SENDING in self.features)
        if self._connect is not None:
            self._connect.finish(None, extension)
        if self.credit.left:
            self.out += _credit_frames(self.credit.left)
        waiting = self._calls.take()
        for command in self.registered.commands(Feature.SEQUENCE in self.features):
            self._send_call(Call(command, _NEVER, internal=True))
        for call in waiting:
            self._send_call(call)
        self.send_window.grow(extension.credit)
        self._request_window()

    def tick(self, now: float) -> None:
        """Send PING, detect silence, fail calls whose deadline has passed. Call it at :meth:`next_tick`."""
        connect = self._connect
        if connect is not None and not connect.done and connect.deadline <= now:
            connect.finish(Unavailable("the broker is not reachable"))
            self._step(ClientEvent.UNREACHABLE)
        self._calls.expire(now)
        self._queries.expire(now)
        if self.state is ClientState.TERMINATING and self._calls.all_done:
            self._step(ClientEvent.FINISHED)
        if not TABLE.allows(self.state, ClientEvent.SILENCE):
            return
        if now - self._last_heard >= self.settings.silence:
            self.lost(now)
        elif self.state is ClientState.CONNECTED and now - self._last_ping >= self.settings.ping:
            self._last_ping = now
            self._send_call(Call(wire.Ping(), _NEVER, internal=True))

    def postpone_silence(self, seconds: float, now: float) -> None:
        """Exclude ``seconds`` in which the connection was not read from the broker's silence."""
        self._last_heard = min(now, self._last_heard + seconds)

    def lost(self, now: float) -> None:
        """The connection broke: replace it, as after silence."""
        if TABLE.allows(self.state, ClientEvent.SILENCE):
            self._last_heard = now
            self.out.clear()
            self._step(ClientEvent.SILENCE)

    def next_tick(self) -> float:
        """Time at which :meth:`tick` must be called; infinite if never."""
        if not TABLE.allows(self.state, ClientEvent.SILENCE):
            return _NEVER
        times = [self._last_heard + self.settings.silence, self._queries.next_deadline()]
        times += [call.deadline for call in self._calls if not call.done]
        if self._connect is not None and not self._connect.done:
            times.append(self._connect.deadline)
        if self.state is ClientState.CONNECTED:
            times.append(self._last_ping + self.settings.ping)
        return min(times)

    # --- end -----------------------------------------------------------------------------------------------------

    def _end(self, error: MamaError) -> None:
        self._queries.give_up(error)
        for call in self._calls.take():
            call.finish(error)
        if self._connect is not None:
            self._connect.finish(error)


def _credit_frames(amount: int) -> list[Sequence[bytes]]:
    """Each CREDIT has a number of 16 bits."""
    return [wire.encode(wire.Credit(min(65535, amount - given))) for given in range(0, amount, 65535)]
