"""The world ``discovery``: hosts renew the leases of sources in a registry, and a reader follows its log.

Hosts are killed and stand still, their clocks are set, run at other rates and stand still; the registry is away now and
then. A source is called SUSPECT or OFFLINE only where its host could not renew it, and is back soon after that; one
whose host is dead is OFFLINE when its lease has ended; a reader that begins again sees each event once; in the end
nothing is renewed and all sources are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, Position, SourceKey
from mama_spark.contracts.connection_pool import IDLE
from mama_spark.contracts.errors import Unavailable
from mama_spark.discovery.lease_keeper import Announced, LeaseKeeper, LeaseStore, LeaseWithdrawn, lease_keeper
from mama_spark.discovery.source_expiry import renew_every
from mama_spark.memory.discovery import MemoryDiscovery, MemorySources

from .kernel import Host, Scheduler

if TYPE_CHECKING:
    from .worlds import Shape

_BUSY, _LONGEST = 20.0, 60.0  #: seconds in which faults begin, and that one lasts
_TTLS = (3.0, 10.0, 30.0)
_SLACK = 2.5  #: seconds for an answer, and for a renewal that failed and was late
_GONE = (DiscoveryEventKind.SUSPECT, DiscoveryEventKind.OFFLINE)


class _Registry(MemorySources):
    """Has a clock of its own."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        super().__init__(name)
        self._scheduler = scheduler

    @property
    def now(self) -> float:
        return self._scheduler.now


class _Leases(LeaseStore):
    """Leases of one host in the registry.

    :ivar connected: as it would be
    """

    def __init__(self, registry: _Registry, scheduler: Scheduler) -> None:
        self._registry, self._scheduler, self.connected = registry, scheduler, False

    def _ask(self) -> None:
        self.connected = True
        self._scheduler.sleep(self._scheduler.random.uniform(0.001, 0.05))
        if not self._registry.up:
            raise Unavailable("the registry is away")
        self._registry._expire()

    def stands(self, one: Announced) -> bool:
        self._ask()
        found = self._registry._sources.get(one.source)
        return found is not None and not found.withdrawn and found.record.payload == one.record

    def announce(self, one: Announced) -> None:
        self._ask()
        self._registry._announce(id(self), one.source, one.record, one.ttl)
        self._registry._stop_renewing(id(self))

    def renew(self, one: Announced) -> bool:
        self._ask()
        found = self._registry._sources.get(one.source)
        if found is None or found.withdrawn or found.expiry is not None:
            return False
        found.renewed = self._registry.now
        return True

    def recover(self, one: Announced) -> DiscoveryEventKind | None:
        self._ask()
        found = self._registry._sources[one.source]
        if found.withdrawn:
            raise LeaseWithdrawn
        state = None if found.expiry is None else found.expiry.kind
        self.announce(one)
        return state

    def wait_until_readable(self, source: SourceKey) -> None: ...

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        self._ask()
        self._registry._withdraw(source, record)

    def close(self) -> None:
        self.connected = False


class _Announcer:
    """One host with one source.

    :ivar unwell: when it could not renew: from, to
    :ivar ended: when it was killed, or withdrew its source; None: neither
    """

    def __init__(self, world: _World, number: int) -> None:
        scheduler = world.scheduler
        self.world, self.host = world, scheduler.host(f"host{number}")
        self.source, self.ttl = SourceKey(f"source{number}", number), scheduler.random.choice(_TTLS)
        self.unwell: list[tuple[float, float]] = []
        self.ended: float | None = None
        self.stores: list[_Leases] = []
        self.keeper: LeaseKeeper | None = None
        self.released = False
        self.host.rate = scheduler.random.choice((1.0, 0.9, 1.1))
        scheduler.spawn(self.host.name, self._live, self.host)

    def _store(self) -> LeaseStore:
        self.stores.append(_Leases(self.world.registry, self.world.scheduler))
        return self.stores[-1]

    def _insist(self, work: Callable[[], None]) -> None:
        while True:
            try:
                return work()
            except Unavailable:
                self.world.scheduler.sleep(0.5)

    def _live(self) -> None:
        scheduler = self.world.scheduler
        keeper = self.keeper = lease_keeper("registry", self._store)
        holder, one = object(), Announced(self.source, b"record", self.ttl)
        scheduler.sleep(scheduler.random.uniform(0.0, 5.0))
        self._insist(lambda: keeper.announce(holder, one))
        withdraws = scheduler.random.random() < 0.2
        while not self.world.over:
            scheduler.sleep(1.0)
            if withdraws and scheduler.random.random() < 0.1:
                self.ended = scheduler.now
                self._insist(lambda: keeper.withdraw(self.source, b"record"))
                return
        keeper.release(holder)
        self.released = True

    def violations(self, log: list[DiscoveryEvent]) -> Iterator[str]:
        mine = [event for event in log if event.source == self.source]
        well_after = _SLACK + renew_every(self.ttl) / 0.9
        alive = self.world.over_at if self.ended is None else min(self.ended, self.world.over_at)
        for event, later in zip(mine, [*mine[1:], None], strict=False):
            at = event.at / 1e6
            if event.kind not in _GONE or at > alive:
                continue
            causes = [(begin, end) for begin, end in self.unwell if begin <= at and at <= end + well_after]
            if not causes:
                yield f"{self.source} with a lease of {self.ttl:g} s was called {event.kind.name} at {at:g}"
                continue
            back, well = alive if later is None else later.at / 1e6, at
            for begin, end in sorted(self.unwell):  # one follows the other
                well = max(well, end) if begin <= well + well_after else well
            if well + well_after < back < alive:
                yield f"{self.source} was {event.kind.name} from {at:g} to {back:g}, although its host was well"
        if mine and self.ended is not None and self.host.dead:
            last = mine[-1]
            if last.kind is not DiscoveryEventKind.OFFLINE or last.at / 1e6 > self.ended + self.ttl + _SLACK:
                yield f"{self.source} died at {self.ended:g}, and at {last.at / 1e6:g} it was {last.kind.name}"

    def left(self) -> Iterator[str]:
        if not self.host.dead and self.keeper is not None and (self.keeper.sources or self.keeper._thread):
            yield f"{self.host.name} renews {self.keeper.sources}"
        if not self.host.dead and any(store.connected for store in self.stores):
            yield f"{self.host.name} is connected"


class _World:
    def __init__(self, scheduler: Scheduler, shape: Shape) -> None:
        self.scheduler = scheduler
        self.registry = _Registry(f"registry-{scheduler.seed}", scheduler)
        MemorySources._all[MemorySources, self.registry.name] = self.registry
        self.over, self.over_at = False, 1e9
        self.seen: list[int] = []
        self.offset: Position | None = None
        self.announcers = [_Announcer(self, i) for i in range(max(1, min(4, shape.rows // 5)))]
        self.start_reader()

    # --- the reader ----------------------------------------------------------------------------------------------

    def start_reader(self) -> None:
        host = self.scheduler.host("reader")
        self.scheduler.restart(host)
        self.scheduler.spawn("reader", self._read, host, background=True)

    def _read(self) -> None:
        bridge, random = MemoryDiscovery(self.registry.name), self.scheduler.random
        while True:
            try:
                bridge.open()
                start = self.offset or bridge.initial_offset("earliest")
                end = bridge.latest_offset(start, random.choice((None, 1)))
                self.scheduler.sleep(random.uniform(0.0, 0.5))  # Spark notes the end, and another process reads
                found = [event.sequence or 0 for block in bridge.read(start, end) for event in block]
                self.seen += found
                self.offset = end
            except Unavailable:
                pass
            self.scheduler.sleep(0.5)

    # --- faults --------------------------------------------------------------------------------------------------

    def fault(self) -> None:
        scheduler, random = self.scheduler, self.scheduler.random
        one, lasts = random.choice(self.announcers), random.choice((random.uniform(0, 3), random.uniform(0, _LONGEST)))
        kind, host, end = (
            random.choice(("kill", "freeze", "still", "set", "away", "reader")),
            one.host,
            scheduler.now + lasts,
        )
        scheduler.trace_fault(kind, f"{host.name} for {lasts:g} s")
        if kind == "kill" and one.ended is None:
            scheduler.kill(host)
            one.ended = scheduler.now
        elif kind == "freeze" and not host.frozen and not host.dead:
            one.unwell.append((scheduler.now, end))
            scheduler.freeze(host)
            scheduler.call_at(end, lambda: None if host.dead else scheduler.thaw(host))
        elif kind == "still" and host.rate:
            one.unwell.append((scheduler.now, end))
            self._stand_still(host, end)
        elif kind == "set":
            host.ahead += random.choice((-3600.0, 3600.0))
        elif kind == "away":
            for other in self.announcers:
                other.unwell.append((scheduler.now, end))
            self.registry.up = False
            scheduler.call_at(end, lambda: setattr(self.registry, "up", True))
        elif kind == "reader" and not scheduler.host("reader").dead:
            scheduler.kill(scheduler.host("reader"))
            scheduler.call_at(end, self.start_reader)

    def _stand_still(self, host: Host, end: float) -> None:
        rate, host.rate = host.rate, 0.0
        self.scheduler.call_at(end, lambda: setattr(host, "rate", rate))

    # --- what must be true ---------------------------------------------------------------------------------------

    def story(self) -> None:
        """Until all have been released for long enough, and the reader has seen all."""
        self.scheduler.sleep(_BUSY + _LONGEST + max(_TTLS))
        self.over, self.over_at = True, self.scheduler.now
        self.scheduler.sleep((IDLE + max(_TTLS)) / 0.9 + 10.0)
        self.registry._expire()
        self.scheduler.sleep(len(self.registry._log) + 5.0)

    def check(self) -> Iterator[str]:
        log = self.registry._log
        if self.seen != list(range(1, len(log) + 1)):
            yield f"of {len(log)} events the reader saw {self.seen}"
        for one in self.announcers:
            yield from one.violations(log)
            yield from one.left()
        for source, found in self.registry._sources.items():
            if not found.withdrawn and (found.expiry is None or found.expiry.kind is not DiscoveryEventKind.OFFLINE):
                yield f"{source} is still there: {found}"
        MemorySources.forget(self.registry.name)


def discovery(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """Build it."""
    scheduler.preemption = 0.0  # the registry is shared by hosts, so none may die while it has its lock
    world = _World(scheduler, shape)
    scheduler.spawn("story", world.story, scheduler.host("story"))
    for _ in range(shape.faults):
        scheduler.call_at(scheduler.random.uniform(0, _BUSY), world.fault)
    return world.check
