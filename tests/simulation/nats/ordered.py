"""The world ``ordered``: one partition with ``order=partition`` on three servers, over elections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from mama_spark.contracts.errors import ConfigError, MamaError, Rejected
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.publish.bridge import NatsBridge
from mama_spark.nats.settings import NatsSettings
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, BatchHooks, OnOutage
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch

from ..jetstream_rules import FULL, Refusal, Stream
from ..kernel import Scheduler
from ..network import Link, Network
from .exactly_once import break_a_link, moments, refuse
from .fast_batches import Part
from .node import Message
from .replicated import Cluster
from .world_replicated import change_to_a_late_leader, hurt_a_server, lead_to_and_fro, lose_the_lead, spoil
from .writers import NotAllStored

if TYPE_CHECKING:
    from ..worlds import Shape

#: What goes wrong as this leader takes a message.
Moment = Callable[[str], None]


def ordered(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """Fast ingest, or a message at a time: nothing that is acknowledged is missing, nothing overtakes, and nothing that
    an attempt sends is stored twice; without ids, where fast ingest keeps no order, only the last; where tasks are
    killed, and repeated in another order, only the first. Fast ingest with ids and without order is refused."""
    random = scheduler.random
    network = Network(scheduler)
    network.usual = Link(random.uniform(0.0001, 0.02), random.uniform(0, 0.01), None, random.choice((0.0, 0.0, 0.3)))
    cluster = Cluster(scheduler, network, random.uniform(0.0001, 0.02), random.uniform(0, 0.02))
    cluster.hasty = random.random() < 0.5
    names, here = list(cluster.hosts), scheduler.host("executor")
    with_ids = random.random() < 0.65
    any_order = with_ids and random.random() < 0.33  # then ids are not remembered for as long as attempts take
    window = random.choice((2, 20, 60)) if any_order else 600
    config = {"name": "S", "subjects": ["t.>"], "duplicate_window": window * 10**9, "allow_batched": True}
    cluster.create(config, cluster.hosts["n1"].time())
    for replicas in cluster.replicas.values():  # what long since leads has decided all that came before
        replicas["S"].since -= random.choice((0, 3600, 3600))
    servers = tuple(f"nats://{name}:4222" for name in random.sample(names, 3))
    mode: Literal["batch", "message"] = random.choice(("batch", "batch", "message"))
    unsafe = with_ids and mode == "batch" and random.random() < 0.25
    in_order = (with_ids or mode == "message") and not unsafe
    on_outage = random.choice((OnOutage.FAIL_AT_GAP, OnOutage.WAIT_AT_GAP)) if in_order else OnOutage.FAIL
    most, timeout = random.choice((4, 16)), random.choice((1.0, 5.0))
    settings = NatsSettings(
        servers, ack_mode=mode, ordered=in_order, dedup=with_ids, max_in_flight=most, exactly_once=any_order,
        wait_timeout=timeout,
    )  # fmt: skip
    sent: list[list[bytes]] = []  # by each attempt
    armed: list[tuple[bool, int, Moment]] = []  # for which message, outside of batches or in one
    alone = 0  # messages outside of batches, since the last one in a batch
    acked: Counter[bytes] = Counter()
    blamed: set[bytes] = set()  # a refusal is told of them
    streams = [replicas["S"].stream for replicas in cluster.replicas.values()]
    chunk, pause = random.choice((2, 4, 8)), random.choice((0.1, 1.0, 4.0))
    pauses = [random.choice((0.0, 0.0, pause)) for _ in range(2 * shape.rows)]

    def attempt() -> None:
        bridge, failed = NatsBridge(settings), list[FlightBatch]()
        policy = WindowConfig(most, most // 2, timeout, RetryPolicy.doubling(0.25, 5.0, 90.0), with_ids, in_order)
        end = b"" if with_ids else b", attempt %d" % len(sent)
        rows = [b"row %03d%b" % (i, end) for i in range(2 * shape.rows)]
        if any_order and sent:
            random.shuffle(rows)
        sent.append(rows)
        nonlocal alone
        alone = 0

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
            if unsafe and isinstance(one.error, ConfigError):
                sent.clear()
                return
            scheduler.trace(f"again: {one.error or 'killed'}")
            scheduler.sleep(1.0)
        scheduler.wait(lambda: all(map(cluster.there, names)), what="all servers")
        scheduler.sleep(20.0)

    scheduler.spawn("task", task, scheduler.host("driver"))

    def link(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
        break_a_link(scheduler, network, [here.name], cluster.hosts[random.choice(names)], lasts)

    def late(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
        change_to_a_late_leader(scheduler, cluster)

    def kill(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
        if not here.dead:
            scheduler.kill(here)

    def on_taken(leader: str, message: Message) -> None:
        nonlocal alone
        part = Part.of(message.reply)
        alone = alone + 1 if part is None else 0
        this = (True, alone) if part is None else (False, part.number)
        moment = next((one for one in armed if one[:2] == this), None)
        if moment is not None and (cluster.nodes[leader].sessions or moment[0] is False):
            armed.remove(moment)
            moment[2](leader)

    def arm(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
        """For a message that goes alone behind one or some, or for one of a batch."""
        if mode == "message" or (with_ids and random.random() < 0.6):
            number = random.choice((2, 2, 2, random.randrange(3, 7)))
            armed.append((True, number, partial(_lose_the_leader, cluster, soon=True)))
        else:
            answers = partial(_lose_answers, cluster, network, here.name)
            moment = random.choice((answers, partial(_lose_the_leader, cluster, soon=False)))
            armed.append((False, random.randrange(2, 3 * chunk), moment))

    cluster.on_taken = on_taken
    refused = partial(_refuse, () if with_ids else (FULL,))  # behind a gap the order of a repetition is another one
    for at in moments(scheduler, 2 * shape.faults, 15.0):
        lasts = random.choice((random.uniform(0, 3), random.uniform(0, 15)))
        kinds = (hurt_a_server, lead_to_and_fro, lose_the_lead, spoil, refused, link, late, arm, arm, arm)
        kind = random.choice((*kinds, kill, kill) if any_order else kinds)
        scheduler.call_at(random.choice((0, 0, at)) if kind is arm else at, partial(kind, scheduler, cluster, lasts))

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


def _lose_answers(cluster: Cluster, network: Network, client: str, leader: str) -> None:
    """What the client's server answers is lost with the connection."""
    scheduler, random = cluster.scheduler, cluster.scheduler.random
    servers = [name for name, node in cluster.nodes.items() if node.sessions and cluster.there(name)]
    if not servers:
        return
    there, at = random.choice(servers), scheduler.now + random.uniform(0, 0.05)

    def cut() -> None:
        network.cut(there, client)
        network.release(there, client)

    scheduler.call_at(at, partial(network.hold, there, client))
    scheduler.call_at(at + random.uniform(0.4, 1.2), cut)


def _lose_the_leader(cluster: Cluster, leader: str, *, soon: bool) -> None:
    """The others do not reach it any more, and elect another one; it comes back, and perhaps leads again."""
    random, at = cluster.scheduler.random, cluster.scheduler.call_at
    gone = cluster.scheduler.now + (0 if soon else random.uniform(0, 0.3))
    elected = gone + (random.uniform(0.05, 0.3) if soon else random.uniform(0.5, 2))
    back = elected + (random.uniform(0, 0.5) if soon else random.uniform(0, 6))
    at(gone, partial(cluster.isolate, leader))
    at(elected, partial(cluster.elect, "S", {leader}))
    at(back, partial(cluster.join, leader))
    if random.random() < 0.8:
        at(back + random.uniform(0.05, 0.3), partial(cluster.elect, "S", set(cluster.hosts) - {leader}))


def _refuse(others: tuple[Refusal, ...], scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
    refuse(scheduler, [replicas["S"].stream for replicas in cluster.replicas.values()], min(lasts, 5.0), *others)
