"""The world ``ordered``: one partition with ``order=partition`` on three servers, over elections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.publish.bridge import NatsBridge
from mama_spark.nats.settings import NatsSettings
from mama_spark.options.window import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, BatchHooks, OnOutage
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch

from ..kernel import Scheduler
from ..network import Link, Network
from .replicated import Cluster
from .world_replicated import hurt_a_server
from .writers import NotAllStored

if TYPE_CHECKING:
    from ..worlds import Shape

_CHUNK = 8


def ordered(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """Fast ingest, or a message at a time: nothing that is acknowledged is missing, and nothing overtakes."""
    random = scheduler.random
    network = Network(scheduler)
    network.usual = Link(random.uniform(0.0001, 0.02), random.uniform(0, 0.01), None, random.choice((0.0, 0.0, 0.3)))
    cluster = Cluster(scheduler, network, random.uniform(0.0001, 0.02), random.uniform(0, 0.02))
    names, here = list(cluster.hosts), scheduler.host("executor")
    config = {"name": "S", "subjects": ["t.>"], "duplicate_window": 600_000_000_000, "allow_batched": True}
    cluster.create(config, cluster.hosts["n1"].time())
    servers = tuple(f"nats://{name}:4222" for name in random.sample(names, 3))
    settings = NatsSettings(servers, ack_mode=random.choice(("batch", "batch", "message")), ordered=True)
    rows = [b"row %03d" % i for i in range(2 * shape.rows)]
    acked: Counter[bytes] = Counter()
    pauses = [random.choice((0.0, 0.0, 0.1, 1.0)) for _ in rows]

    def attempt() -> None:
        bridge, failed = NatsBridge(settings), list[FlightBatch]()
        policy = WindowConfig(16, 8, wait_timeout=5.0, retry=RetryPolicy.doubling(0.25, 5.0, 90.0), ordered=True)

        def on_finished(flights: FlightBatch) -> None:
            assert flights.messages is not None
            payloads = flights.messages.payloads.to_pylist()
            good = flights.state == FlightState.ACKED
            acked.update(payloads[row] for row in good.nonzero()[0].tolist())
            failed.extend([] if good.all() else [flights])

        def connect() -> WindowConfig:
            bridge.open()
            bridge.prepare(MessageBatch.of(["t.1"], [b""]))
            return policy.for_bridge(bridge.capabilities, with_ids=True)

        publisher = BatchPublisher(
            bridge,
            policy,
            on_finished=on_finished,
            config=BatchConfig(on_outage=OnOutage.FAIL_AT_GAP),
            hooks=BatchHooks(open_bridge=connect),
        )
        try:
            publisher.start()
            for first in range(0, len(rows), _CHUNK):
                some = rows[first : first + _CHUNK]
                publisher.put(MessageBatch.of(["t.1"] * len(some), some, ids=[f"id-{p.decode()}" for p in some]))
                scheduler.sleep(pauses[first])
            publisher.drain()
        finally:
            publisher.stop()
            bridge.close()
        if failed:
            raise NotAllStored

    def task() -> None:
        while True:
            acked.clear()
            try:
                attempt()
                break
            except (MamaError, NotAllStored) as e:
                scheduler.trace(f"again: {e}")
                scheduler.sleep(1.0)
        scheduler.wait(lambda: all(map(cluster.there, names)), what="all servers")
        scheduler.sleep(20.0)

    scheduler.spawn("task", task, here)
    for _ in range(2 * shape.faults):
        at, lasts = random.uniform(0, 15), random.choice((random.uniform(0, 3), random.uniform(0, 15)))
        kind = random.choice((hurt_a_server, hurt_a_server, _lead_to_and_fro, _lose_the_lead_for_a_while))
        scheduler.call_at(at, partial(kind, scheduler, cluster, lasts))

    def check() -> Iterator[str]:
        if acked != Counter(rows):
            yield f"acknowledged: {sorted(acked.items())}"
        for name, replicas in cluster.replicas.items():
            stored = [m.payload for m in replicas["S"].stream.messages.values()]
            if stored != rows:
                missing, again = Counter(rows) - Counter(stored), Counter(stored) - Counter(rows)
                yield f"{name}: missing {sorted(missing)}, doubled {sorted(again)}, in the order {stored}"

    return check


def _lead_to_and_fro(scheduler: Scheduler, cluster: Cluster, _: float) -> None:
    random = scheduler.random
    for _again in range(random.randrange(1, 6)):
        scheduler.call_at(scheduler.now + random.uniform(0, 1), partial(cluster.move, "S"))


def _lose_the_lead_for_a_while(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
    """The leader does not reach the others, which elect another one; it comes back, and leads again."""
    name = next((n for n, replicas in cluster.replicas.items() if replicas["S"].leads and cluster.there(n)), None)
    if name is None:
        return
    others, back = set(cluster.hosts) - {name}, scheduler.now + lasts
    cluster.isolate(name)
    scheduler.call_at(back, partial(cluster.join, name))
    scheduler.call_at(back + scheduler.random.uniform(0, 0.5), partial(cluster.elect, "S", others))
