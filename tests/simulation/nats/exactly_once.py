"""The world ``exactly-once``: one server, one batch, any attempts at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mama_spark.contracts.batch_ledger import SETTLE
from mama_spark.nats.settings import NatsSettings
from mama_spark.publishing.exactly_once.partition_leases import LEASE_MARGIN, RENEWAL

from ..jetstream_api import JetStream
from ..jetstream_rules import FULL, REFUSALS, Refusal, Stream
from ..kernel import Host, Scheduler
from ..network import Link, Network
from ..sockets import ServerPort
from ..stream_server import StreamServer
from .writers import Row, Write

if TYPE_CHECKING:
    from ..worlds import Shape

WINDOWS = (0.2, 1.0, 10.0, 120.0)
_HOUR = 3600.0
_BEFORE = b"before"  #: payload of messages that are there before the batch


def exactly_once(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """A server that stands still, ends and begins again, behind a network that breaks; executors that are killed or
    stand still, and drivers that begin again: each row is stored once."""
    random = scheduler.random
    network, there = Network(scheduler), scheduler.host("nats")
    network.usual = Link(random.uniform(0.0001, 0.02), random.uniform(0, 0.01), None, random.choice((0.0, 0.0, 0.3)))
    jetstream, window = JetStream(), random.choice(WINDOWS) if random.random() < 0.95 else 2 * _HOUR
    stream = jetstream.create("S", ["t.>"], there.time(), duplicate_window=int(window * 1e9))
    for _ in range(random.choice((0, 5))):
        stream.store("t.0", {}, _BEFORE, there.time())

    servers, ports = list[StreamServer](), list[ServerPort]()

    def start() -> None:
        """What was in memory is gone."""
        scheduler.restart(there)
        jetstream.consumers.clear()
        tell = (lambda text: scheduler.trace(text, "nats")) if scheduler.tracing else None
        server = StreamServer("nats", jetstream, lambda _: there.time(), tell, life=there.life)
        servers[:], ports[:] = [server], [ServerPort(network, there, server)]

    start()
    settings = NatsSettings(("nats://nats:4222",), ack_mode="message", exactly_once=True)
    partitions, lease = min(shape.partitions, random.choice((1, 1, 2, 3))), random.choice((2.0, 5.0, 15.0))
    write = Write(scheduler, settings, rows_of(scheduler, shape.rows), partitions, lease)
    write.start_run()
    scheduler.spawn("watch", lambda: write.watch([stream]), background=True)
    scheduler.spawn("query", lambda: write.query(lambda: not there.frozen and not there.dead, 20.0))
    for at in moments(scheduler, shape.faults, 6.0):
        lasts = random.choice((random.uniform(0, 3), random.uniform(0, 25)))
        zombie = partial(leave_a_zombie, scheduler, network, write, [there], lasts)
        kinds: tuple[Callable[[], None], ...] = (
            partial(break_a_link, scheduler, network, write.executors, there, lasts),
            partial(hurt_an_executor, scheduler, write, lasts, lease + window),
            zombie,
            zombie,
            partial(restart_the_driver, scheduler, write, lasts),
            partial(_hurt_the_server, scheduler, there, start, lasts),
            partial(spoil_the_server, scheduler, servers, lasts, FULL),
            partial(_lose_power, scheduler, write, there, stream, start, lasts),
            partial(_read_late, scheduler, write, ports),
            partial(_narrow_the_way, scheduler, network, write, there, lasts),
        )
        scheduler.call_at(at, random.choice(kinds))

    def check() -> Iterator[str]:
        yield from write.violations(Counter(m.payload for m in stream.messages.values() if m.payload != _BEFORE))
        yield from write.left(jetstream.streams.get("MAMA_BATCHES"), there.time())

    return check


def moments(scheduler: Scheduler, n: int, until: float) -> list[float]:
    """When so many things go wrong: anywhere, in the first steps, or soon one after another; perhaps more of them."""
    random = scheduler.random
    spread = random.choice((until, until, 1.0, 10 ** random.uniform(-2, 0)))
    begin = random.choice((0.0, random.uniform(0, until - spread)))
    return [begin + random.uniform(0, spread) for _ in range(n * random.choice((1, 1, 2)))]


def rows_of(scheduler: Scheduler, n: int) -> list[Row]:
    """Rows of two topics, of which some are equal."""
    distinct = scheduler.random.choice((n, n, max(1, n - 3), max(1, n // 2)))
    return [(f"t.{i % distinct % 2}", b"row %d" % (i % distinct)) for i in range(n)]


def break_a_link(scheduler: Scheduler, network: Network, names: Collection[str], there: Host, lasts: float) -> None:
    """Between one of these hosts and a server."""
    if not names:
        return
    random = scheduler.random
    name = random.choice(list(names))
    a, b = random.choice(((name, there.name), (there.name, name)))
    kind = random.choice(("cut", "half open", "hold", "hold one", "hold one", "slow"))
    if kind == "cut":
        network.cut(a, b)
    elif kind == "half open":
        network.half_open(a, b)
    elif kind == "hold":
        network.hold(a, b)
        scheduler.call_at(scheduler.now + lasts, lambda: network.release(a, b))
    elif kind == "hold one":
        scheduler.call_at(scheduler.now + lasts, network.hold_one(a, b))
    else:
        _slow_down(scheduler, network, a, b, random.choice((200.0, 2_000.0)), lasts)


def _slow_down(scheduler: Scheduler, network: Network, a: str, b: str, rate: float, lasts: float) -> None:
    link = network.link(a, b)
    link.rate = rate
    scheduler.trace_fault("slow", f"{a} -> {b}")
    scheduler.call_at(scheduler.now + lasts, lambda: setattr(link, "rate", None))


def _narrow_the_way(scheduler: Scheduler, network: Network, write: Write, there: Host, lasts: float) -> None:
    """The way of the next rows gets so slow that their ids may be forgotten before a copy behind them arrives."""
    rate = 10 ** scheduler.random.uniform(1.7, 2.5)
    write.armed.append(lambda host: _slow_down(scheduler, network, host.name, there.name, rate, lasts))


def hurt_an_executor(scheduler: Scheduler, write: Write, lasts: float, longest: float = 6.0) -> None:
    """It is killed, or stands still, or its machine sleeps, its clock is set, or what makes its rows fails.

    :param longest: seconds that it may stand still: a lease and the duplicate window, see "Limits of the guarantee" in
        :mod:`~mama_spark.publishing.exactly_once.protocol`. Where that is more, it is an hour.
    """
    if not write.executors:
        return
    random = scheduler.random
    host = write.executors[random.choice(list(write.executors))]
    if host.dead or host.frozen:
        return
    kind = random.choice(("kill", "kill", "freeze", "sleep", "fail", "clock"))
    if kind == "kill":
        scheduler.kill(host)
    elif kind == "fail":
        scheduler.trace_fault("no more rows for", host.name)
        write.failing.add(host.name)
    elif kind == "clock":
        host.ahead += random.choice((-3600.0, 3600.0))
    else:
        usual = host.rate
        if longest >= _HOUR:
            lasts = _HOUR
            scheduler.limit += _HOUR
        host.rate = 0.0 if kind == "sleep" else usual
        scheduler.freeze(host)

        def wake() -> None:
            host.rate = usual
            scheduler.thaw(host)

        scheduler.call_at(scheduler.now + min(lasts, longest), wake)


def leave_a_zombie(scheduler: Scheduler, network: Network, write: Write, servers: Sequence[Host], lasts: float) -> None:
    """Spark takes an executor for lost, which goes on, perhaps without answers to its renewals, or with late ones."""
    random, living = scheduler.random, [host for host in write.executors.values() if not host.dead]
    if not living:
        return
    name, there = random.choice(living).name, random.choice(servers).name
    scheduler.trace_fault("give up", name)
    write.given_up.add(name)
    kind = random.choice(("free", "hold", "late"))
    if kind == "hold":
        a, b = random.choice(((name, there), (there, name)))
        scheduler.call_at(scheduler.now + max(lasts, 2 * write.lease), network.hold_one(a, b))
    elif kind == "late":  # so that who believes in that answer sends when the next attempt has read back
        late = max((1 - RENEWAL) * write.lease, (1 - LEASE_MARGIN) * write.lease + SETTLE + 0.3)
        late += random.uniform(0.2, 4.0 if len(servers) == 1 else 2.0)  # another server would be tried after 6 s

        def renews() -> None:
            scheduler.call_at(scheduler.now + 20.0 + write.lease, network.delay_newest(there, name, late))

        scheduler.call_at(scheduler.now + random.uniform(0, 4), partial(write.renewing.__setitem__, name, renews))


def restart_the_driver(scheduler: Scheduler, write: Write, lasts: float) -> None:
    """It ends, and the next run of the batch begins."""
    write.end_run()
    scheduler.call_at(scheduler.now + min(lasts, 5.0), write.start_run)


def _hurt_the_server(scheduler: Scheduler, there: Host, start: Callable[[], None], lasts: float) -> None:
    """It stands still, or is killed."""
    if there.dead or there.frozen:
        return
    if scheduler.random.random() < 0.5:
        scheduler.freeze(there)
        scheduler.call_at(scheduler.now + lasts, lambda: None if there.dead else scheduler.thaw(there))
    else:
        scheduler.kill(there)
        scheduler.call_at(scheduler.now + lasts, start)


def _lose_power(
    scheduler: Scheduler, write: Write, there: Host, stream: Stream, start: Callable[[], None], lasts: float
) -> None:
    """The server and all executors end, perhaps the driver, too, and what it had stored last is gone; unless Spark
    counts on some of that."""
    if there.dead or write.counted_on:
        return
    n = scheduler.random.randrange(stream.last + 1)
    for host in [there, *write.executors.values()]:
        if not host.dead:
            scheduler.kill(host)
    stream.lose_tail(n)
    scheduler.trace_fault("lose the last messages", str(n))
    scheduler.call_at(scheduler.now + lasts, start)
    if scheduler.random.random() < 0.5:
        restart_the_driver(scheduler, write, lasts)


def _read_late(scheduler: Scheduler, write: Write, ports: list[ServerPort]) -> None:
    """The server reads a connection late, while it answers over others; what makes the rows of its client fails. It is
    read within ``SETTLE`` after the client has sent its last row, and while that goes on, within ``SETTLE`` after its
    lease: so long do repetitions wait, by clocks that run 3 % faster or slower."""
    random = scheduler.random

    def begin(host: Host) -> None:
        port = ports[0]
        number = next((n for n, end in port.connections.items() if end.other.host is host), None)
        if number is None:
            return
        scheduler.trace_fault("read late", f"connection {number} of {host.name}")
        port.late.add(number)
        write.failing.add(host.name)
        most = SETTLE - 0.3
        latest = scheduler.now + (1 - LEASE_MARGIN - 0.06) * write.lease + most

        def read() -> None:
            scheduler.trace_fault("read", f"connection {number} of {host.name}")
            port.late.discard(number)
            if ports[0] is port:  # else its process has ended, and with that what it had not read
                port.look_soon(number)

        def watch() -> None:
            now = scheduler.now
            if host.dead or host.name in write.stopped or now >= latest:
                scheduler.call_at(min(latest, now + random.uniform(0.5, most)), read)
            else:
                scheduler.call_at(now + 0.1, watch)

        watch()

    write.armed.append(begin)


def spoil_the_server(scheduler: Scheduler, servers: list[StreamServer], lasts: float, *others: Refusal) -> None:
    """It refuses messages, perhaps in silence, or its acknowledgements are lost, come twice, or in another order.

    :param others: more of what it refuses them with
    """
    random, server = scheduler.random, servers[0]
    what = random.choice(("refuses", "no refusals", "lost", "every other", "doubled", "reordered"))
    if what in ("refuses", "no refusals"):
        names = random.choice((["S"], ["S", "MAMA_BATCHES"]))
        refuse(scheduler, [s for name, s in server.jetstream.streams.items() if name in names], lasts, *others)
    if what != "refuses":
        server.answers = what
        scheduler.call_at(scheduler.now + min(lasts, 8.0), partial(setattr, server, "answers", None))
    scheduler.trace_fault(what, server.name)


def refuse(scheduler: Scheduler, streams: Iterable[Stream], lasts: float, *others: Refusal) -> None:
    """Streams refuse messages, all or some."""
    refusal, every = scheduler.random.choice((*REFUSALS, *others)), scheduler.random.choice((1, 1, 2, 3))
    scheduler.trace_fault("refuse", f"{refusal[2]}, one of {every}")
    for stream in streams:
        stream.refuses, stream.every = refusal, every
        scheduler.call_at(scheduler.now + lasts, partial(setattr, stream, "refuses", None))
