"""Clients of a broker: machines of the product, each with an application that uses it."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator

from mama_spark.malamute.client.calls import Call
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.client.state_machine import ClientMachine
from mama_spark.malamute.client.states import ClientState
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, StatusCode
from mama_spark.malamute.protocol.extensions import Extension, StoreOutcome, read, write

from ..kernel import Scheduler
from .wires import Frames, Wire

_ROUND = 1.0  #: longest time between two rounds of a connection
_AGAIN = 0.1  #: until a connection is tried again
_PATIENCE = 8.0  #: for a call
_OPEN = wire.SIGNATURE + bytes([wire.Open.id])

Connect = Callable[["Client"], Wire | None]


class Client:
    """Does with its machine what the thread of a connection does.

    :ivar busy: its application has something new to do
    :ivar violations: of what must be true at any time
    """

    def __init__(self, scheduler: Scheduler, name: str, connect: Connect) -> None:
        self.scheduler, self.name, self._connect = scheduler, name, connect
        self.host = scheduler.host(name)
        self.busy, self.violations = True, list[str]()
        self.wire: Wire | None = None
        self.starts = 0
        self.begin()

    # --- the connection ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A process of it begins."""
        self.starts += 1
        self.machine = ClientMachine(ConnectionSettings(address=self.name))
        self._reconnects, self._due, self._last_round = 0, math.inf, self.scheduler.now
        self._calls: dict[str, Call] = {}
        self.machine.connect(self.scheduler.now, 1e9)
        self.scheduler.call_at(self.scheduler.now, self._pump, self.host)
        self._later()

    def die(self) -> None:
        """Its process is killed."""
        self.scheduler.kill(self.host)
        self._hang_up()

    def _hang_up(self) -> None:
        if self.wire is not None:
            self.wire.cut(seen=False)
            self.wire = None

    def lost(self, which: Wire) -> None:
        """A connection is seen to be lost."""
        self.scheduler.call_at(self.scheduler.now, lambda: self._lost(which), self.host)

    def _lost(self, which: Wire) -> None:
        if which is self.wire:
            self.wire = None
            if self.machine.state in (ClientState.CONNECTED, ClientState.TERMINATING):
                self.machine.lost(self.scheduler.now)
            self._pump()

    def come(self, which: Wire, frames: Frames) -> None:
        if which is not self.wire:
            return
        machine = self.machine
        credit, before = machine.credit.left, len(machine.received)
        machine.receive(frames, self.scheduler.now)
        if credit == 0 and any(not isinstance(one, wire.Confirm) for one in machine.received[before:]):
            self.violations.append(f"{self.name} was delivered something without credit")
        received, machine.received = machine.received, []
        for command in received:
            self.take(command)
        self._pump()

    def _pump(self) -> None:
        """As a round of :class:`ClientConnection`."""
        machine, now = self.machine, self.scheduler.now
        if now - self._last_round > 1.5 * _ROUND:
            machine.postpone_silence(now - self._last_round, now)
        self._last_round = now
        machine.tick(now)
        if machine.reset:
            machine.reset = False
            self._hang_up()
        if machine.reconnects != self._reconnects:
            self._reconnects = machine.reconnects
            del machine.out[: next((i for i, frames in enumerate(machine.out) if frames[0].startswith(_OPEN)), 0)]
        if self.wire is None and machine.out:
            self.wire = self._connect(self)
        if self.wire is not None:
            out, machine.out = machine.out, []
            for frames in out:
                self.wire.up.send(frames)
        if machine.state not in (ClientState.CLOSED, ClientState.FAILED):
            due = now + _AGAIN if self.wire is None else min(now + _ROUND, max(now + 0.001, machine.next_tick()))
            if due < self._due:
                self._due = due
                self.scheduler.call_at(due, lambda: self._look(due), self.host)

    def _look(self, due: float) -> None:
        if due == self._due:
            self._due = math.inf
            self._pump()

    # --- the application -----------------------------------------------------------------------------------------

    def _later(self) -> None:
        when = self.scheduler.now + self.scheduler.random.uniform(0.02, 0.3)
        self.scheduler.call_at(when, self._step, self.host)

    def _step(self) -> None:
        if self.machine.state is ClientState.CONNECTED:
            self.step()
            self._pump()
        if self.machine.state not in (ClientState.CLOSED, ClientState.FAILED):
            self._later()

    def close(self) -> None:
        """The application ends."""
        self.machine.close(self.scheduler.now + 2.0)
        self._pump()

    def call(self, name: str, command: Command) -> bool:
        """Whether this has been done; asked again it is tried again where it failed."""
        call = self._calls.get(name)
        if call is None or (call.done and call.error is not None):
            self._calls[name] = self.machine.call(command, self.scheduler.now + _PATIENCE)
            return False
        return call.done

    def step(self) -> None:
        """Do something."""

    def take(self, command: Command) -> None:
        """Something was delivered."""

    def done(self) -> bool:
        """Whether it has nothing more to wait for."""
        return True

    def left(self) -> Iterator[str]:
        """What should have happened and did not."""
        yield from ()


class Publisher(Client):
    """Writes rows to a stream, and again what it does not know to be stored.

    :ivar acked: sequences by row; of a stream that is not stored 0
    """

    def __init__(self, scheduler: Scheduler, name: str, connect: Connect, stream: bytes, rows: int) -> None:
        self.stream, self.stored = stream, stream.startswith(b"d")
        self.todo = deque(f"{name}-{row}" for row in range(rows))
        self.acked: dict[str, int] = {}
        self._sent: deque[str] = deque()
        self._on = (0, 0)
        self._ping: Call | None = None
        self._covered = 0
        super().__init__(scheduler, name, connect)

    def step(self) -> None:
        on = (self.starts, self.machine.reconnects)
        if on != self._on:  # the connection is another one
            self._on, self._ping = on, None
            if self.stored:
                self.todo.extendleft(reversed(self._sent))
            self._sent.clear()
        if not self.call("write", wire.StreamWrite(self.stream)):
            return
        random = self.scheduler.random
        for _ in range(random.choice((0, 1, 5))):
            if self.todo and self.machine.send_window.may_send:
                row = self.todo.popleft()
                self._sent.append(row)
                content = [row.encode(), b"x" * random.choice((0, 10, 20_000))]
                extension = write(Extension(message_id=row.encode())) if self.stored else b""
                send = wire.StreamSend(b"a" if hash_of(row) else b"b", content, extension)
                self.machine.send_frames([wire.encode(send)])
        if self._ping is None and self._sent and random.random() < 0.5:
            self._ping = self.machine.ping(self.scheduler.now, self.scheduler.now + _PATIENCE)
            self._covered = len(self._sent)
        elif self._ping is not None and self._ping.done:
            self._acknowledged(self._ping)
            self._ping = None

    def _acknowledged(self, ping: Call) -> None:
        if ping.error is not None:  # nobody will tell what became of these
            self.todo.extendleft(reversed([self._sent.popleft() for _ in range(self._covered)]))
        for run in ping.extension.acks:
            for i in range(run.count):
                row = self._sent.popleft()
                if run.outcome is StoreOutcome.REFUSED or (self.stored and not run.first):
                    self.violations.append(f"{row}: {run}")
                if self.acked.setdefault(row, run.first + i if run.first else 0) != (run.first + i if run.first else 0):
                    self.violations.append(f"{row} is stored at {self.acked[row]} and again at {run.first + i}")

    def done(self) -> bool:
        return not self.todo and (not self.stored or not self._sent)


def hash_of(row: str) -> int:
    """Of which of two subjects it is."""
    return int(row.rpartition("-")[2]) % 2


class Reader(Client):
    """Reads a stream with little credit, remembers how far it is, and stops reading now and then.

    A second pattern is for messages from before the first one was read, too: there is an order for each pattern.

    :ivar got: sequences, and what they are
    """

    def __init__(self, scheduler: Scheduler, name: str, connect: Connect, stream: bytes, patterns: list[bytes]) -> None:
        self.stream, self.patterns = stream, patterns
        self.window = scheduler.random.choice((1, 2, 7, 100))
        self.positions = dict.fromkeys(patterns, 0)
        self.got: list[tuple[int, str]] = []
        self._reads = 0
        super().__init__(scheduler, name, connect)

    def begin(self) -> None:
        self._given = False
        super().begin()

    def step(self) -> None:
        random, stored = self.scheduler.random, self.stream.startswith(b"d")
        cancel = f"cancel {self._reads}"
        if cancel in self._calls or (self.busy and random.random() < 0.03 and self._read(stored)):
            self._reads += self.call(cancel, wire.StreamCancel(self.stream))
        else:
            self._read(stored)
        left = self.machine.credit.left or 0
        if left < self.window and random.random() < 0.7:
            self.machine.give_credit(random.randint(1, self.window - left))

    def _read(self, stored: bool) -> bool:
        reads = []
        for pattern, position in self.positions.items():
            trailing = write(Extension(after=position)) if stored else b""
            reads.append(self.call(f"read {self._reads} {pattern!r}", wire.StreamRead(self.stream, pattern, trailing)))
        return all(reads)

    def take(self, command: Command) -> None:
        if isinstance(command, wire.StreamDeliver):
            sequence = read(command.trailing).sequence or 0
            for pattern in (one for one in self.patterns if command.subject in (one.strip(b"^$") or command.subject)):
                if sequence and sequence <= self.positions[pattern]:
                    self.violations.append(f"{self.name} got {sequence} after {self.positions[pattern]}")
                self.positions[pattern] = sequence
            self.got.append((sequence, command.content[0].decode()))


class Correspondent(Client):
    """Sends mail and requests, offers a service, and confirms some of what it gets.

    :ivar outcomes: what it was told of what it sent, by tracker
    """

    def __init__(self, scheduler: Scheduler, name: str, connect: Connect, others: list[str]) -> None:
        self.others = others
        self.outcomes: dict[bytes, list[int]] = {}
        self.got: Counter[bytes] = Counter()
        self._unconfirmed: list[bytes] = []
        super().__init__(scheduler, name, connect)

    def step(self) -> None:
        self.call("offer", wire.ServiceOffer(b"service", b""))
        random = self.scheduler.random
        if not self.busy:
            while self._unconfirmed:
                self.machine.confirm(self._unconfirmed.pop())
        if (self.machine.credit.left or 0) < 5:
            self.machine.give_credit(random.randint(1, 5))
        if self.busy and random.random() < 0.5:
            tracker = b"%s-%d" % (self.name.encode(), len(self.outcomes))
            self.outcomes[tracker] = []
            timeout = random.choice((500, 5_000))
            if random.random() < 0.5:
                to = random.choice(self.others).encode()
                self.machine.send_message(wire.MailboxSend(to, b"mail", tracker, timeout, (b"x",)))
            else:
                self.machine.send_message(wire.ServiceSend(b"service", b"ask", tracker, timeout, (b"x",)))

    def take(self, command: Command) -> None:
        if isinstance(command, wire.MailboxDeliver | wire.ServiceDeliver):
            self.got[command.tracker] += 1
            if self.machine.state is ClientState.CONNECTED and self.scheduler.random.random() < 0.8:
                self.machine.confirm(command.tracker)
            else:
                self._unconfirmed.append(command.tracker)
        elif isinstance(command, wire.Confirm):
            told = self.outcomes[command.tracker]
            told.append(command.code)
            if len(told) > 1:
                self.violations.append(f"{self.name} was told {told} of {command.tracker!r}")

    def succeeded(self) -> Iterator[bytes]:
        """What others have confirmed."""
        return (tracker for tracker, told in self.outcomes.items() if StatusCode.SUCCESS in told)
