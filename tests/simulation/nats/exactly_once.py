"""The world ``exactly-once``: one server, one batch, any attempts at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from mama_spark.nats.settings import NatsSettings

from ..jetstream_api import JetStream
from ..jetstream_rules import REFUSALS
from ..kernel import Host, Scheduler
from ..network import Link, Network
from ..sockets import ServerPort
from ..stream_server import StreamServer
from .writers import Row, Write

if TYPE_CHECKING:
    from ..worlds import Shape

WINDOWS = (1.0, 10.0, 120.0)


def exactly_once(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """A server that stands still, ends and begins again, behind a network that breaks; executors that are killed or
    stand still, and drivers that begin again: each row is stored once."""
    random = scheduler.random
    network, there = Network(scheduler), scheduler.host("nats")
    network.usual = Link(random.uniform(0.0001, 0.02), random.uniform(0, 0.01), None, random.choice((0.0, 0.0, 0.3)))
    jetstream, window = JetStream(), random.choice(WINDOWS)
    stream = jetstream.create("S", ["t.>"], there.time(), duplicate_window=int(window * 1e9))

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
    for _ in range(shape.faults):
        at, lasts = random.uniform(0, 6), random.choice((random.uniform(0, 3), random.uniform(0, 25)))
        kinds: tuple[Callable[[], None], ...] = (
            partial(break_a_link, scheduler, network, write, there, lasts),
            partial(hurt_an_executor, scheduler, write, lasts),
            partial(restart_the_driver, scheduler, write, lasts),
            partial(_hurt_the_server, scheduler, there, start, lasts),
            partial(_spoil_the_server, scheduler, servers, lasts),
        )
        scheduler.call_at(at, random.choice(kinds))

    def check() -> Iterator[str]:
        yield from write.violations(Counter(m.payload for m in stream.messages.values()))

    return check


def rows_of(scheduler: Scheduler, n: int) -> list[Row]:
    """Rows of two topics, of which some are equal."""
    distinct = scheduler.random.choice((n, n, max(1, n - 3)))
    return [(f"t.{i % distinct % 2}", b"row %d" % (i % distinct)) for i in range(n)]


def break_a_link(scheduler: Scheduler, network: Network, write: Write, there: Host, lasts: float) -> None:
    """Between one executor and a server."""
    if not write.executors:
        return
    random = scheduler.random
    name = random.choice(list(write.executors))
    a, b = random.choice(((name, there.name), (there.name, name)))
    kind = random.choice(("cut", "half open", "hold", "slow"))
    if kind == "cut":
        network.cut(a, b)
    elif kind == "half open":
        network.half_open(a, b)
    elif kind == "hold":
        network.hold(a, b)
        scheduler.call_at(scheduler.now + lasts, lambda: network.release(a, b))
    else:
        link = network.link(a, b)
        link.rate = random.choice((200.0, 2_000.0))
        scheduler.trace_fault("slow", f"{a} -> {b}")
        scheduler.call_at(scheduler.now + lasts, lambda: setattr(link, "rate", None))


def hurt_an_executor(scheduler: Scheduler, write: Write, lasts: float, longest: float = 6.0) -> None:
    """It is killed, or stands still, or its machine sleeps."""
    if not write.executors:
        return
    random = scheduler.random
    host = write.executors[random.choice(list(write.executors))]
    if host.dead or host.frozen:
        return
    if random.random() < 0.6:
        scheduler.kill(host)
    else:
        scheduler.freeze(host)
        scheduler.call_at(scheduler.now + min(lasts, longest), lambda: scheduler.thaw(host))


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


def _spoil_the_server(scheduler: Scheduler, servers: list[StreamServer], lasts: float) -> None:
    """It refuses messages, or its acknowledgements are lost, come twice, or in another order."""
    random, server = scheduler.random, servers[0]
    what = random.choice(("refuses", "lost", "every other", "doubled", "reordered"))
    if what == "refuses":
        refusal = random.choice(REFUSALS)
        streams = random.choice((["S"], ["S", "MAMA_BATCHES"]))
        for stream in (one for name, one in server.jetstream.streams.items() if name in streams):
            stream.refuses = refusal
            scheduler.call_at(scheduler.now + lasts, partial(setattr, stream, "refuses", None))
    else:
        server.answers = what
        scheduler.call_at(scheduler.now + min(lasts, 8.0), partial(setattr, server, "answers", None))
    scheduler.trace_fault(what, server.name)
