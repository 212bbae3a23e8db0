"""Runs processes, each a greenlet, one at a time in virtual time. A seed decides all that is left to chance.

A process runs until it waits. Then the event that is due next happens: another process goes on, or a function is
called. Of events that are due at the same time a random one comes first, so each seed explores one interleaving. To
compute takes no time; a process that only reads the clock without ever waiting is given some.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, ClassVar, Self

from greenlet import getcurrent

from .processes import SLACK, Host, Killed, Process, Signal

__all__ = ["Host", "Killed", "Process", "Scheduler", "Signal", "Stuck", "active", "monotonic"]

_READS = 5_000  #: of the clock without a wait, after which a process has used some time
_USED = 0.001
_MOST_EVENTS = 200_000  #: of one run, beyond which it goes round in circles


class Stuck(Exception):
    """A run did not end in its virtual time; the text says who waits for what."""


class Scheduler:
    """One run: as a context manager the one that simulated modules belong to.

    :ivar now: virtual seconds since the beginning
    :ivar random: for all that is left to chance; ``chance``: its next number below 1
    :ivar current: the process that runs; None: whoever builds the world, or an event
    :ivar preemption: how probable it is that another process goes on where one takes a lock
    :ivar errors: with which processes ended that should not
    :ivar foreground: processes that a run waits for; ``limit``: until when
    :ivar on_death: called with each host that is killed: what its system does then
    :ivar network: that sockets of this run belong to
    :ivar lines: the trace
    """

    active: ClassVar[Scheduler | None] = None

    def __init__(self, seed: int, tracing: bool = False) -> None:
        self.seed, self.random, self.tracing = seed, random.Random(seed), tracing
        self.chance = self.random.random
        self.now, self.hub = 0.0, getcurrent()
        self._events: list[tuple[float, float, int, Process | None, Any]] = []
        self._numbers, self._given = itertools.count(), itertools.count(1)
        self._watched: list[tuple[Callable[[], bool], Process, int]] = []
        self.hosts: dict[str, Host] = {}
        self.current: Process | None = None
        self.preemption = 0.02
        self.foreground = self.happened = 0
        self.limit = 0.0
        self.closing = False
        self.errors: list[tuple[str, BaseException]] = []
        self.lines: list[str] = []
        self.processes: list[Process] = []
        self.on_death: list[Callable[[Host], None]] = []
        self.network: Any = None
        self.outside = self.host("outside")

    def __enter__(self) -> Self:
        assert Scheduler.active is None, "one run at a time"
        Scheduler.active = self
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs; what product code does then is part of no run."""
        self.closing = True
        for process in self.processes:
            for _again in range(20):  # that many times it may go on
                if not process:  # it never began, or has ended
                    break
                self.current = process
                process.throw(Killed)
        self._events.clear()
        self.processes.clear()
        self.current = None
        Scheduler.active = None

    # --- the world ---------------------------------------------------------------------------------------------------

    def host(self, name: str) -> Host:
        """The host of this name, which is made when it is asked for first."""
        if name not in self.hosts:
            self.hosts[name] = Host(self, name, len(self.hosts))
        return self.hosts[name]

    @property
    def here(self) -> Host:
        """The host of the process that runs."""
        return self.outside if self.current is None else self.current.host

    def spawn(
        self,
        name: str,
        function: Callable[[], Any],
        host: Host | None = None,
        *,
        background: bool = False,
        expects: tuple[type[BaseException], ...] = (),
    ) -> Process:
        """Start a process, on the host of the caller unless another one is given.

        :param background: the run ends without it
        :param expects: errors with which it may end
        """
        process = Process(self, name, function, host or self.here)
        process.background, process.expected = background, expects
        self.foreground += not background
        self.processes.append(process)
        self.push(self.now, process, 0)
        return process

    def call_at(self, when: float, function: Callable[[], None], host: Host | None = None) -> None:
        """Call a function at a virtual time; with a host when that runs then, and never once it is dead."""
        self.push(when, None, function if host is None else (host, host.life, function))

    def freeze(self, target: Host | Process) -> None:
        """Nothing of it runs until :meth:`thaw`."""
        target.frozen = True
        self.trace_fault("freeze", target.name)

    def thaw(self, target: Host | Process) -> None:
        """It goes on: what was due meanwhile is due now."""
        target.frozen = False
        self.trace_fault("thaw", target.name)
        backlog, target.backlog = target.backlog, []
        for again in backlog:
            again()

    def kill(self, target: Host | Process) -> None:
        """It never runs again, and nothing of it is cleaned up but by the system of a host."""
        self.trace_fault("kill", target.name)
        for process in list(target.processes) if isinstance(target, Host) else [target]:
            if not process.done:
                process.done = True
                process.turn += 1
                process.host.processes.remove(process)
                self.foreground -= not process.background
                process.ended.fire()
        if isinstance(target, Host):
            target.dead = True
            for clean_up in self.on_death:
                clean_up(target)

    def restart(self, host: Host) -> None:
        """A new process of the product may run on a host that was killed; it knows nothing of the one before."""
        host.dead = host.frozen = False
        host.life += 1
        host.globals.clear()
        host.backlog.clear()

    def end(self, process: Process) -> None:
        """It gets :class:`Killed` where it waits, and cleans up."""
        if not process.done:
            process.killed = True
            self.wake(process, process.turn)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def require(self) -> Process:
        """The process that runs; only that can wait."""
        assert self.current is not None, "only a process of a run can wait"
        return self.current

    def sleep(self, seconds: float) -> None:
        """Let so many seconds of the host pass."""
        self.block(max(0.0, seconds), "time")

    def wait(self, ready: Callable[[], bool] | Signal, timeout: float | None = None, what: str = "") -> bool:
        """Wait for a signal, or until a condition is true, which is asked after each event; whether it came about."""
        if isinstance(ready, Signal):
            return ready.wait(timeout, what)
        if ready():
            return True
        process = self.require()
        self._watched.append((ready, process, process.turn + 1))
        return self.block(timeout, what)

    def block(self, timeout: float | None, what: str = "") -> bool:
        """Let others run until the process is woken, or ``timeout`` seconds of its host have passed: whether it was."""
        process = self.require()
        if self.closing:
            raise Killed
        process.turn += 1
        process.woken, process.reads, process.waits_for = False, 0, what
        if timeout is not None:
            host = process.host
            process.deadline = host.was + (self.now - host.at) * host.speed + timeout
            if host.speed:
                self.push(self.now + (timeout / host.speed + SLACK if timeout > 0 else 0.0), process, process.turn)
        self.hub.switch()
        process.deadline = None
        if process.killed:
            process.killed = False
            raise Killed
        return process.woken

    def wake(self, process: Process, turn: int) -> bool:
        """End a wait; False: it is over."""
        if process.done or process.turn != turn or process.woken:
            return False
        process.woken = True
        self.push(self.now, process, turn)
        return True

    # --- running -----------------------------------------------------------------------------------------------------

    def unique(self) -> int:
        """A number that is given once in a run."""
        return next(self._given)

    def push(self, when: float, process: Process | None, what: Any) -> None:
        """Let a process go on with its wait of number ``what``, or call ``what``."""
        heappush(self._events, (when, self.chance(), next(self._numbers), process, what))

    def run(self, within: float = 3600.0, until: Callable[[], bool] | None = None) -> None:
        """Until all processes have ended but those in the background, or ``until`` is true.

        :param within: virtual seconds
        :raises Stuck: they have not within that time, or nothing can happen any more
        """
        events, self.limit = self._events, self.now + within
        while self.foreground > 0 if until is None else not until():
            if not events:
                raise Stuck(f"nothing happens any more at {self.now:.6f}: {self._waits()}")
            when, _, _, process, what = heappop(events)
            if process is not None and (process.done or process.turn != what):
                continue
            self.happened += 1
            if when > self.limit or self.happened > _MOST_EVENTS:
                raise Stuck(f"not within {within:g} s and {self.happened} events: {self._waits()}")
            if when > self.now:
                self.now = when
            if process is None:
                self._call(what)
            else:
                self._go_on(process, what)
            if self._watched:
                self._watched = [one for one in self._watched if not self._seen(*one)]

    def _go_on(self, process: Process, turn: int) -> None:
        host = process.host
        if process.frozen or host.frozen:
            frozen: Host | Process = process if process.frozen else host
            frozen.backlog.append(lambda: self.push(self.now, process, turn))
            return
        if not process.woken and process.deadline is not None and host.monotonic() < process.deadline:
            process.rewind()  # its clock has slowed down since
            return
        self.current = process
        try:
            process.switch()
        finally:
            self.current = None

    def _call(self, what: Any) -> None:
        if not isinstance(what, tuple):
            what()
            return
        host, life, function = what
        if host.dead or host.life != life:
            return
        if host.frozen:
            host.backlog.append(lambda: self.push(self.now, None, what))
        else:
            function()

    def _seen(self, ready: Callable[[], bool], process: Process, turn: int) -> bool:
        if process.done or process.turn != turn:
            return True
        return ready() and self.wake(process, turn)

    def _waits(self) -> str:
        waiting: Iterable[Process] = (p for p in self.processes if not p.done and not p.background)
        return "; ".join(f"{p.name} on {p.host!r} waits for {p.waits_for or 'its turn'}" for p in waiting) or "nobody"

    # --- telling -----------------------------------------------------------------------------------------------------

    def trace(self, text: str, who: str | None = None) -> None:
        """Note what happens; whoever makes a dear text asks :attr:`tracing` first."""
        if self.tracing and not self.closing:
            name = who or ("-" if self.current is None else f"{self.current.host.name}/{self.current.name}")
            self.lines.append(f"{self.now:12.6f} {name:28} {text}")

    def trace_fault(self, kind: str, where: str) -> None:
        """Note a fault."""
        if self.tracing:
            self.trace(f"!! {kind} {where}", "fault")

    @property
    def fingerprint(self) -> tuple[int, float, float]:
        """Equal for equal runs: how many events, until when, and where chance is."""
        return self.happened, self.now, self.random.random()


def active() -> Scheduler:
    """The run that simulated modules belong to."""
    assert Scheduler.active is not None, "no simulation runs"
    return Scheduler.active


def monotonic() -> float:
    """The monotonic clock of the host of the process that runs."""
    scheduler = Scheduler.active
    assert scheduler is not None, "no simulation runs"
    process = scheduler.current
    if process is None:
        return scheduler.outside.monotonic()
    process.reads += 1
    if process.reads > _READS and not scheduler.closing:
        scheduler.block(_USED, "nothing")
    host = process.host
    return host.was + (scheduler.now - host.at) * host.speed  # as Host.monotonic: most calls of a run are these
