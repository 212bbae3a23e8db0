"""Worlds by name: what is built from a seed, and what must be true in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.publish.bridge import NatsBridge
from mama_spark.nats.settings import NatsSettings
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch

from .jetstream_api import JetStream
from .kernel import Scheduler, Stuck
from .malamute.world import malamute
from .nats.exactly_once import exactly_once, moments, spoil_the_server
from .nats.ordered import ordered
from .nats.world_reading import mamasub
from .nats.world_replicated import replicated
from .network import Link, Network
from .sockets import ServerPort
from .spark.world_sink import sink, sink_batch, sink_once
from .stream_server import StreamServer
from .world_discovery import discovery
from .world_recorder import recorder


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a world is, at most; a seed that fails is tried again with smaller ones."""

    rows: int = 20
    faults: int = 3
    partitions: int = 4

    def smaller(self) -> Iterator[Shape]:
        """Shapes that are smaller by one step, the most useful first."""
        for name in ("faults", "partitions", "rows"):
            n, least = getattr(self, name), 0 if name == "faults" else 1
            for fewer in sorted({least, n // 2, n - 1}):
                if least <= fewer < n:
                    yield replace(self, **{name: fewer})


#: Builds a world in a run, and returns what lists the violations once it has ended.
World = Callable[[Scheduler, Shape], Callable[[], Iterable[str]]]


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one seed.

    :ivar violations: of what must be true; none: all is well
    :ivar lines: the trace, if that was wanted
    :ivar fingerprint: equal for equal runs
    """

    violations: tuple[str, ...]
    lines: tuple[str, ...]
    fingerprint: tuple[int, float, float]


def run(world: str, seed: int, shape: Shape | None = None, tracing: bool = False, within: float = 300.0) -> Run:
    """Run a seed in a world; :func:`.modules.simulated` must be around it.

    :param within: virtual seconds
    """
    with Scheduler(seed, tracing) as scheduler:
        check = WORLDS[world](scheduler, shape or Shape())
        violations: list[str] = []
        try:
            scheduler.run(within)
            violations += check()
        except Stuck as e:
            violations.append(str(e))
        violations += [f"{name} ended by {type(e).__name__}: {e}" for name, e in scheduler.errors]
        return Run(tuple(violations), tuple(scheduler.lines), scheduler.fingerprint)


def shrunk(world: str, seed: int, shape: Shape) -> Shape:
    """The smallest shape found in which a seed that fails still fails.

    :param shape: in which it has failed
    """
    smaller = True
    while smaller:
        smaller = False
        for candidate in shape.smaller():
            if run(world, seed, candidate).violations:
                shape, smaller = candidate, True
                break
    return shape


def publish(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """One partition with ids, acknowledged a message, over a bad network: each row is acked and stored once."""
    random = scheduler.random
    network, here, there = Network(scheduler), scheduler.host("executor"), scheduler.host("nats")
    network.usual = Link(random.uniform(0.0001, 0.02), random.uniform(0, 0.01), None, random.choice((0.0, 0.3)))
    jetstream = JetStream()
    stream, servers = jetstream.create("S", ["t.>"], there.time()), list[StreamServer]()

    def start() -> None:
        """Start the server, or start it again: what it had stored is there."""
        scheduler.restart(there)
        tell = (lambda text: scheduler.trace(text, "nats")) if scheduler.tracing else None
        servers[:] = [StreamServer("nats", jetstream, lambda _: there.time(), tell)]
        ServerPort(network, there, servers[0])

    start()
    finished: list[FlightBatch] = []

    def task() -> None:
        bridge = NatsBridge(NatsSettings(("nats://nats:4222",), ack_mode="message"))
        while True:  # as Spark begins a task again
            try:
                bridge.open()
                break
            except Unavailable:
                scheduler.sleep(1.0)
        policy = WindowConfig(8, 4, random.choice((1.0, 5.0)), RetryPolicy.doubling(0.25, 5.0, 90.0))
        publisher = BatchPublisher(bridge, policy, on_finished=finished.append)
        publisher.start()
        for first in range(0, shape.rows, 8):
            rows = range(first, min(first + 8, shape.rows))
            batch = MessageBatch.of(
                [f"t.{i % 3}" for i in rows], [b"row %d" % i for i in rows], ids=[f"id{i}" for i in rows]
            )
            publisher.put(batch)
            scheduler.sleep(random.choice((0.0, 0.1, 1.0)))
        publisher.drain()
        bridge.close()

    scheduler.spawn("task", task, here)
    for at in moments(scheduler, shape.faults, 3.0):
        _fault(scheduler, network, at, start, servers)

    def check() -> Iterator[str]:
        states = np.concatenate([flights.state for flights in finished]) if finished else np.array([])
        if len(states) != shape.rows or not (states == FlightState.ACKED).all():
            yield f"of {shape.rows} rows: {[FlightState(s).name for s in states.tolist()]}"
        stored = sorted(m.payload for m in stream.messages.values())
        if stored != sorted(b"row %d" % i for i in range(shape.rows)):
            yield f"stored: {stored}"

    return check


def _fault(
    scheduler: Scheduler, network: Network, at: float, start: Callable[[], None], servers: list[StreamServer]
) -> None:
    """One fault of the network or the server, for a few seconds."""
    random = scheduler.random
    lasts = random.uniform(0, 6)  # all are over before the publisher gives up to ask for streams
    a, b = random.choice((("executor", "nats"), ("nats", "executor")))
    there = scheduler.host("nats")
    begin, end = random.choice(
        (
            (lambda: network.cut(a, b), lambda: None),
            (lambda: network.half_open(a, b), lambda: None),
            (lambda: network.hold(a, b), lambda: network.release(a, b)),
            (lambda: scheduler.freeze(there), lambda: scheduler.thaw(there)),
            (lambda: scheduler.kill(there), start),
            (lambda: spoil_the_server(scheduler, servers, lasts), lambda: None),
        )
    )
    scheduler.call_at(at, begin)
    scheduler.call_at(at + lasts, end)


WORLDS: Mapping[str, World] = {
    "publish": publish,
    "exactly-once": exactly_once,
    "replicated": replicated,
    "ordered": ordered,
    "mamasub": mamasub,
    "sink": sink,
    "sink-batch": sink_batch,
    "sink-once": sink_once,
    "malamute": malamute,
    "recorder": recorder,
    "discovery": discovery,
}
