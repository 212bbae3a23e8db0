"""One engine in one thread, driven over inproc ZeroMQ sockets (ML-04, ML-05, ML-08).

Two sockets a stream: a PAIR pipe with commands to the engine, and a PUSH of the engine to the one PULL of the server
(ML-16). Frames cost more than all the rest of a message's way, so commands and deliveries travel as **batches of
references**: a list changes hands through a queue in memory, and one frame on the socket says that there is one.
Commands made of strings only (VERBOSE, TRAFFIC, $TERM) are frames as the specification names them.

Everything that an engine says comes in order: each TRAFFIC, COMPILE, CANCEL and SYNC of a batch gets one
:class:`CommandDone`, TRAFFIC, COMPILE and CANCEL after the deliveries of the commands before them. While no command
    waits,
the engine may work by itself (:meth:`~mama_spark.services.malamute_broker.engines.StreamEngine.idle`), as long as the
server keeps up with what it says.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, assert_never

import zmq

from mama_spark.errors import BackgroundTaskFailed, ConfigError, MamaError
from mama_spark.malamute.protocol.extensions import AckRun, Extension
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer
from mama_spark.malamute.protocol.message_blocks import MessageBlock
from mama_spark.malamute.protocol.patterns import BadPattern
from mama_spark.malamute.zmq_fd_poller import readable

from .base import Delivery, StreamEngine, holds
from .commands import (
    AcceptBlock,
    AcceptMessage,
    AnsweredCommand,
    AnswerQuery,
    CancelSubscriptions,
    CompilePattern,
    ConnectTraffic,
    EngineCommand,
    GiveCredit,
    RecallCredit,
    SyncOutcomes,
)
from .registry import engine_class

log = logging.getLogger(__name__)
_BATCH = b""  #: the frame that announces a batch
READY = b"\0"
#: Reports that the server may have to take still when the engine works by itself, and how often it looks (seconds).
AHEAD = 4
LOOK = 0.005


@dataclass(frozen=True, slots=True)
class CommandDone:
    """The engine did one TRAFFIC, COMPILE, CANCEL or SYNC.

    :ivar error: why it refused the pattern
    :ivar runs: what it says to SYNC
    :ivar position: what it says to COMPILE without a position to begin at; of no meaning when answers are compared
    """

    error: str | None = None
    runs: tuple[AckRun, ...] = ()
    position: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine raised; its stream is no more. The last that comes from it."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class CreditReturned:
    """The answer to RECALL: so much of the client's credit was not used, and is not any more."""

    client: Hashable
    amount: int


@dataclass(frozen=True, slots=True)
class QueryAnswered:
    """The answer to the oldest ASK of the client's.

    :ivar records: frames of the STREAM DELIVERs that go before it
    """

    client: Hashable
    answer: LogQueryAnswer
    records: list[list[bytes]]


Report = list[Delivery | CommandDone | CreditReturned | QueryAnswered | EngineFailed]  #: what an engine says, in order


class EngineStream:
    """The server's end of one stream. One thread uses it.

    :param name: of the stream
    :param engine: name of an engine, or its class
    :param start_timeout: seconds until the engine must have started; None = return at once: that it has started is then
        told by the answer to the first TRAFFIC, that it cannot by :class:`EngineFailed`
    :raises ConfigError: no such engine, or wrong settings
    :raises BackgroundTaskFailed: the engine did not start
    :raises zmq.ZMQError: no more sockets or files
    :raises RuntimeError: no more threads
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: bytes,
        engine: str | type[StreamEngine] = "simple",
        settings: Mapping[str, Any] | None = None,
        start_timeout: float | None = 30.0,
    ) -> None:
        cls = engine_class(engine) if isinstance(engine, str) else engine
        self.name = name
        self.stored = cls.stored
        self.batch: list[EngineCommand] = []  #: commands that :meth:`flush` sends
        self._inbox: deque[list[EngineCommand]] = deque()
        self._told = False  # to end
        self.reports: deque[Report] = deque()
        endpoint = f"inproc://mama-stream-{id(self):x}"
        self._pipe = _socket(context, zmq.PAIR)
        self._pipe.bind(endpoint)
        self.error: BaseException | None = None
        try:
            theirs = _socket(context, zmq.PAIR)
        except zmq.ZMQError:
            self._pipe.close(0)
            raise
        theirs.connect(endpoint)
        actor = _Actor(context, theirs, self, cls, settings)
        self._thread = threading.Thread(target=actor.run, name=f"stream-{name.decode('utf-8', 'replace')}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system allows no more threads
            theirs.close(0)
            self._pipe.close(0)
            raise
        if start_timeout is None:
            return
        if not self._pipe.poll(int(start_timeout * 1000)) or self._pipe.recv() != READY:
            error = self.error
            self.destroy()
            if isinstance(error, MamaError):
                raise error
            raise BackgroundTaskFailed(f"engine of stream {name!r} did not start: {error or 'no answer'}") from error

    def __repr__(self) -> str:
        state = "" if self._thread.is_alive() else ", ended"
        return f"<EngineStream {self.name!r}, {len(self._inbox)} batches waiting{state}>"

    # --- the commands of the specification -----------------------------------------------------------------------

    def verbose(self) -> None:
        self._frames(b"VERBOSE")

    def traffic(self, endpoint: str) -> None:
        """Deliver there. Idempotent; answered by :class:`CommandDone` each time."""
        self._frames(b"TRAFFIC", endpoint.encode())

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        self.batch.append(CompilePattern(client, pattern, after))

    def cancel(self, client: Hashable) -> None:
        self.batch.append(CancelSubscriptions(client))

    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
        self.batch.append(AcceptMessage(client, address, subject, content, extension))

    def accept_block(self, client: Hashable, address: bytes, block: MessageBlock) -> None:
        """As many ACCEPTs."""
        self.batch.append(AcceptBlock(client, address, block))

    def credit(self, client: Hashable, amount: int | None) -> None:
        self.batch.append(GiveCredit(client, amount))

    def recall(self, client: Hashable) -> None:
        """Take back what is left of the client's credit; answered by :class:`CreditReturned` at the end of the
        batch."""
        self.batch.append(RecallCredit(client))

    def sync(self, client: Hashable) -> None:
        self.batch.append(SyncOutcomes(client))

    def ask(self, client: Hashable, question: LogQuery) -> None:
        """Answered by :class:`QueryAnswered`, behind what the batch leads to."""
        self.batch.append(AnswerQuery(client, question))

    def flush(self) -> None:
        """Send the commands made so far, as one batch."""
        if self.batch:
            batch, self.batch = self.batch, []
            self.post(batch)

    def post(self, batch: list[EngineCommand]) -> None:
        """Send a batch of commands; the caller gives the list away."""
        self._inbox.append(batch)
        self._send(_BATCH)

    @property
    def batches(self) -> int:
        """Batches that the engine has not begun."""
        return len(self._inbox)

    @property
    def closed(self) -> bool:
        """The thread has ended, and everything is freed."""
        return self._pipe.closed

    def destroy(self, timeout: float = 30.0) -> None:
        """$TERM behind all that was sent; returns when the thread has ended and everything is freed. Idempotent.

        An engine that does not end in that time is told so by an error in the log, and may be waited for again.
        """
        if self._pipe.closed:
            return
        if not self._told:
            self._told = True
            self.flush()
            self._send(b"$TERM")
        self._thread.join(timeout)
        if self._thread.is_alive():  # the pipe stays: $TERM is in it
            log.error("the engine of stream %r does not end", self.name)
        else:
            self._pipe.close(0)

    def _frames(self, *frames: bytes) -> None:
        self.flush()
        self._send(*frames)

    def _send(self, *frames: bytes) -> None:
        with suppress(zmq.Again):  # the engine has ended, and said so in its last report
            if len(frames) == 1:
                self._pipe.send(frames[0], zmq.NOBLOCK)
            else:
                self._pipe.send_multipart(frames, zmq.NOBLOCK)


class DeliverySocket:
    """The one PULL of the server, for all its streams (ML-16, ML-17)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = _socket(context, zmq.PULL)
        self.endpoint = f"inproc://mama-traffic-{id(self):x}"
        self.socket.bind(self.endpoint)
        self.streams: dict[bytes, EngineStream] = {}

    def add(self, stream: EngineStream) -> None:
        """Take the stream's reports from now on; the first of them answers this TRAFFIC."""
        self.streams[stream.name] = stream
        stream.traffic(self.endpoint)

    def remove(self, stream: EngineStream) -> None:
        self.streams.pop(stream.name, None)

    def take(self, timeout: float = 0.0) -> tuple[EngineStream, Report] | None:
        """The next report of any stream; None if there is none within ``timeout`` seconds."""
        while True:
            try:
                stream = self.streams.get(self.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                if timeout <= 0 or not self.socket.poll(int(timeout * 1000)):
                    return None
                continue
            if stream is not None and stream.reports:
                return stream, stream.reports.popleft()

    def close(self) -> None:
        self.socket.close(0)


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """Without high-water marks: what is on these sockets is bounded by who uses them, and counted there in octets."""
    made = context.socket(kind)
    made.set_hwm(0)
    made.linger = 0
    return made


class _Actor:
    """The thread's side."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        pipe: zmq.Socket[bytes],
        stream: EngineStream,
        cls: type[StreamEngine],
        settings: Mapping[str, Any] | None,
    ) -> None:
        self.context = context
        self.pipe = pipe
        self.stream = stream
        self.cls = cls
        self.settings = settings
        self.push: zmq.Socket[bytes] | None = None
        self.report: Report = []
        self.left: dict[Hashable, int] = {}  #: credit of clients of an engine that holds
        self.recalled: list[Hashable] = []
        self.questions: list[tuple[Hashable, LogQuery]] = []
        self.late: list[tuple[int, Callable[[], tuple[AckRun, ...] | None]]] = []  #: places in the report to be filled

    def run(self) -> None:
        pipe = self.pipe
        try:
            engine = self.cls(self.stream.name, self.settings)
            try:
                engine.start()
                pipe.send(READY)
                self._loop(pipe, engine)
            finally:
                engine.close()
        except Exception as e:  # noqa: BLE001 whatever an engine raises ends its stream, and nothing else
            self._die(e)
        finally:
            with suppress(zmq.ZMQError):  # the other end may have given this one up
                pipe.send(b"ended", zmq.NOBLOCK)
                self._say_last(pipe)
            pipe.close(0)

    def _say_last(self, pipe: zmq.Socket[bytes]) -> None:
        self._fill()
        while self.report and self.push is None:  # died before it was told where to say so
            frames = pipe.recv_multipart()
            if frames[0] == b"TRAFFIC" and len(frames) == 2:
                self._connect(frames[1].decode())
            elif frames[0] == b"$TERM":
                return
        if self.push is not None:
            self._ship()
            self.push.close(1000)
            self.push = None

    def _die(self, error: Exception) -> None:
        self.stream.error = error
        if not isinstance(error, ConfigError):
            log.error("engine of stream %r: %s", self.stream.name, error, exc_info=error)
        self.late.clear()
        self.report = [EngineFailed(error)]  # what the unfinished batch said is not true any more

    def _loop(self, pipe: zmq.Socket[bytes], engine: StreamEngine) -> None:
        inbox = self.stream._inbox
        works = self.cls.idle is not StreamEngine.idle  # else there is no need to look whether a command waits
        due: float | None = None
        fresh = False  # something was just said: whoever is woken by it is not to wait for a look at the socket
        while True:
            if due is not None and not (len(inbox) if fresh else readable(pipe, int(due * 1000))):
                due, fresh = engine.idle() if len(self.stream.reports) < AHEAD else LOOK, False
                self._fill()
                self._ship()
                continue
            first = pipe.recv()
            due, fresh = 0.0 if works else None, True
            if first == _BATCH:
                self._run_batch(engine, inbox.popleft())
            elif first == b"$TERM":
                return
            else:
                self._strings(engine, [first, *(pipe.recv_multipart() if pipe.getsockopt(zmq.RCVMORE) else ())])
            self._ship()

    def _strings(self, engine: StreamEngine, frames: list[bytes]) -> None:
        """A command that travels as the specification says."""
        if frames[0] == b"VERBOSE":
            engine.verbose()
        elif frames[0] == b"TRAFFIC" and len(frames) == 2:
            self._traffic(engine, frames[1].decode())
        else:  # and whatever came with it
            log.warning("stream %r: unknown command %r", self.stream.name, frames[0])

    def _traffic(self, engine: StreamEngine, endpoint: str) -> None:
        if engine.logging:
            log.info("stream %r: TRAFFIC", self.stream.name)
        if self.push is None:
            self._connect(endpoint)
            engine.traffic(self.report_lent if holds(self.cls) else self.report_delivery)
        self.report.append(CommandDone())

    def _connect(self, endpoint: str) -> None:
        self.push = _socket(self.context, zmq.PUSH)
        self.push.connect(endpoint)

    def report_delivery(self, delivery: Delivery) -> None:
        self.report.append(delivery)

    def report_lent(self, delivery: Delivery) -> None:
        left = self.left.get(delivery.client)
        if left:
            self.left[delivery.client] = left - 1
        self.report.append(delivery)

    def _run_batch(self, engine: StreamEngine, batch: list[EngineCommand]) -> None:
        accept = engine.accept
        for command in batch:
            if engine.logging:
                log.info("stream %r: %s", self.stream.name, command.NAME)
            if isinstance(command, AcceptMessage):
                accept(command.client, command.address, command.subject, command.content, command.extension)
            elif isinstance(command, AcceptBlock):
                engine.accept_block(command.client, command.address, command.block)
            else:
                self._control(engine, command)
        engine.flush()
        self._fill()
        if self.recalled:  # behind flush, which may deliver
            for client in self.recalled:
                self._recall(engine, client)
            self.recalled.clear()
        if self.questions:
            for client, question in self.questions:
                self.report.append(QueryAnswered(client, *engine.ask(question)))
            self.questions.clear()

    def _fill(self) -> None:
        """Answers to SYNC that are known by now, in order."""
        while self.late:
            place, outcome = self.late[0]
            runs = outcome()
            if runs is None:
                return
            self.report[place] = CommandDone(runs=runs)
            del self.late[0]

    def _recall(self, engine: StreamEngine, client: Hashable) -> None:
        amount = self.left.get(client, 0)
        if amount:
            self.left[client] = 0
            engine.credit(client, -amount)
        place = self.late[0][0] if self.late else len(self.report)  # other streams wait for it, so it waits for nothing
        self.report.insert(place, CreditReturned(client, amount))
        self.late = [(at + 1, outcome) for at, outcome in self.late]

    def _control(
        self,
        engine: StreamEngine,
        command: AnsweredCommand | GiveCredit | RecallCredit | AnswerQuery,
    ) -> None:
        match command:
            case CompilePattern():
                self._compile(engine, command)
            case CancelSubscriptions(client):
                engine.cancel(client)
                self.left.pop(client, None)
                self.report.append(CommandDone())
            case SyncOutcomes(client):
                runs = engine.sync(client)
                if callable(runs):
                    self.late.append((len(self.report), runs))
                    runs = ()
                self.report.append(CommandDone(runs=runs))
            case GiveCredit(client, amount):
                self._credit(engine, client, amount)
            case AnswerQuery(client, query):
                self.questions.append((client, query))
            case RecallCredit(client):
                self.recalled.append(client)
            case ConnectTraffic():  # connected already: the endpoint came as frames
                self.report.append(CommandDone())
            case _:
                assert_never(command)

    def _compile(self, engine: StreamEngine, command: CompilePattern) -> None:
        try:
            engine.compile(command.client, command.pattern, command.after)
        except BadPattern as e:
            self.report.append(CommandDone(str(e)))
        else:
            self.report.append(CommandDone(position=engine.position() if command.after is None else None))

    def _credit(self, engine: StreamEngine, client: Hashable, amount: int | None) -> None:
        if amount is None:
            self.left.pop(client, None)
        elif holds(self.cls):
            self.left[client] = self.left.get(client, 0) + amount
        engine.credit(client, amount)

    def _ship(self) -> None:
        end = self.late[0][0] if self.late else len(self.report)
        if end and self.push is not None:
            report, self.report = self.report[:end], self.report[end:]
            self.late = [(at - end, outcome) for at, outcome in self.late]
            self.stream.reports.append(report)
            self.push.send(self.stream.name)
