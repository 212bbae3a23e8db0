"""A broker of the product without sockets and threads: its session machine, its engines, and how clients are written to
are the product's; a round of its loop, and a turn of an engine, are events."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

from mama_spark.malamute.broker.broker.client_router import ClientRouter, SocketCounters
from mama_spark.malamute.broker.broker.engine_pool import StreamEngines
from mama_spark.malamute.broker.broker.engine_selector import EngineSelector
from mama_spark.malamute.broker.configuration import EngineChoice
from mama_spark.malamute.broker.engines import StreamEngine
from mama_spark.malamute.broker.engines.commands import Report
from mama_spark.malamute.broker.engines.engine_threads import EngineHandle, EngineThreads, ReportSocket
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.broker.session.state_machine import ServerMachine

from ..kernel import Host, Scheduler
from .wires import Frames, Wire

_SLOWEST_TURN = 0.01  #: seconds until an engine has its turn, or the broker its round
_RETRY = 0.05  #: seconds until sockets that take no more are tried again
_LOOK = 1.0  #: seconds between two rounds in which nothing happens


class EngineTurns:
    """In the place of :class:`EngineThreads`: each turn of an engine is an event."""

    running = False

    def __init__(self, scheduler: Scheduler, host: Host, reported: Callable[[EngineHandle, int], None]) -> None:
        self._scheduler, self._host, self._reported = scheduler, host, reported

    def drive(self, stream: EngineHandle) -> None:
        self.schedule(stream)

    def schedule(self, stream: EngineHandle, after: float = 0.0) -> None:
        """Give the stream a turn, unless it waits for one that is not later."""
        scheduler = self._scheduler
        due = scheduler.now + after + scheduler.random.uniform(0.0, _SLOWEST_TURN)
        if not stream.ended and (stream.due is None or due < stream.due):
            stream.due = due
            scheduler.call_at(due, lambda: self._turn(stream, due), self._host)

    def _turn(self, stream: EngineHandle, at: float) -> None:
        if stream.due != at:
            return
        stream.due = None
        due = stream.take_turn()
        self._reported(stream, stream.actor.take_reports())
        if stream.over or not stream.started:
            stream.started, stream.ended = True, stream.over
        if stream.inbox:
            self.schedule(stream)
        elif due is not None:
            self.schedule(stream, due)

    def wait(self, condition: Callable[[], bool], timeout: float) -> None:
        """The engines whose end is waited for have nothing else to do."""

    def close(self, timeout: float) -> None:
        """Nothing is left."""


class Reports:
    """In the place of :class:`ReportSocket`."""

    def __init__(self) -> None:
        self.streams: dict[bytes, EngineHandle] = {}
        self._ready: deque[EngineHandle] = deque()

    def add(self, stream: EngineHandle) -> None:
        self.streams[stream.name] = stream
        stream.traffic("reports")

    def remove(self, stream: EngineHandle) -> None:
        self.streams.pop(stream.name, None)

    def announce(self, stream: EngineHandle, reports: int) -> None:
        self._ready.extend([stream] * reports)

    @property
    def has_reports(self) -> bool:
        return bool(self._ready)

    def take(self) -> tuple[EngineHandle, Report] | None:
        while self._ready:
            stream = self._ready.popleft()
            if self.streams.get(stream.name) is stream and stream.actor.reports:
                return stream, stream.actor.reports.popleft()
        return None


class Engines(StreamEngines):
    """All of them have their turns by themselves."""

    def __init__(self, machine: ServerMachine, selector: EngineSelector, scheduler: Scheduler, wake: Any) -> None:
        super().__init__(MagicMock(), machine, selector, lambda: scheduler.now)
        self.announced = Reports()
        self.reports = cast(ReportSocket, self.announced)

        def reported(stream: EngineHandle, reports: int) -> None:
            self.announced.announce(stream, reports)
            wake()

        self.turns = EngineTurns(scheduler, scheduler.host("broker"), reported)

    def _threads_of(self, cls: type[StreamEngine], engine: str) -> EngineThreads:
        return cast(EngineThreads, self.turns)


class Router(ClientRouter):
    """Writes to wires instead of a socket."""

    def __init__(self, machine: ServerMachine, wires: dict[bytes, Wire]) -> None:
        self.machine, self.counters, self._wires = machine, SocketCounters(), wires
        self.blocked, self.retry_interval = {}, 0.001

    def _send(self, identity: bytes, frames: list[bytes]) -> bool:
        wire = self._wires.get(identity)
        if wire is not None and len(wire.down.under_way) >= wire.most and not wire.down.cut:
            return False
        if wire is not None:
            wire.down.send(list(frames))
        return True


class SimBroker:
    """One process of the broker.

    :ivar violations: of what must be true after each round
    """

    def __init__(self, scheduler: Scheduler, host: Host, folder: Path, settings: SessionSettings) -> None:
        self._scheduler, self.host, self.life = scheduler, host, host.life
        selector = EngineSelector([EngineChoice(b"^d", "durable", {"folder": str(folder)})])
        self.machine = ServerMachine(settings, selector)
        self.machine.clients.now = scheduler.now
        self.wires: dict[bytes, Wire] = {}
        self.engines = Engines(self.machine, selector, scheduler, self.wake)
        self.router = Router(self.machine, self.wires)
        self.violations: list[str] = []
        self._inbox: deque[tuple[bytes, Frames]] = deque()
        self._due, self._last_round = math.inf, scheduler.now
        self.wake()

    def come(self, identity: bytes, frames: Frames) -> None:
        """A message of a client has come."""
        self._inbox.append((identity, frames))
        self.wake()

    def wake(self, after: float = 0.0) -> None:
        """Let a round begin soon."""
        scheduler = self._scheduler
        due = scheduler.now + after + scheduler.random.uniform(0.0, _SLOWEST_TURN)
        if due < self._due:
            self._due = due
            scheduler.call_at(due, lambda: self._round(due), self.host)

    def _round(self, due: float) -> None:
        """As :meth:`BrokerLoop.run`."""
        if due != self._due:
            return
        machine, now = self.machine, self._scheduler.now
        self._due, machine.clients.now = math.inf, now
        paused = self.engines.must_pause_reading(machine.settings.behind)
        if paused or now - self._last_round > 1.5 * _LOOK:
            machine.clients.excuse_silence(now - self._last_round)
        self._last_round = now
        while self._inbox and not paused:
            machine.receive(*self._inbox.popleft(), now)
        machine.expire(now)
        self.engines.abandon_unstarted(now)
        self.engines.end_idle(now)
        machine.free_some()
        self.engines.send_commands()
        while self.engines.apply_next_report():
            self.router.send_output()
        self.router.send_output()
        if self.router.blocked:
            self.router.retry_blocked()
            self.router.send_output()
        machine.clients.events.take()
        self.violations += self._after_round()
        most = _RETRY if self.router.blocked else _LOOK
        self.wake(0.0 if self._more() else min(most, max(0.0, (machine.next_expiry() or now + _LOOK) - now)))

    def _more(self) -> bool:
        machine, engines = self.machine, self.engines
        more = machine.streams.commands or machine.clients.outgoing or machine.has_garbage
        return bool(more or self._inbox or engines.announced.has_reports)

    def _after_round(self) -> Iterator[str]:
        for client in self.machine.clients:
            allocator, window = client.allocator, client.send_window
            if (client.credit.left or 0) < 0 or allocator.lent < 0 or min(allocator._shares.values(), default=0) < 0:
                yield f"credit below zero: {client}, {allocator}"
            if window is not None and window.unanswered < 0:
                yield f"more answered than sent: {client}, {window}"
            if client.credit.left is not None and allocator.lent > max(client.credit.left, len(allocator)):
                yield f"more lent than there is: {client}, {allocator}"
        if self.machine.publishing.publishers < 0:
            yield "less than no publisher"

    def ended(self) -> None:
        """What its system does at the end of the process: files are closed, connections break."""
        for stream in [*self.engines.streams.values()]:
            engine = cast(Any, stream.handle.actor._engine)
            if getattr(engine, "_store", None) is not None:
                engine._store.close()
        for handle in self.engines._ending.values():
            handle.actor.close()
        for wire in list(self.wires.values()):
            wire.cut(seen=True)

    def left(self) -> Iterator[str]:
        """What is there although nobody is."""
        machine, engines = self.machine, self.engines
        clients, mail = machine.clients, machine.mailboxes
        tables: dict[str, Sequence[Any] | Any] = {
            "clients": clients, "addresses": clients.by_address, "output": clients.outgoing,
            "streams": machine.streams, "opening": machine.streams.opening, "full": machine.streams.full,
            "commands": machine.streams.commands, "rotating": machine.deliveries.rotating,
            "mailboxes": mail.mailboxes, "queues": mail.mailboxes._queues, "requests": mail.requests,
            "queues of requests": mail.requests._queues, "offers": mail.services._offers,
            "deadlines": mail._deadlines, "engines": engines.streams, "ending": engines._ending,
            "starting": engines._starting, "lagging": engines._lagging, "abandoned": engines._abandoned,
            "blocked": self.router.blocked, "garbage": machine._discarded,
        }  # fmt: skip
        yield from (f"left of {name}: {table}" for name, table in tables.items() if len(table))
        numbers = {"publishers": machine.publishing.publishers, "plain": clients.plain}
        numbers |= {"bytes of mail": mail.mailboxes.size, "bytes of requests": mail.requests.size}
        yield from (f"left of {name}: {number}" for name, number in numbers.items() if number)
