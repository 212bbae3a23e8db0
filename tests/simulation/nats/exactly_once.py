"""The world ``exactly-once``: one server, one batch, any attempts at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mama_spark.nats.settings import NatsSettings

from ..jetstream_api import JetStream
from ..jetstream_rules import FULL, REFUSALS, Refusal, Stream
from ..kernel import Host, Scheduler
from ..network import Link, Network
from ..sockets import ServerPort
from ..stream_server import StreamServer
from .writers import LEASE, Row, Write

if TYPE_CHECKING:
    from ..worlds import Shape

WINDOWS = (0.2, 1.0, 10.0, 120.0)
_BEFORE = b"before"  #: payload of messages that are there before the batch


def exactly_once(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """A server that stands still, ends and begins again, behind a network that breaks; executors that are killed or
    stand still, and drivers that begin again: each row is stored once."""
    random = scheduler.random
    network, there = Network(scheduler), scheduler.host("nats")
    network.usual = Link(random.uniform(0.0001, 0.02), random.uniform(0, 0.01), None, random.choice((0.0, 0.0, 0.3)))
    jetstream, window = JetStream(), random.choice(WINDOWS)
    stream = jetstream.create("S", ["t.>"], there.time(), duplicate_window=int(window * 1e9))
    for _ in range(random.choice((0, 5))):
        stream.store("t.0", {}, _BEFORE, there.time())

    servers: list[StreamServer] = []

    def start() -> None:
        """What was in memory is gone."""
        scheduler.restart(there)
        jetstream.consumers.clear()
        tell = (lambda text: scheduler.trace(text, "nats")) if scheduler.tracing else None
        server = StreamServer("nats", jetstream, lambda _: there.time(), tell, life=there.life)
        ServerPort(network, there, server)
        servers[:] = [server]

    start()
    settings = NatsSettings(("nats://nats:4222",), ack_mode="message", exactly_once=True)
    write = Write(scheduler, settings, rows_of(scheduler, shape.rows), random.choice((1, 1, 2, 3)))
    write.start_run()
    scheduler.spawn("query", lambda: write.query(lambda: not there.frozen and not there.dead, 20.0))
    for at in moments(scheduler, shape.faults, 6.0):
        lasts = random.choice((random.uniform(0, 3), random.uniform(0, 25)))
        kinds: tuple[Callable[[], None], ...] = (
            partial(break_a_link, scheduler, network, write.executors, there, lasts),
            partial(hurt_an_executor, scheduler, write, lasts, LEASE + window),
            partial(leave_a_zombie, scheduler, network, write, [there], lasts),
            partial(restart_the_driver, scheduler, write, lasts),
            partial(_hurt_the_server, scheduler, there, start, lasts),
            partial(spoil_the_server, scheduler, servers, lasts, FULL),
            partial(_lose_power, scheduler, write, there, stream, start, lasts),
        )
        scheduler.call_at(at, random.choice(kinds))

    def check() -> Iterator[str]:
        yield from write.violations(Counter(m.payload for m in stream.messages.values() if m.payload != _BEFORE))

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
        link = network.link(a, b)
        link.rate = random.choice((200.0, 2_000.0))
        scheduler.trace_fault("slow", f"{a} -> {b}")
        scheduler.call_at(scheduler.now + lasts, lambda: setattr(link, "rate", None))


def hurt_an_executor(scheduler: Scheduler, write: Write, lasts: float, longest: float = 6.0) -> None:
    """It is killed, or stands still, or its machine sleeps, its clock is set, or what makes its rows fails."""
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
        host.rate = 0.0 if kind == "sleep" else usual
        scheduler.freeze(host)

        def wake() -> None:
            host.rate = usual
            scheduler.thaw(host)

        scheduler.call_at(scheduler.now + min(lasts, longest), wake)


def leave_a_zombie(scheduler: Scheduler, network: Network, write: Write, servers: Sequence[Host], lasts: float) -> None:
    """Spark takes an executor for lost, which goes on, perhaps without answers to its renewals."""
    random, living = scheduler.random, [host for host in write.executors.values() if not host.dead]
    if not living:
        return
    name, there = random.choice(living).name, random.choice(servers).name
    scheduler.trace_fault("give up", name)
    write.given_up.add(name)
    if random.random() < 0.7:
        a, b = random.choice(((name, there), (there, name)))
        scheduler.call_at(scheduler.now + max(lasts, 2 * LEASE), network.hold_one(a, b))


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
