"""Three NATS servers that replicate streams by Raft, as nats-server does it, on hosts of a simulation.

What is sent from server to server takes its time, in order, and waits where the other one stands still. Who leads a
stream is decided as by an observer: among the servers that are there, one with the most of the log, some seconds after
the leader was lost. What the leader before it had not on a majority may be lost. A server that wakes up goes on with
what is in its buffers, and believes what it believed, until it hears of a later term.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from ..jetstream_rules import Stream
from ..kernel import Host, Scheduler
from ..network import Network
from .fast_batches import Part
from .node import Entry, Message, Node, Replica, Route

_ELECTION = (4.0, 9.0)  #: seconds after which another leader is elected
_LOST_QUORUM = 10.0  #: seconds after which a leader that hears of nobody gives up
_BEAT = 1.0


class Cluster:
    """Three servers.

    :ivar hosts: by name; ``nodes``: what runs on them now
    :ivar replicas: by server and stream
    :ivar terms: the last term of each stream
    :ivar changed: streams whose leader has new entries
    :ivar away: servers that the others do not reach
    :ivar consumers: the server of each
    :ivar armed: called with each message of a client that a server takes, until they return True: its stream, this
        server, and the one that it is handed to
    :ivar hasty: a new leader answers before it has applied its log, and any server while there is no leader, as
        nats-server does
    :ivar slow: servers that apply nothing of their logs for now
    :ivar on_taken: called when a leader takes a message: its name, and the message
    """

    def __init__(self, scheduler: Scheduler, network: Network, latency: float, jitter: float) -> None:
        self.scheduler, self.network = scheduler, network
        self.hosts = {name: scheduler.host(name) for name in ("n1", "n2", "n3")}
        for host in self.hosts.values():
            host.ahead = scheduler.random.uniform(-0.3, 0.3)
        self.nodes: dict[str, Node] = {}
        self.replicas: dict[str, dict[str, Replica]] = {name: {} for name in self.hosts}
        self.terms: dict[str, int] = {}
        self.changed: set[str] = set()
        self.away: set[str] = set()
        self._known: dict[tuple[str, str], dict[str, int]] = {}  # entries that each has, as the leader knows
        self._quiet: dict[str, float] = {}  # until when a stream without a leader gets none
        self.consumers: dict[str, str] = {}
        self.armed: list[Callable[[str, str, str], bool]] = []
        self.hasty = False
        self.slow: set[str] = set()
        self.on_taken: Callable[[str, Message], None] = lambda leader, message: None
        self._routes = {
            (a, b): Route(scheduler, host, latency, jitter)
            for a in self.hosts for b, host in self.hosts.items() if a != b
        }  # fmt: skip
        for name in self.hosts:
            self.start(name)
        scheduler.on_death.append(self._died)
        scheduler.call_at(_BEAT, self._beat)

    # --- servers -----------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a server, or start it again: it has its logs, and nothing that was in memory."""
        scheduler, host = self.scheduler, self.hosts[name]
        if not host.dead and name in self.nodes:
            return
        scheduler.restart(host)
        tell = (lambda text: scheduler.trace(text, name)) if scheduler.tracing else None
        node = self.nodes[name] = Node(self, host, tell)
        for stream, replica in self.replicas[name].items():
            replica.leads = False
            replica.stream.staged.clear()
            replica.stream.fast.open.clear()
            for id_ in [id_ for id_, (sequence, _) in replica.stream.ids.items() if not sequence]:
                del replica.stream.ids[id_]
            node.jetstream.adopt(stream, replica.stream)

    def _died(self, host: Host) -> None:
        """The others see that its connections are closed."""
        if self.hosts.get(host.name) is not host:
            return
        for (a, b), route in self._routes.items():
            if b == host.name:
                route.clear()
            elif a == host.name:
                views = self.nodes[b].views
                for stream in [stream for stream, leader in views.items() if leader == host.name]:
                    del views[stream]
        for stream in [one for one, name in self.consumers.items() if name == host.name]:
            del self.consumers[stream]

    def apply_late(self, name: str, seconds: float) -> None:
        """A server applies nothing of its logs for a while."""
        self.slow.add(name)
        self.scheduler.trace_fault("apply late", name)

        def go_on() -> None:
            self.slow.discard(name)
            if self.hosts[name].dead:
                return
            node = self.nodes[name]
            for stream, replica in self.replicas[name].items():
                self._apply(node, stream, replica.committed)
                if replica.active:
                    node.views[stream] = name
                    self._tell_all(name, stream)
            node.push()

        self.scheduler.call_at(self.scheduler.now + seconds, go_on)

    def isolate(self, name: str) -> None:
        """What it sends to the others waits, and what they send."""
        self.away.add(name)
        for ends, route in self._routes.items():
            route.held = route.held or name in ends
        self.scheduler.trace_fault("isolate", name)

    def join(self, name: str) -> None:
        """What waited goes on."""
        self.away.discard(name)
        for ends, route in self._routes.items():
            if name in ends:
                route.release()
        self.scheduler.trace_fault("join", name)

    def delay(self, a: str, b: str) -> Callable[[], None]:
        """What one server sends to another waits, although the others reach both, until this is called."""
        route = self._routes[a, b]
        route.held = True
        self.scheduler.trace_fault("delay", f"{a} -> {b}")
        return lambda: None if {a, b} & self.away else route.release()

    def takes(self, stream: str, node: str, leader: str) -> None:
        """A server has got a message of a client."""
        self.armed = [one for one in self.armed if not one(stream, node, leader)]

    def at(self, node: Node, name: str, do: Callable[[Node], None]) -> None:
        """Do something at a server: at once, if it is this one, or when that has come there."""
        if name == node.name:
            do(node)
            return

        def arrived() -> None:
            there = self.nodes[name]
            do(there)
            self.replicate(there)
            there.push()

        self._routes[node.name, name].send(arrived)

    def there(self, name: str) -> bool:
        """Whether the others reach a server, and it answers."""
        host = self.hosts[name]
        return not (host.dead or host.frozen or name in self.away)

    @property
    def leaders(self) -> set[str]:
        """Servers that lead a stream, as they believe."""
        return {name for name, replicas in self.replicas.items() if any(one.leads for one in replicas.values())}

    # --- streams -----------------------------------------------------------------------------------------------------

    def create(self, config: dict[str, Any], now: float, leader: str = "") -> Stream:
        """A stream on all servers; the one named leads it, or one that is there."""
        name = config["name"]
        for node in self.nodes.values():
            stream = node.jetstream.create(now=now, **{**config, "num_replicas": 3})
            self.replicas[node.name][name] = Replica(stream)
        self.terms[name] = 0
        self.elect(name, but={n for n in self.hosts if leader not in ("", n)})
        leader = next(n for n, replicas in self.replicas.items() if replicas[name].leads)
        for node in self.nodes.values():
            node.views[name] = leader
        return self.replicas[leader][name].stream

    def elect(self, name: str, but: Collection[str] = ()) -> None:
        """Another leader, of those that are there; none of ``but``."""
        random = self.scheduler.random
        there = [node for node in self.hosts if self.there(node)]
        if len(there) < 2:
            return
        logs = {n: self.replicas[n][name].log for n in there}
        best = max((log[-1].term if log else 0, len(log)) for log in logs.values())
        able = [n for n, log in logs.items() if (log[-1].term if log else 0, len(log)) == best and n not in but]
        if not able:
            return
        leader = random.choice(able)
        self.terms[name] += 1
        for n in there:
            self._follow(n, name, self.terms[name])
        replica = self.replicas[leader][name]
        replica.leads, replica.term, replica.since = True, self.terms[name], self.hosts[leader].time()
        if replica.term > 1:  # so that nobody is elected for what only a leader before has
            replica.log.append(Entry(replica.term, self.hosts[leader].time()))
        replica.floor = len(replica.log)
        self._known[leader, name] = {}
        self.nodes[leader].tell(f"leads {name} in term {replica.term}")
        if self.hasty or not replica.log:
            self.nodes[leader].views[name] = leader
        if replica.log:
            self._tell_all(leader, name)

    def _follow(self, node: str, name: str, term: int) -> None:
        """A later term has begun."""
        replica = self.replicas[node][name]
        replica.term = max(term, replica.term)
        replica.stream.staged.clear()
        if replica.leads:  # the stream hears of it a little later than its log
            late = self.scheduler.random.choice((0.01, 1.0, 30.0))  # under load
            when = self.scheduler.now + self.scheduler.random.uniform(0, late)
            forget = partial(replica.stream.forget_proposals, self.hosts[node].time())
            self.scheduler.call_at(when, forget, self.hosts[node])
        replica.leads = False
        self.nodes[node].views.pop(name, None)

    def replicate(self, node: Node) -> None:
        """Send new entries of streams that this server leads."""
        for name in sorted(self.changed):
            if self.replicas[node.name][name].leads:
                self._tell_all(node.name, name)
        self.changed.clear()

    def _tell_all(self, leader: str, name: str) -> None:
        replica, node = self.replicas[leader][name], self.nodes[leader]
        for other in self.hosts:
            if other != leader:
                has = self._known[leader, name].get(other, 0)
                heard = partial(
                    self._append, leader, name, replica.term, has, replica.log[has:], replica.committed, replica.active
                )
                self.at(node, other, heard)

    def _append(
        self, leader: str, name: str, term: int, had: int, news: list[Entry], committed: int, active: bool, node: Node
    ) -> None:
        """A follower hears what its leader has behind what both have."""
        replica = self.replicas[node.name][name]
        if term < replica.term:
            later = replica.term
            self.at(node, leader, lambda there: self._outdated(there, name, later))
            return
        if term > replica.term or replica.leads:
            self._follow(node.name, name, term)
        if active or self.hasty:
            node.views[name] = leader
        mine, has = replica.log, had + len(news)
        both = min(len(mine), has)
        same = next((n for n in range(had, both) if mine[n] is not news[n - had]), both)
        if same < both:
            assert same >= replica.applied, "what is committed stays"
            del mine[same:]
        mine += news[same - had :]
        self._apply(node, name, min(committed, has))
        self.at(node, leader, lambda there: self._accepted(there, node.name, name, term, has))

    def _outdated(self, node: Node, name: str, term: int) -> None:
        if term > self.replicas[node.name][name].term:
            self._follow(node.name, name, term)

    def _accepted(self, node: Node, follower: str, name: str, term: int, has: int) -> None:
        replica = self.replicas[node.name][name]
        if not replica.leads or replica.term != term:
            return
        known = self._known[node.name, name]
        known[follower] = max(has, known.get(follower, 0))
        most = max(known.values())  # the leader and one more are the majority
        if most > replica.committed and replica.log[most - 1].term == term:
            self._apply(node, name, most)
            if replica.active:
                node.views[name] = node.name
            self._tell_all(node.name, name)

    def _apply(self, node: Node, name: str, committed: int) -> None:
        replica = self.replicas[node.name][name]
        replica.committed, was_active = max(replica.committed, committed), replica.active
        while replica.applied < replica.committed and node.name not in self.slow:
            entry = replica.log[replica.applied]
            replica.applied += 1
            m = entry.message
            if m is None:
                continue
            stream, now = replica.stream, node.host.time()
            sequence = stream.store(m.subject, m.headers, m.payload, entry.time, m.block)
            if (part := Part.of(m.reply)) is not None:
                answers = stream.fast.stored(part, sequence, now, leads=was_active)
            else:
                answers = [(m.reply, stream.ack(sequence))] if replica.leads else []
            node.answer(answers, f"{m.subject} {m.payload[:40]!r}")
            for delivery in node.jetstream.stored(replica.stream):
                node.emit(delivery)
        if replica.active and not was_active:
            node.answer(replica.stream.fast.lead(node.host.time()), f"leads {name}")

    # --- time --------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        scheduler, now = self.scheduler, self.scheduler.now
        scheduler.call_at(now + _BEAT, self._beat)
        for name in self.terms:
            leaders = [n for n, replicas in self.replicas.items() if replicas[name].leads and self.there(n)]
            leader = max(leaders, key=lambda n: self.replicas[n][name].term, default=None)
            if leader is None or self.replicas[leader][name].term < self.terms[name]:
                if self._quiet.setdefault(name, now + scheduler.random.uniform(*_ELECTION)) <= now:
                    del self._quiet[name]
                    self.elect(name)
                continue
            others = [n for n in self.hosts if n != leader]
            if any(map(self.there, others)):
                self._quiet.pop(name, None)
                if any(self._behind(leader, name, n) for n in others if self.there(n)):
                    self._tell_all(leader, name)
            elif self._quiet.setdefault(name, now + _LOST_QUORUM) <= now:
                del self._quiet[name]
                self._follow(leader, name, self.replicas[leader][name].term)

    def _behind(self, leader: str, name: str, node: str) -> bool:
        led, replica = self.replicas[leader][name], self.replicas[node][name]
        return (
            replica.applied < led.committed or len(replica.log) != len(led.log) or led.committed < len(led.log)
            or replica.term != led.term or self.nodes[node].views.get(name) != leader
        )  # fmt: skip

    def move(self, name: str) -> None:
        """The leader of a stream gives up for another one."""
        for n, replicas in self.replicas.items():
            if replicas[name].leads and self.there(n):
                self.scheduler.trace_fault("move", name)
                self.elect(name, but={n})
                return
