"""The client's side of MLP. Pure: the shell sends what is in ``out``, tells what came and what time it is.

Commands that a broker answers are *calls* with a deadline; they may be made without waiting for each other, since
answers come in order. What was written to, read and offered is remembered, and said again after ERROR 500 (the broker
does not know this client: it was restarted, or the client expired) or on a new connection after silence. Credit that
was given and not used is given again, and a stream with sequences is read on from where it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain

from mama_spark.errors import ClientClosed, ConfigError, MamaError, Unavailable

from ..protocol import commands as wire
from ..protocol.commands import BadFrame, Command, StatusCode
from ..protocol.credit import MESSAGE
from ..protocol.extensions import AckRun, Extension, Feature, read, write
from ..protocol.log_query import LogQuery
from .log_query_client import LogQueryClient, PendingQuery


class ClientState(Enum):
    START = "start"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    TERMINATING = "terminating"
    CLOSED = "closed"
    FAILED = "failed"  #: the broker refused OPEN


class ClientEvent(Enum):
    CONNECT = "connect"
    OK = "OK"
    REFUSED = "ERROR, but not 500"
    INVALID = "ERROR 500"
    PONG = "PONG"
    DELIVERY = "a delivery or CONFIRM"
    OTHER = "a command that only a client sends"
    MALFORMED = "no command"
    SILENCE = "nothing heard for too long"
    CLOSE = "close"


_ANYTHING = (
    ClientEvent.OK,
    ClientEvent.REFUSED,
    ClientEvent.INVALID,
    ClientEvent.PONG,
    ClientEvent.DELIVERY,
    ClientEvent.OTHER,
    ClientEvent.MALFORMED,
)


def _stay(state: ClientState, *but: ClientEvent) -> dict[ClientEvent, ClientState]:
    return {event: state for event in _ANYTHING if event not in but}


TABLE: dict[ClientState, dict[ClientEvent, ClientState]] = {
    ClientState.START: {ClientEvent.CONNECT: ClientState.CONNECTING, ClientEvent.CLOSE: ClientState.CLOSED},
    ClientState.CONNECTING: {
        **_stay(ClientState.CONNECTING),  # ERROR 500 answers what reached the broker before OPEN
        ClientEvent.OK: ClientState.CONNECTED,
        ClientEvent.REFUSED: ClientState.FAILED,
        ClientEvent.SILENCE: ClientState.CONNECTING,
        ClientEvent.CLOSE: ClientState.CLOSED,
    },
    ClientState.CONNECTED: {
        **_stay(ClientState.CONNECTED),
        ClientEvent.INVALID: ClientState.RECONNECTING,
        ClientEvent.SILENCE: ClientState.RECONNECTING,
        ClientEvent.CLOSE: ClientState.TERMINATING,
    },
    ClientState.RECONNECTING: {
        **_stay(ClientState.RECONNECTING),
        ClientEvent.OK: ClientState.CONNECTED,
        ClientEvent.REFUSED: ClientState.FAILED,
        ClientEvent.SILENCE: ClientState.RECONNECTING,
        ClientEvent.CLOSE: ClientState.CLOSED,
    },
    ClientState.TERMINATING: {
        **_stay(ClientState.TERMINATING),
        ClientEvent.INVALID: ClientState.CLOSED,
        ClientEvent.SILENCE: ClientState.CLOSED,
        ClientEvent.CLOSE: ClientState.TERMINATING,
    },
    ClientState.CLOSED: {**_stay(ClientState.CLOSED), ClientEvent.CLOSE: ClientState.CLOSED},
    ClientState.FAILED: {**_stay(ClientState.FAILED), ClientEvent.CLOSE: ClientState.CLOSED},
}


class CallFailed(MamaError):
    """The broker refused; the text is its reason.

    :ivar code: see :class:`~mama_spark.malamute.protocol.commands.StatusCode`
    """

    def __init__(self, what: str, code: int, reason: bytes) -> None:
        text = reason.decode("utf-8", "replace")
        super().__init__(f"{what} was refused with {code}" + (f": {text}" if text else ""))
        self.code = code


class NoStream(ConfigError):
    """Sending to a stream before writing to one."""


@dataclass(slots=True, eq=False)
class Call:
    """Something the broker answers.

    :ivar done: answered, or given up
    :ivar error: why it failed; None if it did not
    :ivar extension: of the answer
    """

    command: Command
    deadline: float
    again: bool = False  #: made by the machine, to say what is remembered
    done: bool = False
    error: MamaError | None = None
    extension: Extension = field(default_factory=Extension)

    def __repr__(self) -> str:
        state = "pending" if not self.done else repr(self.error) if self.error else "done"
        return f"<Call {type(self.command).__name__} {state}>"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Times in seconds; those of the C client."""

    address: bytes = b""
    features: Feature | None = None
    ping: float = 1.0
    silence: float = 4.0


class ClientMachine:
    """One client. Not thread-safe.

    :ivar out: frames to send, in order
    :ivar received: deliveries and CONFIRMs for the application, in order
    :ivar reset: the shell must replace its connection (and send ``out`` on the new one), then clear this
    """

    def __init__(self, settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings()
        self.state = ClientState.START
        self.out: list[Sequence[bytes]] = []
        self.received: list[Command] = []
        self.reset = False
        self.features = Feature(0)  #: what the broker does for us
        self.malformed = 0
        self.reconnects = 0
        self.stream: bytes | None = None
        self.reads: dict[bytes, dict[bytes, int | None]] = {}  #: patterns, and behind which sequence each begins
        self.offers: dict[tuple[bytes, bytes], None] = {}
        self.sequences: dict[bytes, int] = {}  #: stream -> last sequence delivered
        self.credit = 0  #: given and not used
        self._desk = LogQueryClient()
        self.allowance: int | None = (
            None  #: octets that may be sent to streams (:mod:`mama_spark.malamute.protocol.credit`); None = any number
        )
        self._low = 0  # below this, more is asked for
        self._unasked = False  # something was sent that no PING is behind
        self._asked: deque[Call] = deque()  # what the broker owes an answer, in order
        self._acks: tuple[AckRun, ...] = ()  # that came with answers to PINGs of the machine's own
        self._connect: Call | None = None
        self._heard = 0.0
        self._pinged = 0.0

    def __repr__(self) -> str:
        return f"<ClientMachine {self.settings.address!r} {self.state.value}, {len(self._asked)} calls>"

    # --- calls ---------------------------------------------------------------------------------------------------

    def connect(self, now: float, deadline: float) -> Call:
        """:raises ClientClosed: it was closed before"""
        self._step(ClientEvent.CONNECT)
        self._heard = now
        self._connect = Call(self._opening(), deadline)
        self._open()
        return self._connect

    def write(self, stream: bytes, deadline: float) -> Call:
        return self._call(wire.StreamWrite(stream), deadline)

    def read(self, stream: bytes, pattern: bytes, deadline: float, after: int | None = None) -> Call:
        """:param after: replay what has a higher sequence first, where the stream is stored"""
        trailing = write(Extension(after=after)) if Feature.SEQUENCE in self.features else b""
        return self._call(wire.StreamRead(stream, pattern, trailing), deadline)

    def cancel(self, stream: bytes, deadline: float) -> Call:
        return self._call(wire.StreamCancel(stream), deadline)

    def offer(self, service: bytes, pattern: bytes, deadline: float) -> Call:
        return self._call(wire.ServiceOffer(service, pattern), deadline)

    def ping(self, now: float, deadline: float) -> Call:
        """Done when the broker has all that was sent before; ``extension.acks`` if it acknowledges."""
        self._pinged = now
        self._unasked = False
        return self._call(wire.Ping(), deadline)

    def ask(self, question: LogQuery, deadline: float) -> PendingQuery:
        """About stored streams. While questions are open, what comes from streams is theirs: ask on a connection of
        its own, without subscriptions.

        :raises ConfigError: the broker answers none, or this client has subscribed
        :raises Unavailable: not connected now
        :raises BadFrame: the question does not fit
        """
        if self.state is not ClientState.CONNECTED:
            raise Unavailable(f"not connected ({self.state.value})")
        if Feature.LOG not in self.features:
            raise ConfigError("NOT_IMPLEMENTED: this broker keeps no log that could be read; mama broker does")
        if self.reads:
            raise ConfigError("a client that subscribes cannot ask about streams, too")
        asked, frames = self._desk.ask(question, deadline)
        self.out.append(frames)
        return asked

    def close(self, deadline: float) -> Call:
        call = Call(wire.Close(), deadline)
        state = self._step(ClientEvent.CLOSE)
        if state is ClientState.TERMINATING:
            self._ask(call)
        else:
            self._end(ClientClosed("closed"))
            call.done = True
        return call

    def _call(self, command: Command, deadline: float) -> Call:
        call = Call(command, deadline)
        frames = wire.encode(command)
        if self.state in (ClientState.CONNECTED, ClientState.RECONNECTING):
            self._asked.append(call)
            if self.state is ClientState.CONNECTED:
                self.out.append(frames)
            return call
        raise ClientClosed(f"not connected ({self.state.value})")

    def _ask(self, call: Call) -> None:
        self.out.append(wire.encode(call.command))
        self._asked.append(call)

    # --- commands without an answer ------------------------------------------------------------------------------

    def send(self, subject: bytes, content: Sequence[bytes] = (), extension: Extension | None = None) -> None:
        """To the stream that was written to.

        :raises NoStream: there is none
        :raises Unavailable: not connected now
        """
        if self.stream is None:
            raise NoStream("send before write")
        frames = wire.encode(wire.StreamSend(subject, content, write(extension) if extension else b""))
        self._require_connection()
        self._send([frames])

    def send_frames(self, messages: Sequence[Sequence[bytes]]) -> None:
        """STREAM SENDs that the caller has encoded, in bulk; errors as :meth:`send`."""
        if self.stream is None:
            raise NoStream("send before write")
        self._require_connection()
        self._send(messages)

    def send_block(self, frames: Sequence[bytes], count: int) -> None:
        """So many messages as one (:mod:`mama_spark.malamute.protocol.message_blocks`), to a broker that announced it;
        errors as :meth:`send`."""
        if self.stream is None:
            raise NoStream("send before write")
        self._require_connection()
        self._send([frames], count)

    def _send(self, messages: Sequence[Sequence[bytes]], count: int | None = None) -> None:
        self.out.extend(messages)
        if self.allowance is not None:
            count = len(messages) if count is None else count
            self.allowance -= sum(map(len, chain.from_iterable(messages))) + MESSAGE * count
            self._unasked = True
            self._ask_for_more()

    @property
    def may_send(self) -> bool:
        """The broker takes more for streams now."""
        return self.allowance is None or self.allowance > 0

    def _ask_for_more(self) -> None:
        """A PING behind what was sent, when that has used half of what may be sent and none is on its way."""
        low = self.allowance is not None and self.allowance < self._low and self._unasked
        if low and not any(isinstance(call.command, wire.Ping) for call in self._asked):
            self._unasked = False
            self._ask(Call(wire.Ping(), float("inf"), again=True))

    def _allowed(self, credit: int | None) -> None:
        """The broker gave more."""
        if credit is not None and self.allowance is not None:
            self.allowance += credit
            self._low = self.allowance // 2
        self._ask_for_more()

    def mailbox(self, message: wire.MailboxSend) -> None:
        self._say(message)

    def request(self, message: wire.ServiceSend) -> None:
        self._say(message)

    def confirm(self, tracker: bytes, code: int = StatusCode.SUCCESS, reason: bytes = b"") -> None:
        """:raises ConfigError: the broker drops clients that confirm (it is not ours)"""
        if Feature.CONFIRM not in self.features:
            raise ConfigError("this broker takes no confirmations")
        self._say(wire.Confirm(tracker, code, reason))

    def give_credit(self, amount: int) -> None:
        """The broker may deliver this many messages more, of all kinds together."""
        self.credit += amount
        if self.state is ClientState.CONNECTED:
            self._say_credit(amount)

    def _say_credit(self, amount: int) -> None:
        while amount > 0:
            self.out.append(wire.encode(wire.Credit(min(amount, 65535))))
            amount -= 65535

    def _say(self, command: Command) -> None:
        self._require_connection()
        self.out.append(wire.encode(command))

    def _require_connection(self) -> None:
        if self.state is not ClientState.CONNECTED:
            raise Unavailable(f"not connected ({self.state.value})")

    # --- what comes ----------------------------------------------------------------------------------------------

    def receive(self, frames: Sequence[bytes], now: float) -> None:
        """Whatever came, well formed or not; never raises."""
        self._heard = now
        if self._desk.questions and not self.reads and self._desk.keep(frames):
            return
        try:
            command = wire.decode(frames)
        except BadFrame:
            self.malformed += 1
            return
        if isinstance(command, wire.Ok):
            self._ok(command)
        elif isinstance(command, wire.Error):
            self._error(command)
        elif isinstance(command, wire.Pong) and (answer := read(command.trailing).answer):
            self._desk.answered(answer)
        elif isinstance(command, wire.Pong):
            if self.state in (ClientState.CONNECTED, ClientState.TERMINATING):
                self._settle(wire.Ping, None, command.trailing)
                self._allowed(read(command.trailing).credit)
        elif isinstance(command, wire.StreamDeliver | wire.MailboxDeliver | wire.ServiceDeliver):
            self._delivery(command)
        elif isinstance(command, wire.Confirm):
            self.received.append(command)
        else:
            self.malformed += 1

    def _ok(self, command: wire.Ok) -> None:
        if self.state in (ClientState.CONNECTING, ClientState.RECONNECTING):
            self._opened(command)
        elif self.state in (ClientState.CONNECTED, ClientState.TERMINATING):
            self._settle(None, None, command.trailing)
            if self.state is ClientState.TERMINATING and not any(
                isinstance(c.command, wire.Close) for c in self._asked
            ):
                self.state = ClientState.CLOSED
                self._end(ClientClosed("closed"))

    def _error(self, command: wire.Error) -> None:
        before = self.state
        invalid = command.code == StatusCode.COMMAND_INVALID
        state = self._step(ClientEvent.INVALID if invalid else ClientEvent.REFUSED)
        if before is ClientState.CONNECTED and invalid:
            self._reopen()
        elif state is ClientState.FAILED and before is not ClientState.FAILED:
            self._end(CallFailed("connecting", command.code, command.reason))
        elif before in (ClientState.CONNECTED, ClientState.TERMINATING) and not invalid:
            what = type(self._asked[0].command).__name__ if self._asked else "a command"
            self._settle(None, CallFailed(what, command.code, command.reason), command.trailing)
        elif state is ClientState.CLOSED:
            self._end(ClientClosed("closed"))

    def _delivery(self, command: wire.StreamDeliver | wire.MailboxDeliver | wire.ServiceDeliver) -> None:
        if self.state not in (ClientState.CONNECTED, ClientState.TERMINATING):
            return
        self.credit = max(0, self.credit - 1)
        if isinstance(command, wire.StreamDeliver) and command.trailing:
            sequence = read(command.trailing).sequence
            if sequence is not None:
                self.sequences[command.address] = max(sequence, self.sequences.get(command.address, 0))
        self.received.append(command)

    def _settle(self, kind: type[Command] | None, error: MamaError | None, trailing: bytes) -> None:
        """The oldest call that waits for this kind of answer has it.

        A PONG may overtake other answers: a broker whose engine takes its time to start is not dead. Calls in front
        of it that were given up are forgotten, so that an answer that never comes does not shift the later ones.
        """
        index = next(
            (i for i, call in enumerate(self._asked) if isinstance(call.command, wire.Ping) is (kind is wire.Ping)),
            None,
        )
        if index is None:
            return  # unsolicited: the C client ignores it too
        call = self._asked[index]
        if index == 0:
            self._asked.popleft()
        else:
            waiting = [one for i, one in enumerate(self._asked) if i > index or (i < index and not one.done)]
            self._asked = deque(waiting)
        if error is None:
            self._remember(call.command, read(trailing).sequence)
        extension = read(trailing)
        if kind is wire.Ping:  # sends may have been acknowledged to a PING that nobody asked for
            acks = self._acks + extension.acks
            self._acks, extension = (acks, extension) if call.again else ((), replace(extension, acks=acks))
        self._finish(call, error, extension)

    def _finish(self, call: Call, error: MamaError | None, extension: Extension | None = None) -> None:
        if not call.done:
            call.done, call.error = True, error
            call.extension = extension or call.extension

    def _remember(self, command: Command, position: int | None) -> None:
        """:param position: that the answer to READ told: behind it comes what is for this subscription"""
        if isinstance(command, wire.StreamWrite):
            self.stream = command.stream
        elif isinstance(command, wire.StreamRead):
            after = read(command.trailing).after
            self.reads.setdefault(command.stream, {}).setdefault(command.pattern, position if after is None else after)
        elif isinstance(command, wire.StreamCancel):
            self.reads.pop(command.stream, None)
            self.sequences.pop(command.stream, None)
        elif isinstance(command, wire.ServiceOffer):
            self.offers[command.address, command.pattern] = None

    # --- connection ----------------------------------------------------------------------------------------------

    def _opening(self) -> wire.Open:
        features = self.settings.features
        return wire.Open(self.settings.address, b"" if features is None else write(Extension(features=features)))

    def _open(self) -> None:
        self.out.append(wire.encode(self._opening()))

    def _reopen(self) -> None:
        """Pings in flight are lost, and with them the acknowledgement of what was sent; other calls are made again."""
        self.reconnects += 1
        self._acks = ()
        self._desk.give_up(Unavailable("the connection was lost before the broker answered"))
        asked, self._asked = self._asked, deque()
        for call in asked:
            if isinstance(call.command, wire.Ping):
                self._finish(call, Unavailable("the connection was lost before the broker answered"))
            elif not (call.done or call.again):
                self._asked.append(call)
        self._open()

    def _opened(self, command: wire.Ok) -> None:
        self._step(ClientEvent.OK)
        self.features = (read(command.trailing).features or Feature(0)) & (self.settings.features or Feature(0))
        self.allowance, self._low = (0, 0) if Feature.SENDING in self.features else (None, 0)
        if self._connect is not None and not self._connect.done:
            self._finish(self._connect, None, read(command.trailing))
        if self.credit:
            self._say_credit(self.credit)
        waiting, self._asked = self._asked, deque()
        for known in self._remembered():
            self._ask(Call(known, float("inf"), again=True))
        for call in waiting:
            self._ask(call)
        self._unasked = False
        self._allowed(read(command.trailing).credit)

    def _remembered(self) -> list[Command]:
        commands: list[Command] = [] if self.stream is None else [wire.StreamWrite(self.stream)]
        for stream, patterns in self.reads.items():
            delivered = self.sequences.get(stream, 0)
            for pattern, after in patterns.items():
                known = Feature.SEQUENCE in self.features and (delivered or after is not None)
                trailing = write(Extension(after=max(delivered, after or 0))) if known else b""
                commands.append(wire.StreamRead(stream, pattern, trailing))
        return commands + [wire.ServiceOffer(*offer) for offer in self.offers]

    def tick(self, now: float) -> None:
        """PING, notice silence, give up calls whose deadline has passed. Call it at :meth:`next_tick`."""
        connecting = self._connect
        if connecting is not None and not connecting.done and connecting.deadline <= now:
            self._finish(connecting, Unavailable("the broker is not reachable"))
            self._step(ClientEvent.CLOSE)
            self._end(ClientClosed("connecting failed"))
        for call in self._asked:
            if call.deadline <= now:
                self._finish(call, Unavailable("the broker did not answer in time"))
        self._desk.expire(now)
        if self.state is ClientState.TERMINATING and all(call.done for call in self._asked):
            self.state = ClientState.CLOSED
        if self.state in (ClientState.START, ClientState.CLOSED, ClientState.FAILED):
            return
        if now - self._heard >= self.settings.silence:
            self._silence(now)
        elif self.state is ClientState.CONNECTED and now - self._pinged >= self.settings.ping:
            self._pinged = now
            self._ask(Call(wire.Ping(), float("inf"), again=True))

    def forgive(self, seconds: float, now: float) -> None:
        """Nobody listened to the broker for so long, so it was not silent."""
        self._heard = min(now, self._heard + seconds)

    def lost(self, now: float) -> None:
        """The shell knows that the connection broke: as after silence, but at once."""
        if ClientEvent.SILENCE in TABLE[self.state]:
            self._silence(now)

    def _silence(self, now: float) -> None:
        self._heard = now
        state = self._step(ClientEvent.SILENCE)
        self.out.clear()
        if state is ClientState.CLOSED:
            self._end(ClientClosed("closed"))
        else:
            self.reset = True
            self._reopen()

    def next_tick(self) -> float:
        """When :meth:`tick` has something to do at the latest; infinite when it never has."""
        if self.state in (ClientState.START, ClientState.CLOSED, ClientState.FAILED):
            return float("inf")
        times = [self._heard + self.settings.silence, self._desk.next_deadline()]
        times += [call.deadline for call in self._asked if not call.done]
        if self._connect is not None and not self._connect.done:
            times.append(self._connect.deadline)
        if self.state is ClientState.CONNECTED:
            times.append(self._pinged + self.settings.ping)
        return min(times)

    def _step(self, event: ClientEvent) -> ClientState:
        try:
            self.state = TABLE[self.state][event]
        except KeyError:
            raise ClientClosed(f"{event.value} while {self.state.value}") from None
        return self.state

    def _end(self, error: MamaError) -> None:
        """Nobody waits for ever."""
        self._desk.give_up(error)
        for call in self._asked:
            self._finish(call, error)
        self._asked.clear()
        if self._connect is not None:
            self._finish(self._connect, error)
