"""The thread of one engine: takes batches of commands, calls the engine, and sends its reports (ML-04, ML-05, ML-08).

Each TRAFFIC, COMPILE, CANCEL and SYNC of a batch is answered by one :class:`~.reports.CommandDone`, in order; TRAFFIC,
COMPILE and CANCEL after the deliveries of the commands before them. While no command waits, the engine may do
background work (:meth:`~.base.StreamEngine.idle`), unless too many reports wait for the server.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, Protocol, assert_never

import zmq

from mama_spark.errors import ConfigError
from mama_spark.malamute.protocol.credit import DeliveryCredit
from mama_spark.malamute.protocol.extensions import AckRun
from mama_spark.malamute.protocol.log_query import LogQuery
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
from .reports import CommandDone, CreditReturned, EngineFailed, QueryAnswered, Report

log = logging.getLogger(__name__)
BATCH = b""  #: the frame that announces a batch
READY = b"\0"  #: the engine has started
#: Most deliveries and answers in one report. The server applies reports of all engines in turn, so that one message for
#: a thousand readers, or a replay, delays other streams by no more than this: two milliseconds.
REPORT = 500
#: Most waiting reports at which the engine does background work, and seconds until they are counted again.
MAX_WAITING_REPORTS = 16
RECHECK = 0.005


class StreamEnd(Protocol):
    """State shared by the server's end of a stream and the engine's thread.

    :ivar inbox: batches of commands that the engine has not begun
    :ivar reports: reports that the server has not taken
    :ivar error: the error that ended the engine
    :ivar may_end: whether the engine keeps nothing that would be lost at its end, after the last batch
    """

    name: bytes
    inbox: deque[list[EngineCommand]]
    reports: deque[Report]
    error: BaseException | None
    may_end: bool


def inproc_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket without high-water marks: its users limit the queued octets."""
    made = context.socket(kind)
    made.set_hwm(0)
    made.linger = 0
    return made


class EngineThread:
    """Runs one engine."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        pipe: zmq.Socket[bytes],
        stream: StreamEnd,
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
        self.credits: dict[Hashable, DeliveryCredit] = {}  #: of clients, if the engine counts credit
        self.recalled: list[Hashable] = []
        self.queries: list[tuple[Hashable, LogQuery]] = []
        #: answers to SYNC that are not known yet: index in the report -> function that returns the answer
        self.unknown: list[tuple[int, Callable[[], tuple[AckRun, ...] | None]]] = []

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
            self._fail(e)
        finally:
            with suppress(zmq.ZMQError):  # the broker may have abandoned this engine
                pipe.send(b"ended", zmq.NOBLOCK)
                self._send_last_report(pipe)
            pipe.close(0)

    def _send_last_report(self, pipe: zmq.Socket[bytes]) -> None:
        self._fill_in()
        while self.report and self.push is None:  # failed before TRAFFIC
            frames = pipe.recv_multipart()
            if frames[0] == b"TRAFFIC" and len(frames) == 2:
                self._connect(frames[1].decode())
            elif frames[0] == b"$TERM":
                return
        if self.push is not None:
            self._send_report()
            self.push.close(1000)
            self.push = None

    def _fail(self, error: Exception) -> None:
        self.stream.error = error
        if not isinstance(error, ConfigError):
            log.error("engine of stream %r: %s", self.stream.name, error, exc_info=error)
        self.unknown.clear()
        self.report = [EngineFailed(error)]  # reports of the unfinished batch are dropped

    def _loop(self, pipe: zmq.Socket[bytes], engine: StreamEngine) -> None:
        inbox = self.stream.inbox
        works = self.cls.idle is not StreamEngine.idle  # False: it only waits for commands
        due: float | None = None
        fresh = False  # a report was just sent: do not delay its receiver by polling the socket
        while True:
            if due is not None and not (len(inbox) if fresh else readable(pipe, due)):
                due, fresh = engine.idle() if len(self.stream.reports) < MAX_WAITING_REPORTS else RECHECK, False
                self.stream.may_end = engine.may_end()
                self._fill_in()
                self._send_report()
                continue
            first = pipe.recv()
            due, fresh = 0.0 if works else None, True
            if first == BATCH:
                self._run_batch(engine, inbox.popleft())
                self.stream.may_end = engine.may_end()
            elif first == b"$TERM":
                return
            else:
                self._run_frames(engine, [first, *(pipe.recv_multipart() if pipe.getsockopt(zmq.RCVMORE) else ())])
            self._send_report()

    def _run_frames(self, engine: StreamEngine, frames: list[bytes]) -> None:
        """Execute a command made of strings, received as frames."""
        if frames[0] == b"VERBOSE":
            engine.verbose()
        elif frames[0] == b"TRAFFIC" and len(frames) == 2:
            self._traffic(engine, frames[1].decode())
        else:
            log.warning("stream %r: unknown command %r", self.stream.name, frames[0])

    def _traffic(self, engine: StreamEngine, endpoint: str) -> None:
        if engine.logging:
            log.info("stream %r: TRAFFIC", self.stream.name)
        if self.push is None:
            self._connect(endpoint)
            engine.traffic(self.report_counted if holds(self.cls) else self.report_delivery)
        self.report.append(CommandDone())

    def _connect(self, endpoint: str) -> None:
        self.push = inproc_socket(self.context, zmq.PUSH)
        self.push.connect(endpoint)

    def report_delivery(self, delivery: Delivery) -> None:
        self.report.append(delivery)

    def report_counted(self, delivery: Delivery) -> None:
        credit = self.credits.get(delivery.client)
        if credit is not None:
            credit.use()
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
        self._fill_in()
        if self.recalled:  # after flush, which may deliver
            for client in self.recalled:
                self._recall(engine, client)
            self.recalled.clear()
        if self.queries:
            for client, query in self.queries:
                self.report.append(QueryAnswered(client, *engine.ask(query)))
            self.queries.clear()

    def _fill_in(self) -> None:
        """Put the known answers to SYNC into the report, in order."""
        while self.unknown:
            at, outcome = self.unknown[0]
            runs = outcome()
            if runs is None:
                return
            self.report[at] = CommandDone(runs=runs)
            del self.unknown[0]

    def _recall(self, engine: StreamEngine, client: Hashable) -> None:
        credit = self.credits.get(client)
        amount = 0 if credit is None else credit.take_back()
        if amount:
            engine.credit(client, -amount)
        # sent before pending answers to SYNC, because other streams wait for the credit
        at = self.unknown[0][0] if self.unknown else len(self.report)
        self.report.insert(at, CreditReturned(client, amount))
        self.unknown = [(index + 1, outcome) for index, outcome in self.unknown]

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
                self.credits.pop(client, None)
                self.report.append(CommandDone())
            case SyncOutcomes(client):
                runs = engine.sync(client)
                if callable(runs):
                    self.unknown.append((len(self.report), runs))
                    runs = ()
                self.report.append(CommandDone(runs=runs))
            case GiveCredit(client, amount):
                self._credit(engine, client, amount)
            case AnswerQuery(client, query):
                self.queries.append((client, query))
            case RecallCredit(client):
                self.recalled.append(client)
            case ConnectTraffic():  # already connected by the frames with the endpoint
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
            self.credits.pop(client, None)
        elif holds(self.cls):
            self.credits.setdefault(client, DeliveryCredit(0)).give(amount)
        engine.credit(client, amount)

    def _send_report(self) -> None:
        end = self.unknown[0][0] if self.unknown else len(self.report)
        if end and self.push is not None:
            report, self.report = self.report[:end], self.report[end:]
            self.unknown = [(at - end, outcome) for at, outcome in self.unknown]
            for start in range(0, end, REPORT):
                self.stream.reports.append(report if end <= REPORT else report[start : start + REPORT])
                self.push.send(self.stream.name)
