"""One NATS server of a cluster: what it knows of its streams, what it does with what clients send, and its ways to
others. What servers decide together is in :mod:`.replicated`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from ..jetstream_api import Delivery, JetStream
from ..jetstream_rules import API, Headers, Stream, error, text_of
from ..kernel import Host, Scheduler
from ..sockets import ServerPort
from ..stream_server import StreamServer
from .fast_batches import Answers, Part

if TYPE_CHECKING:
    from .replicated import Cluster

_APART = 1e-9


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
    :ivar answers: as of any server; or ``late``, each by itself, so that they come in another order
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
            return self._request(message)
        stream = self.jetstream.owner(subject)
        if stream is None:
            return False
        leader = self.views.get(stream.name)
        if leader is None:
            return False
        self.cluster.takes(stream.name, self.name, leader)
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
            self.cluster.on_taken(self.name, message)
        self.answer(answers, f"{message.subject} {message.payload[:40]!r}")

    def answer(self, answers: Answers, what: str) -> None:
        """Send what the leader of a stream answers."""
        acks = [Delivery(to, to, b"", b"", payload) for to, payload in answers]
        for ack in acks:
            self.tell(f"{what}: {ack.payload.decode()}")
        scheduler = self.cluster.scheduler
        for ack in self._spoiled(acks):
            if self.answers == "late":
                when = scheduler.now + scheduler.random.uniform(0, 4)
                scheduler.call_at(when, partial(self._emit_late, ack), self.host)
            else:
                self.emit(ack)

    def _emit_late(self, ack: Delivery) -> None:
        self.emit(ack)
        self.push()

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

    # --- requests ----------------------------------------------------------------------------------------------------

    def _request(self, message: Message) -> bool:
        """Have the server answer a request of the API that has to; whether one may."""
        cluster, call = self.cluster, message.subject.removeprefix(API)
        words = call.split(".")
        if call.startswith(("STREAM.INFO.", "STREAM.MSG.GET.")) and (name := words[-1]) in cluster.terms:
            to = self.views.get(name)
            if to is not None:
                cluster.at(self, to, lambda there: there._answer_as_leader(message, name))
            elif cluster.hasty and words[1] == "INFO":
                self._tell_of(message, name, None)
            else:
                self._not_now(message)
            return True
        if call.startswith("STREAM.CREATE.") and words[-1] not in cluster.terms:
            if sum(map(cluster.there, cluster.hosts)) < 2:
                return True
            cluster.create(orjson.loads(message.payload), self.host.time())
        elif call.startswith(("STREAM.PURGE.", "STREAM.MSG.DELETE.")):
            raise NotImplementedError("all replicas would do it")
        elif call.startswith("CONSUMER."):
            return self._of_a_consumer(message, words)
        self._answer(message)
        return True

    def _not_now(self, message: Message) -> None:
        if self.cluster.scheduler.random.random() < 0.5:
            text = orjson.dumps(error(503, 10008, "JetStream system temporarily unavailable"))
            self.emit(Delivery(message.reply, message.reply, b"", b"", text))

    def _answer(self, message: Message) -> None:
        for one in self.jetstream.request(message.subject, message.reply, message.payload, self.host.time()):
            self.emit(one)

    def _answer_as_leader(self, message: Message, name: str) -> None:
        replica = self.cluster.replicas[self.name][name]
        if replica.active or (self.cluster.hasty and replica.leads):
            self._tell_of(message, name, self.name)

    def _tell_of(self, message: Message, name: str, leader: str | None) -> None:
        """Answer about a stream."""
        others = [{"name": other} for other in self.cluster.hosts if other != self.name]
        cluster = {}
        if leader is not None:
            cluster = {"leader": leader, "leader_since": text_of(self.cluster.replicas[leader][name].since)}
        self.cluster.replicas[self.name][name].stream.cluster = {**cluster, "replicas": others}
        self._answer(message)

    def _of_a_consumer(self, message: Message, words: list[str]) -> bool:
        """One server has a consumer: any, which may stand still, or the leader of the stream."""
        cluster, stream, consumer = self.cluster, words[-2], words[-1]
        if words[1] == "CREATE":
            alone = b'"num_replicas":1' in message.payload
            living = [n for n, host in cluster.hosts.items() if not host.dead]
            to = cluster.scheduler.random.choice(living) if alone else self.views.get(stream)
            if to is None:
                return True
            cluster.consumers[consumer] = to
        to = cluster.consumers.get(consumer)
        if to is None:
            return words[1] != "MSG"
        cluster.at(self, to, lambda there: there._answer(message))
        return True


def _deliver(message: Delivery, node: Node) -> None:
    node.deliver(message)
