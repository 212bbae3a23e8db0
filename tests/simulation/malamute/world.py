"""The world ``malamute``: a broker that stands still, ends and begins again, and clients that come and go.

Rows that a publisher was told are stored are delivered to each reader once, in the order of their stream; nothing is
delivered beyond credit; each letter has one outcome; when all have gone, the broker keeps nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mama_spark.malamute.broker.session.settings import SessionSettings

from ..kernel import Scheduler
from .broker import SimBroker
from .clients import Client, Correspondent, Publisher, Reader, hash_of
from .wires import Lane, Wire

if TYPE_CHECKING:
    from ..worlds import Shape

_BUSY = 8.0  #: seconds in which clients begin something and faults begin
_SETTLED = 120.0  #: seconds after which all is over
_SETTINGS = SessionSettings(stream_idle=3.0, queue=200_000)


class _World:
    def __init__(self, scheduler: Scheduler, shape: Shape) -> None:
        self.scheduler, self.shape = scheduler, shape
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.host = scheduler.host("broker")
        self.violations: list[str] = []
        self.broker = self._broker()
        random = scheduler.random
        rows = max(1, shape.rows // 2)
        self.publishers = [
            Publisher(scheduler, f"p{i}", self.connect, stream, rows) for i, stream in enumerate((b"d1", b"d1", b"s1"))
        ]
        patterns = [[b""], [b"^a$"], [b"^a", b"b"]]
        self.readers = [
            Reader(scheduler, f"r{i}", self.connect, stream, random.choice(patterns))
            for i, stream in enumerate((b"d1", b"d1", b"s1"))
        ]
        names = ["c0", "c1"]
        self.correspondents = [Correspondent(scheduler, name, self.connect, names) for name in names]
        self.clients: list[Client] = [*self.publishers, *self.readers, *self.correspondents]

    def _broker(self) -> SimBroker:
        return SimBroker(self.scheduler, self.host, Path(self.folder.name), _SETTINGS)

    def connect(self, client: Client) -> Wire | None:
        """A connection to the broker, if there is one."""
        broker = self.broker
        if self.host.dead:
            return None
        identity = b"%d" % self.scheduler.unique()
        up = Lane(self.scheduler, self.host, lambda frames: broker.come(identity, frames))
        down = Lane(self.scheduler, client.host, lambda frames: client.come(made, frames))
        made = Wire(identity, up, down, self.scheduler.random.choice((3, 30)), client.lost)
        broker.wires[identity] = made
        return made

    # --- faults --------------------------------------------------------------------------------------------------

    def fault(self) -> None:
        scheduler, random = self.scheduler, self.scheduler.random
        client, lasts = random.choice(self.clients), random.choice((random.uniform(0, 2), random.uniform(0, 16)))
        connected = client.wire
        kinds: tuple[Callable[[], None], ...] = (
            lambda: self._cut(connected),
            lambda: self._hold(connected, lasts),
            lambda: self._stand_still(client, lasts),
            lambda: self._kill(client, lasts),
            lambda: self._broker_stands_still(lasts),
            lambda: self._broker_ends(min(lasts, 5.0)),
        )
        kind = random.choice(kinds)
        scheduler.trace_fault("fault", f"{kinds.index(kind)} of {client.name} for {lasts:.3f} s")
        kind()

    def _cut(self, connected: Wire | None) -> None:
        if connected is not None:
            connected.cut(seen=self.scheduler.random.random() < 0.7)

    def _hold(self, connected: Wire | None, lasts: float) -> None:
        if connected is not None:
            connected.hold()
            self.scheduler.call_at(self.scheduler.now + lasts, connected.release)

    def _stand_still(self, client: Client, lasts: float) -> None:
        if not client.host.dead and not client.host.frozen:
            self.scheduler.freeze(client.host)
            life = client.host.life
            thaw = lambda: None if client.host.life != life else self.scheduler.thaw(client.host)  # noqa: E731
            self.scheduler.call_at(self.scheduler.now + lasts, thaw)

    def _kill(self, client: Client, lasts: float) -> None:
        if not client.host.dead:
            client.die()

            def again() -> None:
                self.scheduler.restart(client.host)
                client.begin()

            self.scheduler.call_at(self.scheduler.now + lasts, again)

    def _broker_stands_still(self, lasts: float) -> None:
        if not self.host.dead and not self.host.frozen:
            self.scheduler.freeze(self.host)
            life = self.host.life
            thaw = lambda: None if self.host.life != life or self.host.dead else self.scheduler.thaw(self.host)  # noqa: E731
            self.scheduler.call_at(self.scheduler.now + lasts, thaw)

    def _broker_ends(self, lasts: float) -> None:
        if not self.host.dead:
            old = self.broker
            self.violations += old.violations
            self.scheduler.kill(self.host)
            old.ended()

            def again() -> None:
                self.scheduler.restart(self.host)
                self.broker = self._broker()

            self.scheduler.call_at(self.scheduler.now + lasts, again)

    # --- the story -----------------------------------------------------------------------------------------------

    def story(self) -> None:
        """Clients are busy, then wait for what is still to come, and go; then the broker is alone."""
        scheduler = self.scheduler
        scheduler.sleep(_BUSY)
        for client in self.clients:
            client.busy = False
        until = scheduler.now + _SETTLED
        while scheduler.now < until and not self._settled():
            scheduler.sleep(0.5)
        self.violations += self._unsettled()
        for client in self.clients:
            if scheduler.random.random() < 0.5:
                scheduler.call_at(scheduler.now, client.close, client.host)
            else:
                scheduler.call_at(scheduler.now, client.die)
        until = scheduler.now + 60.0
        while scheduler.now < until and (left := [*self.broker.left()]):
            scheduler.sleep(0.5)
        self.violations += left

    def _rows(self) -> dict[str, int]:
        return {row: sequence for one in self.publishers if one.stored for row, sequence in one.acked.items()}

    def _wanted(self, reader: Reader) -> dict[int, str]:
        if reader.stream != b"d1":
            return {}
        both = reader.patterns != [b"^a$"]
        return {sequence: row for row, sequence in self._rows().items() if both or hash_of(row)}

    def _settled(self) -> bool:
        quiet = self.scheduler.now > _BUSY + 30.0  # no fault and no letter lasts longer
        return quiet and not [*self._unsettled()]

    def _unsettled(self) -> Iterator[str]:
        yield from (f"{one.name} waits: {one.machine}, {list(one.todo)}" for one in self.publishers if not one.done())
        for reader in self.readers:
            missing = sorted(self._wanted(reader).items() - set(reader.got))
            if missing:
                yield f"{reader.name} has not got {missing}: {reader.machine}, credit {reader.machine.credit}"
        if self.host.life == 0:  # its letters do not outlive a broker
            for one in self.correspondents:
                if one.machine.reconnects == 0 and one.starts == 1:
                    yield from (f"{one.name} does not know of {t!r}" for t, told in one.outcomes.items() if not told)

    def check(self) -> Iterator[str]:
        yield from self.violations
        yield from self.broker.violations
        for client in self.clients:
            yield from client.violations
        for reader in self.readers:
            wrong = [one for one in reader.got if one[0] and self._wanted(reader).get(one[0]) != one[1]]
            if wrong:
                yield f"{reader.name} got {wrong}"
            if reader.stream == b"s1":
                rows = [int(row.rpartition("-")[2]) for _, row in reader.got]
                if rows != sorted(set(rows)):
                    yield f"{reader.name} got {rows}"
        got = {tracker for one in self.correspondents for tracker in one.got}
        for one in self.correspondents:
            yield from (f"{t!r} is confirmed, and nobody got it" for t in one.succeeded() if t not in got)
        self.folder.cleanup()


def malamute(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """Build it."""
    world = _World(scheduler, shape)
    scheduler.spawn("story", world.story, scheduler.host("story"))
    for _ in range(shape.faults):
        scheduler.call_at(scheduler.random.uniform(0, _BUSY), world.fault)
    return world.check
