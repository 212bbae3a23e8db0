"""The engines of all streams: opens them, sends them commands in batches, and applies their reports."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from mama_spark.contracts.errors import BackgroundTaskFailed, MamaError
from mama_spark.malamute.protocol.commands import BadFrame
from mama_spark.malamute.protocol.credit import send_cost

from .. import freed_memory
from ..engines import Delivery, StreamEngine, engine_class
from ..engines.base import shared_threads
from ..engines.commands import (
    AcceptBlock,
    AcceptMessage,
    CommandDone,
    CreditReturned,
    EngineCommand,
    EngineFailed,
    QueryAnswered,
    Report,
)
from ..engines.engine_threads import EngineHandle, EngineThreads, ReportSocket
from ..session.settings import EngineBacklogPolicy
from ..session.state_machine import ServerMachine
from .engine_selector import EngineSelector

#: Batches that an engine may lag behind before reading stops.
MAX_LAG = 64
#: Batches from which bytes are counted; fewer are bounded by the limits of a round.
COUNTED = 8
#: Seconds per batch up to which reading stops for an engine.
PACE = 0.05


class EngineBacklog:
    """Counts the batches that one engine has not begun, and measures its pace.

    All clients share one ROUTER socket, so the broker can only stop reading all of them. This is right for an engine
    that makes progress: TCP then stops its senders and nothing is lost. It is wrong for a stalled engine, so the broker
    stops reading only while the engine keeps a minimum pace. Messages for a slower engine are queued up to a limit in
    bytes; :class:`~mama_spark.malamute.broker.session.settings.EngineBacklogPolicy` decides about further ones.

    :param limit: bytes at which the backlog is full; it is no longer full at half of that
    """

    __slots__ = ("limit", "queued_bytes", "full", "_sizes", "_since", "_pace")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queued_bytes = 0
        self.full = False
        self._sizes: deque[int] = deque()
        self._since = 0.0  # when the engine last began a batch
        self._pace = 0.0  # seconds per batch, moving average

    def __len__(self) -> int:
        return len(self._sizes)

    def posted(self, batch: Sequence[EngineCommand], now: float) -> None:
        if not self._sizes:
            self._since = now
        size = sum(map(_bytes, batch)) if len(self._sizes) >= COUNTED else 0
        self._sizes.append(size)
        self.queued_bytes += size
        self.full = self.full or self.queued_bytes > self.limit

    def update(self, waiting: int, now: float) -> None:
        """Set the number of batches that the engine has not begun."""
        begun = len(self._sizes) - waiting
        if begun <= 0:
            return
        self._pace += ((now - self._since) / begun - self._pace) * min(1.0, begun / 8)
        self._since = now
        for _ in range(begun):
            self.queued_bytes -= self._sizes.popleft()
        self.full = self.full and self.queued_bytes > self.limit // 2

    def keeps_pace(self, now: float) -> bool:
        """Whether the engine is fast enough to stop reading for it."""
        return self._pace <= PACE and now - self._since <= PACE


def _bytes(command: EngineCommand) -> int:
    if isinstance(command, AcceptBlock):
        contents = command.block.contents
        return send_cost(sum(map(len, contents)), len(contents))
    return send_cost(sum(map(len, command.content)) if isinstance(command, AcceptMessage) else 0, 1)


logger = logging.getLogger(__name__)

#: Seconds.
START_TIMEOUT = 120.0
#: Seconds for which all wait for the end of an idle stream that is opened again: it has nothing to do but close files.
END_WAIT = 1.0
#: Seconds after the end of a stream until memory is returned to the system: a thread of ZeroMQ frees its sockets.
TRIM_DELAY = 1.0


@dataclass(slots=True, eq=False)
class OpenStream:
    """A stream and its engine, which is given up if it has not started at ``start_by`` (None = it has started);
    ``pending`` commands wait for that."""

    handle: EngineHandle
    backlog: EngineBacklog
    start_by: float | None
    pending: list[EngineCommand] = field(default_factory=list)


class StreamEngines:
    """The engines of all streams of a broker, by the monotonic clock ``now``; the socket of ``reports`` is readable
    when an engine has one."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        machine: ServerMachine,
        selector: EngineSelector,
        now: Callable[[], float],
    ) -> None:
        self.streams: dict[bytes, OpenStream] = {}
        self._context = context
        self._machine = machine
        self._selector = selector
        self._now = now
        self.reports = ReportSocket(context)
        self._threads: dict[type[StreamEngine], EngineThreads] = {}  # of engines that share some
        self._starting: dict[bytes, OpenStream] = {}
        self._lagging: dict[bytes, OpenStream] = {}  # streams whose backlog is checked every round
        self._abandoned: list[EngineHandle] = []
        self._freed_at: float | None = None  # when the last stream has ended, until its memory is returned
        self._ending: dict[bytes, EngineHandle] = {}  # idle streams whose engine has not ended

    def send_commands(self) -> None:
        """Send each engine its commands from the machine as one batch; open new streams."""
        while commands := self._machine.streams.take_commands():
            for name, batch in commands.items():
                stream = self.streams.get(name) or self._open(name)
                if stream is None:
                    continue
                if stream.start_by is not None:
                    stream.pending += batch
                else:
                    self._post(stream, batch)

    def _post(self, stream: OpenStream, batch: list[EngineCommand]) -> None:
        backlog, now = stream.backlog, self._now()
        backlog.update(len(stream.handle.inbox), now)
        backlog.posted(batch, now)
        stream.handle.post(batch)
        if len(backlog) >= COUNTED or backlog.full:
            self._lagging[stream.handle.name] = stream

    def must_pause_reading(self, policy: EngineBacklogPolicy) -> bool:
        """Whether to read no client: an engine lags behind, but makes progress. Sets the machine's full streams,
        too."""
        if not self._lagging:
            return False
        now, pause, full = self._now(), False, self._machine.streams.full
        for name, stream in list(self._lagging.items()):
            backlog = stream.backlog
            backlog.update(len(stream.handle.inbox), now)
            wait = policy is EngineBacklogPolicy.HOLD or backlog.keeps_pace(now)
            pause |= wait and (len(backlog) >= MAX_LAG or backlog.full)
            if backlog.full and not wait:
                full.add(name)
            else:
                full.discard(name)
            if len(backlog) < COUNTED and not backlog.full:
                del self._lagging[name]
        return pause

    def _open(self, name: bytes) -> OpenStream | None:
        engine, settings = self._selector.choose(name)
        try:
            self._require_ended(name)
            cls = engine_class(engine)
            handle = EngineHandle(self._context, name, cls, settings, self._threads_of(cls, engine))
        except (MamaError, zmq.ZMQError, RuntimeError) as e:  # also: out of sockets, files or threads
            logger.error("stream %r cannot be opened: %s", name, e)
            self._machine.stream_lost(name, str(e))
            return None
        stream = OpenStream(handle, EngineBacklog(self._machine.settings.backlog), self._now() + START_TIMEOUT)
        self.streams[name] = self._starting[name] = stream
        self.reports.add(handle)
        self._machine.opened(name, handle.stored)
        return stream

    def _threads_of(self, cls: type[StreamEngine], engine: str) -> EngineThreads | None:
        most = shared_threads(cls)
        if not most:
            return None
        found = self._threads.get(cls)
        if found is None:
            found = self._threads[cls] = EngineThreads(self._context, f"{engine}-streams", most)
        return found

    def _require_ended(self, name: bytes) -> None:
        """Wait up to :data:`END_WAIT` seconds for the end of the stream's earlier engine.

        :raises BackgroundTaskFailed: the thread of an abandoned engine runs, and may have the stream's store open
        """
        ending = self._ending.pop(name, None)
        if ending is not None:
            ending.destroy(END_WAIT)
            if not ending.closed:
                self._abandoned.append(ending)
        for stream in self._abandoned:
            if stream.name == name:
                stream.destroy(0.0)
        self._abandoned = [stream for stream in self._abandoned if not stream.closed]
        if any(stream.name == name for stream in self._abandoned):
            raise BackgroundTaskFailed("an engine of the stream that did not start has not ended")

    def _started(self, stream: OpenStream) -> None:
        stream.start_by = None
        pending, stream.pending = stream.pending, []
        if pending:
            self._post(stream, pending)

    def abandon_unstarted(self, now: float) -> None:
        for name, stream in list(self._starting.items()):
            if stream.start_by is not None and stream.start_by <= now:
                logger.error("the engine of stream %r does not start", name)
                self._abandon(stream.handle, "the engine does not start", 0.0)

    def end_idle(self, now: float) -> None:
        """End the engines of idle streams that keep nothing in memory; free those that have ended."""
        for name in self._machine.streams.idle(now):
            stream = self.streams.get(name)
            if stream is None or stream.handle.inbox or stream.start_by is not None:
                continue
            if stream.handle.actor.may_end:
                self._forget(stream.handle)
                self._machine.stream_ended(name)
                self._ending[name] = stream.handle
                stream.handle.end()
        if self._ending:
            for name in [name for name, stream in self._ending.items() if stream.ended]:
                self._ending.pop(name).destroy()
                self._freed_at = now
        if self._freed_at is not None and now - self._freed_at >= TRIM_DELAY:
            self._freed_at = None
            freed_memory.trim()

    def apply_next_report(self) -> int:
        """Pass one report of an engine to the machine; returns the number of things that it reports, 0 = no report."""
        taken = self.reports.take()
        if taken is None:
            return 0
        stream, report = taken
        try:
            self._apply(stream, report)
        except BadFrame as e:
            logger.error("the engine of stream %r delivers what no client can be sent: %s", stream.name, e)
            self._abandon(stream, str(e), 0.5)  # an idle engine ends at once
        return len(report)

    def _apply(self, stream: EngineHandle, report: Report) -> None:
        machine, name = self._machine, stream.name
        if name in self._starting and not isinstance(report[0], EngineFailed):
            self._started(self._starting.pop(name))
        deliveries: list[Delivery] = []
        for one in report:
            if isinstance(one, Delivery):
                deliveries.append(one)
                continue
            if deliveries:
                machine.deliveries.delivered(name, deliveries)
                deliveries = []
            if isinstance(one, CommandDone):
                machine.command_done(name, one.error, one.runs, one.position)
            elif isinstance(one, CreditReturned):
                machine.credit_returned(name, one.client, one.amount)
            elif isinstance(one, QueryAnswered):
                machine.queries.answered(name, one.client, one.answer, one.records)
            elif isinstance(one, EngineFailed):
                self._remove(stream, str(one.error))
                stream.destroy()
        machine.deliveries.delivered(name, deliveries)

    def _abandon(self, stream: EngineHandle, reason: str, timeout: float) -> None:
        """The stream is lost to the machine; its thread keeps running if it does not end in time."""
        self._remove(stream, reason)
        self._abandoned.append(stream)
        stream.destroy(timeout)

    def _remove(self, stream: EngineHandle, reason: str) -> None:
        self._machine.stream_lost(stream.name, reason)
        self._forget(stream)

    def _forget(self, stream: EngineHandle) -> None:
        self.reports.remove(stream)
        for table in (self.streams, self._starting, self._lagging):
            table.pop(stream.name, None)

    def finish(self, deadline: float) -> None:
        """Wait until the engines have executed their commands, and pass their reports to the machine."""
        for stream in self._starting.values():
            stream.handle.post(stream.pending)
        self._starting.clear()
        for stream in self.streams.values():
            stream.handle.destroy(max(0.0, deadline - self._now()))
        while self.apply_next_report():
            pass

    def has_running_engines(self) -> bool:
        return any(not stream.closed for stream in self._all()) or any(one.running for one in self._threads.values())

    def _all(self) -> list[EngineHandle]:
        return [*(one.handle for one in self.streams.values()), *self._ending.values(), *self._abandoned]

    def close(self, timeout: float) -> None:
        for stream in self._all():
            stream.destroy(timeout)
        for threads in self._threads.values():
            threads.close(timeout)
        self.reports.close()
