"""Calls the engine of one stream and collects its reports (ML-05), in the thread that drives it
(:mod:`.engine_threads`).

Each TRAFFIC, COMPILE, CANCEL and SYNC of a batch is answered by one :class:`~.commands.CommandDone`, in order; TRAFFIC,
COMPILE and CANCEL after the deliveries of the commands before them. While no command waits, the engine may do
background work (:meth:`~.base.StreamEngine.idle`), unless too many reports wait for the server.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, assert_never

from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.protocol.credit import DeliveryCredit
from mama_spark.malamute.protocol.extensions import AckRun
from mama_spark.malamute.protocol.log_query import LogQuery
from mama_spark.malamute.protocol.patterns import BadPattern

from .base import Delivery, StreamEngine, holds
from .commands import (
    AcceptBlock,
    AcceptMessage,
    AnsweredCommand,
    AnswerQuery,
    CancelSubscriptions,
    CommandDone,
    CompilePattern,
    ConnectTraffic,
    CreditReturned,
    EngineCommand,
    EngineFailed,
    GiveCredit,
    QueryAnswered,
    RecallCredit,
    Report,
    SyncOutcomes,
)

log = logging.getLogger(__name__)
#: Most deliveries and answers in one report. The server applies reports of all engines in turn: one message for a
#: thousand readers, or a replay, delays other streams by no more than this: two milliseconds.
REPORT = 500
#: Most waiting reports at which the engine does background work, and seconds until they are counted again.
MAX_WAITING_REPORTS = 16
RECHECK = 0.005


class EngineActor:
    """Runs one engine. Its methods are called one after another; an error of :meth:`start`, :meth:`run_batch`,
    :meth:`run_frames` or :meth:`work` must be passed to :meth:`fail`.

    :ivar works: the engine has background work; otherwise it only waits for commands
    :ivar reports: reports that the server has not taken
    :ivar may_end: whether the engine keeps nothing that would be lost at its end, after the last batch
    :ivar endpoint: endpoint of the server's socket for reports, as soon as TRAFFIC has named it
    """

    def __init__(self, name: bytes, cls: type[StreamEngine], settings: Mapping[str, Any] | None) -> None:
        self.works = cls.idle is not StreamEngine.idle
        self.reports: deque[Report] = deque()
        self.error: BaseException | None = None
        self.may_end = False
        self.endpoint: str | None = None
        self._name = name
        self._cls = cls
        self._settings = settings
        self._engine: StreamEngine | None = None
        self._report: Report = []
        self._credits: dict[Hashable, DeliveryCredit] = {}  # of clients, if the engine counts credit
        self._recalled: list[Hashable] = []
        self._queries: list[tuple[Hashable, LogQuery]] = []
        # answers to SYNC that are not known yet: index in the report -> function that returns the answer
        self._unknown: list[tuple[int, Callable[[], tuple[AckRun, ...] | None]]] = []

    @property
    def engine(self) -> StreamEngine:
        assert self._engine is not None, "the engine was not started"
        return self._engine

    def start(self) -> None:
        self._engine = self._cls(self._name, self._settings)
        self._engine.start()

    def work(self) -> float | None:
        """Do a piece of background work; returns seconds until the next one, None = after the next command."""
        engine = self.engine
        due = engine.idle() if len(self.reports) < MAX_WAITING_REPORTS else RECHECK
        self.may_end = engine.may_end()
        self._fill_in()
        return due

    def close(self) -> None:
        """Free what the engine has; its last report is then complete."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        try:
            engine.close()
        except Exception as e:  # noqa: BLE001 as any error of an engine
            if self.error is None:
                self.fail(e)
        else:
            self._fill_in()

    def fail(self, error: BaseException) -> None:
        """End the engine by an error, which is its last report."""
        self.error = error
        if not isinstance(error, ConfigError):
            log.error("engine of stream %r: %s", self._name, error, exc_info=error)
        self._unknown.clear()
        self._report = [EngineFailed(error)]  # reports of the unfinished batch are dropped
        self.close()

    def take_reports(self) -> int:
        """Give the server what can be reported; returns the number of reports to announce at :attr:`endpoint`."""
        end = self._unknown[0][0] if self._unknown else len(self._report)
        if not end or self.endpoint is None:
            return 0
        report, self._report = self._report[:end], self._report[end:]
        self._unknown = [(at - end, outcome) for at, outcome in self._unknown]
        if end <= REPORT:
            self.reports.append(report)
            return 1
        parts = [report[start : start + REPORT] for start in range(0, end, REPORT)]
        self.reports.extend(parts)
        return len(parts)

    def run_frames(self, frames: Sequence[bytes]) -> bool:
        """Execute a command made of strings; False = it was $TERM."""
        name = frames[0]
        if name == b"TRAFFIC" and len(frames) == 2:
            self._traffic(frames[1].decode())
        elif name == b"VERBOSE" and self._engine is not None:
            self._engine.verbose()
        elif name != b"$TERM":
            log.warning("stream %r: unknown command %r", self._name, name)
        return name != b"$TERM"

    def _traffic(self, endpoint: str) -> None:
        engine = self._engine
        if engine is None:  # it has failed, which is its last report
            self.endpoint = endpoint
            return
        if engine.logging:
            log.info("stream %r: TRAFFIC", self._name)
        if self.endpoint is None:
            self.endpoint = endpoint
            engine.traffic(self._report_counted if holds(self._cls) else self._report_delivery)
        self._report.append(CommandDone())

    def _report_delivery(self, delivery: Delivery) -> None:
        self._report.append(delivery)

    def _report_counted(self, delivery: Delivery) -> None:
        credit = self._credits.get(delivery.client)
        if credit is not None:
            credit.use()
        self._report.append(delivery)

    def run_batch(self, batch: list[EngineCommand]) -> None:
        engine = self.engine
        accept = engine.accept
        for command in batch:
            if engine.logging:
                log.info("stream %r: %s", self._name, command.NAME)
            if isinstance(command, AcceptMessage):
                accept(command.client, command.address, command.subject, command.content, command.extension)
            elif isinstance(command, AcceptBlock):
                engine.accept_block(command.client, command.address, command.block)
            else:
                self._control(engine, command)
        engine.flush()
        self._fill_in()
        if self._recalled:  # after flush, which may deliver
            for client in self._recalled:
                self._recall(engine, client)
            self._recalled.clear()
        if self._queries:
            for client, query in self._queries:
                self._report.append(QueryAnswered(client, *engine.ask(query)))
            self._queries.clear()
        self.may_end = engine.may_end()

    def _fill_in(self) -> None:
        while self._unknown:
            at, outcome = self._unknown[0]
            runs = outcome()
            if runs is None:
                return
            self._report[at] = CommandDone(runs=runs)
            del self._unknown[0]

    def _recall(self, engine: StreamEngine, client: Hashable) -> None:
        credit = self._credits.get(client)
        amount = 0 if credit is None else credit.take_back()
        if amount:
            engine.credit(client, -amount)
        # sent before pending answers to SYNC, because other streams wait for the credit
        at = self._unknown[0][0] if self._unknown else len(self._report)
        self._report.insert(at, CreditReturned(client, amount))
        self._unknown = [(index + 1, outcome) for index, outcome in self._unknown]

    def _control(
        self, engine: StreamEngine, command: AnsweredCommand | GiveCredit | RecallCredit | AnswerQuery
    ) -> None:
        match command:
            case CompilePattern():
                self._compile(engine, command)
            case CancelSubscriptions(client):
                engine.cancel(client)
                self._credits.pop(client, None)
                self._report.append(CommandDone())
            case SyncOutcomes(client):
                runs = engine.sync(client)
                if callable(runs):
                    self._unknown.append((len(self._report), runs))
                    runs = ()
                self._report.append(CommandDone(runs=runs))
            case GiveCredit(client, amount):
                self._credit(engine, client, amount)
            case AnswerQuery(client, query):
                self._queries.append((client, query))
            case RecallCredit(client):
                self._recalled.append(client)
            case ConnectTraffic():  # already connected by the frames with the endpoint
                engine.open_for_writing()
                self._report.append(CommandDone())
            case _:
                assert_never(command)

    def _compile(self, engine: StreamEngine, command: CompilePattern) -> None:
        try:
            engine.compile(command.client, command.pattern, command.after)
        except BadPattern as e:
            self._report.append(CommandDone(str(e)))
        else:
            self._report.append(CommandDone(position=engine.position() if command.after is None else None))

    def _credit(self, engine: StreamEngine, client: Hashable, amount: int | None) -> None:
        if amount is None:
            self._credits.pop(client, None)
        elif holds(self._cls):
            self._credits.setdefault(client, DeliveryCredit(0)).give(amount)
        engine.credit(client, amount)
