"""Hosts with clocks of their own, processes on them, and what processes wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import greenlet

if TYPE_CHECKING:
    from .kernel import Scheduler

SLACK = 1e-6  #: seconds that a timer is late: a wait never ends before the clock of its host says so
EPOCH = 1_800_000_000  #: the time of day when a run begins


class Killed(BaseException):
    """Ends a process where it waits."""


class Host:
    """A machine with a clock of its own, and one process of the product: what is global there is global on a host.

    :ivar was: what its monotonic clock said at ``at``; ``speed``: its seconds a second since then
    :ivar ahead: seconds that its time of day is ahead; what sets the clock changes it
    :ivar life: number of the process of the product on it: each restart begins another one
    :ivar frozen: nothing of it runs, but its clocks go on, and its system takes what comes (SIGSTOP, a long pause)
    :ivar dead: nothing of it runs any more (SIGKILL)
    :ivar globals: by name: what module globals are on this host
    """

    def __init__(self, scheduler: Scheduler, name: str, number: int) -> None:
        self._scheduler, self.name, self.number = scheduler, name, number
        self.speed, self.at, self.was = 1.0, scheduler.now, 1_000.0 * number
        self.ahead, self.life = 0.0, 0
        self.frozen = self.dead = False
        self.globals: dict[str, Any] = {}
        self.processes: list[Process] = []
        self.backlog: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        """Seconds of its clock that nobody sets."""
        return self.was + (self._scheduler.now - self.at) * self.speed

    def boottime(self) -> float:
        """The same, but for a time in which the machine was suspended."""
        return 1_000.0 * self.number + self._scheduler.now

    def time(self) -> float:
        """Seconds since the epoch, as it believes."""
        return EPOCH + self._scheduler.now + self.ahead

    @property
    def rate(self) -> float:
        """Seconds of its monotonic clock a second; 0: the machine is suspended, or its clock stands still."""
        return self.speed

    @rate.setter
    def rate(self, rate: float) -> None:
        self.was, self.at, self.speed = self.monotonic(), self._scheduler.now, rate
        for process in self.processes:
            process.rewind()

    def __repr__(self) -> str:
        state = "dead" if self.dead else "frozen" if self.frozen else "live"
        return f"<Host {self.name} {state}>"


class Process(greenlet):  # type: ignore[misc]
    """A thread of control on one host.

    :ivar turn: number of its wait; what would end an earlier one does not count
    :ivar woken: what it waits for has happened
    :ivar frozen: it does not run, and its host does (a zombie)
    :ivar killed: it gets :class:`Killed`, once, where it waits
    :ivar background: a run ends without it
    :ivar error: with which it ended
    :ivar waits_for: for people
    :ivar number: the same in each run
    :ivar slot: of whoever made it: the thread of the product
    """

    def __init__(self, scheduler: Scheduler, name: str, function: Callable[[], Any], host: Host) -> None:
        super().__init__(parent=scheduler.hub)
        self.scheduler, self.name, self.host, self.function = scheduler, name, host, function
        self.turn = self.reads = 0
        self.woken = self.frozen = self.killed = self.done = self.background = False
        self.error: BaseException | None = None
        self.expected: tuple[type[BaseException], ...] = ()
        self.deadline: float | None = None
        self.waits_for = ""
        self.ended = Signal(scheduler)
        self.backlog: list[Callable[[], None]] = []
        self.slot: Any = None
        self.number = 2 + len(scheduler.processes)
        host.processes.append(self)

    def run(self) -> None:
        scheduler = self.scheduler
        try:
            if not self.killed:
                self.function()
        except Killed:
            pass
        except BaseException as e:  # noqa: BLE001 - whatever it is, the run must tell it
            self.error = e
            if not (isinstance(e, self.expected) or scheduler.closing):
                scheduler.errors.append((self.name, e))
        if self.done or scheduler.closing:
            return
        self.done = True
        self.host.processes.remove(self)
        if scheduler.tracing:
            scheduler.trace("ended" if self.error is None else f"ended by {type(self.error).__name__}: {self.error}")
        self.ended.fire()
        if not self.background:
            scheduler.foreground -= 1

    def rewind(self) -> None:
        """The clock of the host runs otherwise from now on: set the timer of the present wait anew."""
        if self.deadline is not None and self.host.rate:
            left = max(0.0, self.deadline - self.host.monotonic()) / self.host.rate
            self.scheduler.push(self.scheduler.now + left + SLACK, self, self.turn)

    def __repr__(self) -> str:
        return f"<Process {self.name} on {self.host.name}>"


class Signal:
    """Something that processes wait for."""

    __slots__ = ("_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[tuple[Process, int]] = []

    def wait(self, timeout: float | None = None, what: str = "") -> bool:
        """Whether it was fired within ``timeout`` seconds of the host."""
        process = self._scheduler.require()
        self._waiting.append((process, process.turn + 1))
        return self._scheduler.block(timeout, what)

    def fire(self, most: int | None = None) -> None:
        """Wake those that wait, in order, at most so many."""
        waiting = self._waiting
        if not waiting:
            return
        n, woken = 0, 0
        for process, turn in waiting:
            if woken == most:
                break
            n += 1
            woken += self._scheduler.wake(process, turn)
        del waiting[:n]
