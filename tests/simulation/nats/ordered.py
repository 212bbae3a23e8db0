"""The world ``ordered``: one partition with ``order=partition`` on three servers, over elections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from mama_spark.contracts.errors import MamaError, Rejected
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.publish.bridge import NatsBridge
from mama_spark.nats.settings import NatsSettings
from mama_spark.options.window import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, BatchHooks, OnOutage
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch

from ..jetstream_rules import FULL, Refusal, Stream
from ..kernel import Scheduler
from ..network import Link, Network
from .exactly_once import break_a_link, moments, refuse
from .replicated import Cluster
from .world_replicated import hurt_a_server, lead_to_and_fro, lose_the_lead
from .writers import NotAllStored

if TYPE_CHECKING:
    from ..worlds import Shape


def ordered(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """Fast ingest, or a message at a time: nothing that is acknowledged is missing, nothing overtakes, and nothing that
    an attempt sends is stored twice; without ids, where fast ingest keeps no order, only the last; where tasks are
    killed, and repeated in another order, only the first."""
    random = scheduler.random
    network = Network(scheduler)
    network.usual = Link(random.uniform(0.0001, 0.02), random.uniform(0, 0.01), None, random.choice((0.0, 0.0, 0.3)))
    cluster = Cluster(scheduler, network, random.uniform(0.0001, 0.02), random.uniform(0, 0.02))
    names, here = list(cluster.hosts), scheduler.host("executor")
    with_ids = random.random() < 0.65
    any_order = with_ids and random.random() < 0.33  # then ids are not remembered for as long as attempts take
    window = random.choice((2, 20, 60)) if any_order else 600
    config = {"name": "S", "subjects": ["t.>"], "duplicate_window": window * 10**9, "allow_batched": True}
    cluster.create(config, cluster.hosts["n1"].time())
    for replicas in cluster.replicas.values():  # what long since leads has decided all that came before
        replicas["S"].since -= random.choice((0, 3600))
    servers = tuple(f"nats://{name}:4222" for name in random.sample(names, 3))
    mode: Literal["batch", "message"] = random.choice(("batch", "batch", "message"))
    in_order = with_ids or mode == "message"
    on_outage = random.choice((OnOutage.FAIL_AT_GAP, OnOutage.WAIT_AT_GAP)) if in_order else OnOutage.FAIL
    most = random.choice((4, 16))
    settings = NatsSettings(
        servers, ack_mode=mode, ordered=in_order, dedup=with_ids, max_in_flight=most, exactly_once=any_order
    )
    sent: list[list[bytes]] = []  # by each attempt
    acked: Counter[bytes] = Counter()
    blamed: set[bytes] = set()  # a refusal is told of them
    streams = [replicas["S"].stream for replicas in cluster.replicas.values()]
    timeout, chunk, pause = random.choice((1.0, 5.0)), random.choice((4, 8)), random.choice((0.1, 1.0, 4.0))
    pauses = [random.choice((0.0, 0.0, pause)) for _ in range(2 * shape.rows)]

    def attempt() -> None:
        bridge, failed = NatsBridge(settings), list[FlightBatch]()
        policy = WindowConfig(most, most // 2, timeout, RetryPolicy.doubling(0.25, 5.0, 90.0), with_ids, in_order)
        end = b"" if with_ids else b", attempt %d" % len(sent)
        rows = [b"row %03d%b" % (i, end) for i in range(2 * shape.rows)]
        if any_order and sent:
            random.shuffle(rows)
        sent.append(rows)

        def on_finished(flights: FlightBatch) -> None:
            assert flights.messages is not None
            payloads = flights.messages.payloads.to_pylist()
            good = flights.state == FlightState.ACKED
            acked.update(payloads[row] for row in good.nonzero()[0].tolist())
            failed.extend([] if good.all() else [flights])
            blamed.update(payloads[row] for row, error in flights.errors.items() if isinstance(error, Rejected))

        def connect() -> WindowConfig:
            bridge.open()
            bridge.prepare(MessageBatch.of(["t.1"], [b""]))
            return policy.for_bridge(bridge.capabilities, with_ids=with_ids)

        publisher = BatchPublisher(
            bridge,
            policy,
            on_finished=on_finished,
            config=BatchConfig(on_outage=on_outage),
            hooks=BatchHooks(open_bridge=connect),
        )
        try:
            publisher.start()
            for first in range(0, len(rows), chunk):
                some = rows[first : first + chunk]
                ids = [f"id-{p.decode()}" for p in some] if with_ids else None
                publisher.put(MessageBatch.of(["t.1"] * len(some), some, ids=ids))
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
            if here.dead:
                scheduler.restart(here)
            one = scheduler.spawn("attempt", attempt, here, background=True, expects=(MamaError, NotAllStored))
            one.ended.wait(None, "an attempt")
            if one.error is None and not here.dead:
                break
            scheduler.trace(f"again: {one.error or 'killed'}")
            scheduler.sleep(1.0)
        scheduler.wait(lambda: all(map(cluster.there, names)), what="all servers")
        scheduler.sleep(20.0)

    scheduler.spawn("task", task, scheduler.host("driver"))

    def link(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
        break_a_link(scheduler, network, [here.name], cluster.hosts[random.choice(names)], lasts)

    def kill(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
        if not here.dead:
            scheduler.kill(here)

    refused = partial(_refuse, () if with_ids else (FULL,))  # behind a gap the order of a repetition is another one
    for at in moments(scheduler, 2 * shape.faults, 15.0):
        lasts = random.choice((random.uniform(0, 3), random.uniform(0, 15)))
        kinds = (hurt_a_server, hurt_a_server, lead_to_and_fro, lose_the_lead, refused, link)
        kind = random.choice((*kinds, kill, kill) if any_order else kinds)
        scheduler.call_at(at, partial(kind, scheduler, cluster, lasts))

    def check() -> Iterator[str]:
        last = sent[-1] if sent else []
        if acked != Counter(last):
            yield f"acknowledged: {sorted(acked.items())}"
        if wrong := blamed.difference(*(stream.refused for stream in streams)):
            yield f"said to be refused, and never were: {sorted(wrong)}"
        for stream in streams:
            yield from _violations(stream, sent[-1:] if any_order else sent, in_order, any_order)

    return check


def _violations(stream: Stream, sent: list[list[bytes]], in_order: bool, doubled: bool) -> Iterator[str]:
    """All that the last attempt has sent is stored, and what each has sent, once, unless ``doubled``, and perhaps in
    order."""
    for rows in sent:
        mine = set(rows)
        stored = [m.payload for m in stream.messages.values() if m.payload in mine]
        missing = Counter(rows) - Counter(stored) if rows is sent[-1] else None
        once = sorted(mine.intersection(stored))
        if missing or (not doubled and (stored if in_order else sorted(stored)) != once):
            yield f"missing {sorted(missing or [])}, in the order {stored}"


def _refuse(others: tuple[Refusal, ...], scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
    refuse(scheduler, [replicas["S"].stream for replicas in cluster.replicas.values()], min(lasts, 5.0), *others)
