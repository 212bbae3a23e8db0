"""The world ``replicated``: the same batch on three servers, of which one may stand still, end, or lose its lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from mama_spark.nats.settings import NatsSettings

from ..jetstream_rules import FULL
from ..kernel import Host, Scheduler
from ..network import Link, Network
from .exactly_once import (
    WINDOWS,
    break_a_link,
    hurt_an_executor,
    leave_a_zombie,
    moments,
    refuse,
    restart_the_driver,
    rows_of,
)
from .replicated import Cluster
from .writers import Write

if TYPE_CHECKING:
    from ..worlds import Shape


def replicated(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
    """Each row is stored once, whichever server leads, stands still, or is killed."""
    random = scheduler.random
    network = Network(scheduler)
    network.usual = Link(random.uniform(0.0001, 0.02), random.uniform(0, 0.01), None, random.choice((0.0, 0.0, 0.3)))
    cluster = Cluster(scheduler, network, random.uniform(0.0001, 0.02), random.uniform(0, 0.02))
    cluster.hasty = random.random() < 0.5
    names = list(cluster.hosts)
    window = int(random.choice((0.2, *WINDOWS)) * 1e9)
    cluster.create({"name": "S", "subjects": ["t.>"], "duplicate_window": window}, cluster.hosts["n1"].time())
    servers = tuple(f"nats://{name}:4222" for name in random.sample(names, random.choice((1, 3, 3))))
    settings = NatsSettings(servers, ack_mode="message", exactly_once=True)
    partitions = min(shape.partitions, random.choice((1, 1, 2)))
    write = Write(scheduler, settings, rows_of(scheduler, shape.rows), partitions)
    write.start_run()
    scheduler.spawn("query", lambda: write.query(lambda: all(map(cluster.there, names)), 20.0))
    for at in moments(scheduler, shape.faults, 6.0):
        lasts = random.choice((random.uniform(0, 3), random.uniform(0, 25)))
        scheduler.call_at(at, partial(_fault, scheduler, network, write, cluster, lasts))

    def check() -> Iterator[str]:
        for name, replicas in cluster.replicas.items():
            for text in write.violations(Counter(m.payload for m in replicas["S"].stream.messages.values())):
                yield f"{name}: {text}"

    return check


def _fault(scheduler: Scheduler, network: Network, write: Write, cluster: Cluster, lasts: float) -> None:
    random = scheduler.random
    kinds = "server server lead late link executor executor zombie driver refuse spoil buffer buffer route swing swing"
    kind = random.choice(kinds.split())
    if kind == "link":
        there = cluster.hosts[random.choice(list(cluster.hosts))]
        break_a_link(scheduler, network, write.executors, there, lasts)
    elif kind == "executor":
        hurt_an_executor(scheduler, write, lasts)
    elif kind == "zombie":
        leave_a_zombie(scheduler, network, write, list(cluster.hosts.values()), lasts)
    elif kind in _AT_A_MESSAGE:
        _AT_A_MESSAGE[kind](scheduler, network, write, cluster)
    elif kind == "spoil":
        spoil(scheduler, cluster, lasts)
    elif kind == "late":
        change_to_a_late_leader(scheduler, cluster)
    elif kind == "lead":
        random.choice((lead_to_and_fro, lose_the_lead))(scheduler, cluster, lasts)
    elif kind == "refuse":
        refuse(scheduler, [replicas["S"].stream for replicas in cluster.replicas.values()], lasts, FULL)
    elif kind == "driver":
        restart_the_driver(scheduler, write, lasts)
    else:
        hurt_a_server(scheduler, cluster, lasts)


def _leave_rows_in_a_buffer(scheduler: Scheduler, network: Network, write: Write, cluster: Cluster) -> None:
    """A follower stands still while an executor sends rows there, which ends before that goes on."""
    random = scheduler.random
    fails = random.random() < 0.3

    def begin(stream: str, name: str, _: str) -> bool:
        free = [n for n in cluster.hosts if n not in cluster.leaders and cluster.there(n)]
        still = [n for n in free if (n == name) is (stream == "S")]  # rows follow a marker over another connection
        found = [(n, host) for n in still for host in _connected(write, cluster, n)]
        if not found:
            return False
        there, host = random.choice(found)
        _freeze(scheduler, cluster.hosts[there], random.uniform(2, 15) if fails else random.uniform(8, 25))
        end = partial(write.failing.add, host.name) if fails else partial(scheduler.kill, host)
        scheduler.call_at(scheduler.now + random.uniform(0.05, 1), end, host)
        return True

    cluster.armed.append(begin)


def _leave_rows_behind_a_route(scheduler: Scheduler, network: Network, write: Write, cluster: Cluster) -> None:
    """An executor changes to a server that does not reach the others, sends rows there, and is killed before that
    does."""
    random = scheduler.random

    def begin(stream: str, name: str, _: str) -> bool:
        hosts = _connected(write, cluster, name)
        others = [n for n in cluster.hosts if n not in cluster.leaders | {name} and cluster.there(n)]
        if stream != "S" or not (hosts and others):
            return False
        host, other = random.choice(hosts), random.choice(others)
        cluster.isolate(other)
        network.cut(host.name, name)

        def sent(stream: str, name: str, _: str) -> bool:
            if stream == "S" and name == other and not host.dead:
                scheduler.call_at(scheduler.now + random.uniform(0, 0.6), partial(scheduler.kill, host), host)
                return True
            return other not in cluster.away

        cluster.armed.append(sent)
        scheduler.call_at(scheduler.now + random.uniform(11, 22), partial(cluster.join, other))
        return True

    cluster.armed.append(begin)


def _lead_behind_a_slow_route(scheduler: Scheduler, network: Network, write: Write, cluster: Cluster) -> None:
    """What a follower hands on is on its way to the leader for so long that another server leads meanwhile, which
    answers at once, and that one again. Not longer than ``SETTLE`` from there on: no server takes as long."""
    random = scheduler.random

    def begin(stream: str, name: str, leader: str) -> bool:
        if stream != "S" or name == leader or not all(map(cluster.there, cluster.hosts)):
            return False
        arrive, (third,) = cluster.delay(name, leader), cluster.hosts.keys() - {name, leader}
        before, due = (cluster.terms["S"], cluster.hosts[name].life), scheduler.now + random.uniform(2.5, 2.7)

        def change() -> None:
            host = cluster.hosts[name]
            if before != (cluster.terms["S"], host.life) or host.dead:
                arrive()  # who sent it may have been answered already
            else:
                cluster.elect("S", {name, leader})

        scheduler.call_at(scheduler.now + random.uniform(0.8, 1.1), change)
        scheduler.call_at(due - random.uniform(0.1, 0.3), partial(cluster.elect, "S", {name, third}))
        scheduler.call_at(due, arrive)
        return True

    cluster.armed.append(begin)


_AT_A_MESSAGE = {
    "buffer": _leave_rows_in_a_buffer,
    "route": _leave_rows_behind_a_route,
    "swing": _lead_behind_a_slow_route,
}


def _connected(write: Write, cluster: Cluster, name: str) -> list[Host]:
    """Executors with a connection to a server."""
    names = {end.other.host.name for end in cluster.nodes[name].port.connections.values()}
    return [host for host in write.executors.values() if host.name in names and not host.dead]


def spoil(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
    """Acknowledgements are lost, come twice, or late."""
    what = scheduler.random.choice(("lost", "every other", "no refusals", "doubled", "late", "late"))
    scheduler.trace_fault("acknowledgements", what)
    for node in cluster.nodes.values():
        node.answers = what
        scheduler.call_at(scheduler.now + min(lasts, 8.0), partial(setattr, node, "answers", None))


def _freeze(scheduler: Scheduler, there: Host, lasts: float) -> None:
    if not (there.dead or there.frozen):
        scheduler.freeze(there)
        scheduler.call_at(scheduler.now + lasts, lambda: None if there.dead else scheduler.thaw(there))


def change_to_a_late_leader(scheduler: Scheduler, cluster: Cluster) -> None:
    """The next leader has perhaps not applied its log; a server that is behind for longer was restored."""
    random = scheduler.random
    for name in random.sample(list(cluster.hosts), random.choice((1, 2))):
        cluster.apply_late(name, random.uniform(0, 4))
    at = scheduler.now + random.uniform(0, 1)
    for name in cluster.terms:
        scheduler.call_at(at, partial(cluster.move, name))


def hurt_a_server(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
    """One stands still, or is killed, or does not reach the others; or a leader gives up."""
    random = scheduler.random
    name = random.choice(list(cluster.hosts))
    host, kind = cluster.hosts[name], random.choice(("freeze", "freeze", "kill", "isolate", "move"))
    if kind == "move":
        cluster.move(random.choice(list(cluster.terms)))
    elif not cluster.there(name):
        return
    elif kind == "freeze":
        _freeze(scheduler, host, lasts)
    elif kind == "kill":
        scheduler.kill(host)
        scheduler.call_at(scheduler.now + lasts, lambda: cluster.start(name))
    else:
        cluster.isolate(name)
        scheduler.call_at(scheduler.now + lasts, lambda: cluster.join(name))


def lead_to_and_fro(scheduler: Scheduler, cluster: Cluster, _: float) -> None:
    """The leader gives up, and the next one, and so on."""
    random = scheduler.random
    for _again in range(random.randrange(1, 6)):
        scheduler.call_at(scheduler.now + random.uniform(0, 1), partial(cluster.move, "S"))


def lose_the_lead(scheduler: Scheduler, cluster: Cluster, lasts: float) -> None:
    """The leader does not reach the others, which elect another one, perhaps soon; it comes back, and leads again."""
    name = next((n for n, replicas in cluster.replicas.items() if replicas["S"].leads and cluster.there(n)), None)
    if name is None:
        return
    others, back = set(cluster.hosts) - {name}, scheduler.now + lasts
    cluster.isolate(name)
    if scheduler.random.random() < 0.5:
        scheduler.call_at(scheduler.now + scheduler.random.uniform(0, 2), partial(cluster.elect, "S", {name}))
    scheduler.call_at(back, partial(cluster.join, name))
    scheduler.call_at(back + scheduler.random.uniform(0, 0.5), partial(cluster.elect, "S", others))
