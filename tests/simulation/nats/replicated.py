"""Three NATS servers that replicate streams by Raft, as nats-server does it, on hosts of a simulation.

What is sent from server to server takes its time, in order, and waits where the other one stands still. Who leads a
stream is decided as by an observer: among the servers that are there, one with the most of the log, some seconds after
the leader was lost. What the leader before it had not on a majority may be lost. A server that wakes up goes on with
what is in its buffers, and believes what it believed, until it hears of a later term.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from ..jetstream_api import Delivery, JetStream
from ..jetstream_rules import API, Headers, Stream, error, text_of
from ..kernel import Host, Scheduler
from ..network import Network
from ..sockets import ServerPort
from ..stream_server import StreamServer
from .fast_batches import Answers, Part

_APART = 1e-9
_ELECTION = (4.0, 9.0)  #: seconds after which another leader is elected
_LOST_QUORUM = 10.0  #: seconds after which a leader that hears of nobody gives up
_BEAT = 1.0


@dataclass(frozen=True, slots=True)
class Message:
    """What a client has published, or a request of it."""

    subject: str
    reply: str
    headers: Headers
    block: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log; ``message``: None for that with which a term begins."""

    term: int
    time: float
    message: Message | None = None


@dataclass(slots=True)
class Replica:
    """A stream on one server.

    :ivar log: all entries; ``applied``: so many of them are in ``stream``; ``committed``: so many are on a majority
    :ivar leads: it believes so, in ``term``, ``since`` this time of its host; ``floor``: entries that must be applied
        before it takes messages
    """

    stream: Stream
    log: list[Entry] = field(default_factory=list)
    applied: int = 0
    committed: int = 0
    term: int = 0
    leads: bool = False
    since: float = 0.0
    floor: int = 0

    @property
    def active(self) -> bool:
        return self.leads and self.applied >= self.floor


class Route:
    """The way from one server to another.

    :ivar held: what is sent waits
    """

    def __init__(self, scheduler: Scheduler, to: Host, latency: float, jitter: float) -> None:
        self._scheduler, self._to, self._latency, self._jitter = scheduler, to, latency, jitter
        self._queue: deque[Callable[[], None]] = deque()
        self._last, self._waiting = 0.0, 0
        self.held = False

    def send(self, what: Callable[[], None]) -> None:
        if self._to.dead:
            return
        self._queue.append(what)
        self._travel()

    def _travel(self) -> None:
        scheduler = self._scheduler
        seconds = self._latency + scheduler.random.random() * self._jitter
        self._last = max(scheduler.now + seconds, self._last + _APART)
        scheduler.call_at(self._last, self._due, self._to)

    def _due(self) -> None:
        if self.held:
            self._waiting += 1
        elif self._queue:
            self._queue.popleft()()

    def release(self) -> None:
        waiting, self._waiting, self.held = self._waiting, 0, False
        for _ in range(waiting):
            self._travel()

    def clear(self) -> None:
        """The connection is broken."""
        self._queue.clear()
        self._waiting = 0


class Node(StreamServer):
    """One server of a cluster.

    :ivar views: who leads each stream, as it believes; none: nobody
    """

    def __init__(self, cluster: Cluster, host: Host, tell: Callable[[str], None] | None) -> None:
        super().__init__(host.name, JetStream(), lambda _: host.time(), tell, host.life)
        self.cluster, self.host = cluster, host
        self.views: dict[str, str] = {}
        self.port = ServerPort(cluster.network, host, self)

    def info(self, number: int) -> dict[str, Any]:
        urls = [f"{name}:4222" for name in self.cluster.hosts]
        return {**super().info(number), "cluster": "C", "connect_urls": urls}

    def received(self, number: int, data: bytes, now: float) -> Any:
        out = super().received(number, data, now)
        self.cluster.replicate(self)
        return out

    def handle(self, subject: str, reply: str, headers: Headers, block: bytes, payload: bytes, time: float) -> bool:
        message = Message(subject, reply, headers, block, payload)
        if subject.startswith(API):
            return self.cluster.request(self, message)
        stream = self.jetstream.owner(subject)
        if stream is None:
            return False
        leader = self.views.get(stream.name)
        if leader is None:
            return False
        self.cluster.at(self, leader, lambda node: node.inbound(stream.name, message))
        return True

    def inbound(self, name: str, message: Message) -> None:
        """A message for a stream that this server leads; else nobody is there who would take it."""
        replica, now = self.cluster.replicas[self.name][name], self.host.time()
        if not replica.active:
            return
        stream, what = replica.stream, (message.subject, message.headers, message.payload, now)
        answers: Answers = []
        if (part := Part.of(message.reply)) is not None:
            answers, accepted = stream.fast.take(part, *what)
        elif not (accepted := (refusal := stream.refusal(*what)) is None):
            answers = [(message.reply, refusal or b"")]
        if accepted:
            stream.stage(message.subject, message.headers, now)
            replica.log.append(Entry(replica.term, now, message))
            self.cluster.changed.add(name)
        self.answer(answers, f"{message.subject} {message.payload[:40]!r}")

    def answer(self, answers: Answers, what: str) -> None:
        """Send what the leader of a stream answers."""
        for to, payload in answers:
            self.tell(f"{what}: {payload.decode()}")
            self.emit(Delivery(to, to, b"", b"", payload))

    def emit(self, message: Delivery) -> None:
        """To all that subscribe, at whichever server."""
        if not message.to:
            return
        self.deliver(message)
        for other in self.cluster.nodes.values():
            if other is not self and other.hears(message.to):
                self.cluster.at(self, other.name, partial(_deliver, message))

    def tell(self, text: str) -> None:
        if self._tell is not None:
            self._tell(text)

    def push(self) -> None:
        """Send what has come from other servers."""
        self.port.write(self._outputs())


def _deliver(message: Delivery, node: Node) -> None:
    node.deliver(message)


class Cluster:
    """Three servers.

    :ivar hosts: by name; ``nodes``: what runs on them now
    :ivar replicas: by server and stream
    :ivar terms: the last term of each stream
    :ivar changed: streams whose leader has new entries
    :ivar away: servers that the others do not reach
    """

    def __init__(self, scheduler: Scheduler, network: Network, latency: float, jitter: float) -> None:
        self.scheduler, self.network = scheduler, network
        self.hosts = {name: scheduler.host(name) for name in ("n1", "n2", "n3")}
        self.nodes: dict[str, Node] = {}
        self.replicas: dict[str, dict[str, Replica]] = {name: {} for name in self.hosts}
        self.terms: dict[str, int] = {}
        self.changed: set[str] = set()
        self.away: set[str] = set()
        self._known: dict[tuple[str, str], dict[str, int]] = {}  # entries that each has, as the leader knows
        self._quiet: dict[str, float] = {}  # until when a stream without a leader gets none
        self._consumers: dict[str, str] = {}  # the server of each
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
        for stream in [one for one, name in self._consumers.items() if name == host.name]:
            del self._consumers[stream]

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
        if replica.log:
            replica.log.append(Entry(replica.term, self.hosts[leader].time()))
        replica.floor = len(replica.log)
        self._known[leader, name] = {}
        self.nodes[leader].tell(f"leads {name} in term {replica.term}")
        if replica.log:
            self._tell_all(leader, name)
        else:
            self.nodes[leader].views[name] = leader

    def _follow(self, node: str, name: str, term: int) -> None:
        """A later term has begun."""
        replica = self.replicas[node][name]
        replica.term = max(term, replica.term)
        replica.stream.staged.clear()
        if replica.leads:  # the stream hears of it a little later than its log
            when = self.scheduler.now + self.scheduler.random.uniform(0, 0.01)
            self.scheduler.call_at(when, replica.stream.forget_proposals, self.hosts[node])
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
                heard = partial(
                    self._append, leader, name, replica.term, replica.log[:], replica.committed, replica.active
                )
                self.at(node, other, heard)

    def _append(
        self, leader: str, name: str, term: int, log: list[Entry], committed: int, active: bool, node: Node
    ) -> None:
        """A follower hears what its leader has."""
        replica = self.replicas[node.name][name]
        if term < replica.term:
            later = replica.term
            self.at(node, leader, lambda there: self._outdated(there, name, later))
            return
        if term > replica.term or replica.leads:
            self._follow(node.name, name, term)
        if active:
            node.views[name] = leader
        mine, n = replica.log, min(len(replica.log), len(log))
        if mine[:n] != log[:n]:
            n = next(i for i in range(n) if mine[i] is not log[i])
            assert n >= replica.applied, "what is committed stays"
            mine[n:] = log[n:]
        else:
            mine += log[n:]
        self._apply(node, name, min(committed, len(log)))
        has = len(log)
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
        while replica.applied < replica.committed:
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

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(self, node: Node, message: Message) -> bool:
        """Have the server answer a request of the API that has to; whether one may."""
        call, now = message.subject.removeprefix(API), node.host.time()
        words = call.split(".")
        if call.startswith(("STREAM.INFO.", "STREAM.MSG.GET.")):
            name = words[-1]
            if name in self.terms:
                to = node.views.get(name)
                if to is None:
                    self._not_now(node, message)
                    return True
                self.at(node, to, lambda there: self._answer(there, message, name))
                return True
        elif call.startswith("STREAM.CREATE.") and words[-1] not in self.terms:
            if sum(map(self.there, self.hosts)) < 2:
                return True
            self.create(orjson.loads(message.payload), now)
        elif call.startswith("CONSUMER."):
            return self._of_a_consumer(node, message, words)
        self._answer(node, message, "")
        return True

    def _not_now(self, node: Node, message: Message) -> None:
        if self.scheduler.random.random() < 0.5:
            text = orjson.dumps(error(503, 10008, "JetStream system temporarily unavailable"))
            node.emit(Delivery(message.reply, message.reply, b"", b"", text))

    def _answer(self, node: Node, message: Message, name: str) -> None:
        if name and not self.replicas[node.name][name].active:
            return
        if name:
            replica = self.replicas[node.name][name]
            replica.stream.cluster = {"leader": node.name, "leader_since": text_of(replica.since)}
        for one in node.jetstream.request(message.subject, message.reply, message.payload, node.host.time()):
            node.emit(one)

    def _of_a_consumer(self, node: Node, message: Message, words: list[str]) -> bool:
        """One server has a consumer: any, which may stand still, or the leader of the stream."""
        stream, consumer = words[-2], words[-1]
        if words[1] == "CREATE":
            alone = b'"num_replicas":1' in message.payload
            living = [n for n, host in self.hosts.items() if not host.dead]
            to = self.scheduler.random.choice(living) if alone else node.views.get(stream)
            if to is None:
                return True
            self._consumers[consumer] = to
        to = self._consumers.get(consumer)
        if to is None:
            return words[1] != "MSG"
        self.at(node, to, lambda there: self._answer(there, message, ""))
        return True
