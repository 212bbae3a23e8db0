"""TCP as the systems of two hosts see it: what is written arrives later, in order, in pieces, or never.

A connection has two ends. Bytes that the system of an end has taken are on their way until the system of the other end
has them; a link may let them wait, and a connection that is reset loses some of them.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .kernel import Host, Scheduler, Signal

_BUFFER = 256 * 1024  #: bytes that are on their way or unread, at most, in one direction
_APART = 1e-9  #: seconds between two arrivals, so that nothing overtakes


@dataclass(slots=True)
class Link:
    """The way from one host to another. A change counts for what is sent from then on.

    :ivar latency: seconds of the way; ``jitter``: at most so many more, by chance
    :ivar rate: bytes a second of each connection; None: as many as there are
    :ivar pieces: how probable it is that what is written is cut at any byte; the rest again
    :ivar held: bytes wait, and connections do not come about: a cable that is out, or a black hole
    """

    latency: float = 0.0005
    jitter: float = 0.0
    rate: float | None = None
    pieces: float = 0.0
    held: bool = False


@dataclass(slots=True)
class _Packet:
    """Bytes on their way.

    :ivar left: when the last of them leaves the system of the sender; ``arrives``: at the other end
    """

    data: bytes
    arrived: Callable[[bytes], None]
    left: float = 0.0
    arrives: float = 0.0


class End:
    """One end of a connection, as the system of its host has it.

    :param link: to the host of the other end
    :ivar incoming: bytes that have come and were not read
    :ivar finished: the other end sends no more; ``error``: of the system, when the connection is broken
    :ivar resets: to close it discards what was not sent (SO_LINGER 0)
    :ivar changed: fired when something comes, or can be written; ``notify``: called then, for what is no process
    :ivar on_their_way: bytes that this system has taken, and the other one has not
    """

    def __init__(self, scheduler: Scheduler, host: Host, link: Link) -> None:
        self._scheduler, self.host, self.link = scheduler, host, link
        self.other = self
        self.incoming = bytearray()
        self.connected = self.finished = self.closed = self.resets = False
        self.error = self.on_their_way = 0
        self.changed = Signal(scheduler)
        self.notify: Callable[[], None] | None = None
        self._packets: deque[_Packet] = deque()
        self._held = 0  # arrivals that are due when the link is free again
        self._last_left = self._last_arrival = 0.0

    @property
    def ended(self) -> bool:
        return self.closed or self.error != 0

    @property
    def readable(self) -> bool:
        return bool(self.incoming) or self.finished or self.error != 0

    @property
    def room(self) -> int:
        """Bytes that can be written now."""
        return max(0, _BUFFER - self.on_their_way - len(self.other.incoming)) if self.connected else 0

    def send(self, data: bytes) -> int:
        """How many bytes the system takes.

        :raises OSError: the connection is broken
        """
        self.check()
        data = data[: self.room]
        taken, random = len(data), self._scheduler.random
        self.on_their_way += taken
        while len(data) > 1 and self.link.pieces and random.random() < self.link.pieces:
            at = random.randrange(1, len(data))
            self.carry(data[:at], self._arrived)
            data = data[at:]
        if data:
            self.carry(data, self._arrived)
        return taken

    def check(self) -> None:
        """:raises OSError: the connection is broken"""
        if self.error:
            raise OSError(self.error, os.strerror(self.error))

    def read(self) -> bytes:
        """All that has come; nothing at the end."""
        data = bytes(self.incoming)
        self.incoming.clear()
        if self.other.on_their_way + len(data) >= _BUFFER // 2:
            self.other.tell()  # there is room again
        return data

    def close(self) -> None:
        """FIN behind what was sent; RST, where the end resets or has not read everything."""
        if self.closed:
            return
        self.closed = True
        if not self.error:
            if self.resets or self.incoming:
                self.lose()
                self.carry(b"", lambda _: self.other.break_down())
            else:
                self.carry(b"", lambda _: self.other.finish())
        self.tell()

    def break_down(self, error: int = errno.ECONNRESET) -> None:
        """The connection is broken for this end; the other one hears nothing of it."""
        if not self.ended:
            self.error = error
            self.tell()

    def finish(self) -> None:
        """The other end sends no more."""
        self.finished = True
        self.tell()

    def tell(self) -> None:
        """Whoever uses this end shall look."""
        self.changed.fire()
        if self.notify is not None:
            self.notify()

    def carry(self, data: bytes, arrived: Callable[[bytes], None]) -> None:
        """Let it arrive at the other end, behind all before it."""
        packet = _Packet(data, arrived)
        self._packets.append(packet)
        self._travel(packet)

    def release(self) -> None:
        """The link is not held any more: what waited is on its way."""
        held, self._held = self._held, 0
        for _, packet in zip(range(held), self._packets, strict=False):
            self._travel(packet)

    def lose(self) -> None:
        """What was not sent is discarded; of what the link carries, the first part arrives, as far as chance wants."""
        now = self._scheduler.now
        carried = [packet for packet in self._packets if packet.data and packet.left <= now]
        kept = 0 if self.link.held or not carried else self._scheduler.random.randrange(len(carried) + 1)
        self._packets = deque(carried[:kept])
        self.on_their_way = sum(len(packet.data) for packet in self._packets)
        self._last_left = now
        self._last_arrival = max((packet.arrives for packet in self._packets), default=now)

    def _travel(self, packet: _Packet) -> None:
        link, scheduler = self.link, self._scheduler
        seconds = link.latency
        if link.jitter:
            seconds += scheduler.random.random() * link.jitter
        crossing = 0.0 if link.rate is None else len(packet.data) / link.rate
        self._last_left = packet.left = max(scheduler.now, self._last_left) + crossing
        self._last_arrival = packet.arrives = max(packet.left + seconds, self._last_arrival + _APART)
        scheduler.call_at(packet.arrives, self._due)

    def _due(self) -> None:
        if self.link.held:
            self._held += 1
        elif self._packets:
            packet = self._packets.popleft()
            packet.arrived(packet.data)

    def _arrived(self, data: bytes) -> None:
        self.on_their_way -= len(data)
        other = self.other
        if not other.ended:
            other.incoming += data
            other.tell()
        elif not self.ended:  # nobody knows of the connection there
            other.carry(b"", lambda _: self.break_down())


class Listener(Protocol):
    """What listens on a host."""

    def accept(self, end: End) -> None:
        """A connection has come about."""
        ...


class Network:
    """All hosts of a run, and the ways between them.

    :ivar usual: what links are like that nobody has asked for
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.usual = scheduler, Link()
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[str, Listener] = {}
        self._ends: list[End] = []
        scheduler.network = self
        scheduler.on_death.append(self._died)

    def link(self, a: str, b: str) -> Link:
        """The way from host ``a`` to host ``b``."""
        if (a, b) not in self._links:
            self._links[a, b] = replace(self.usual)
        return self._links[a, b]

    def listen(self, host: Host, listener: Listener) -> None:
        """Something listens on a host, at any port."""
        self._listeners[host.name] = listener

    def refuse(self, host: Host) -> None:
        """Nothing listens any more; connections that are there stay."""
        self._listeners.pop(host.name, None)

    def hold(self, a: str, b: str) -> None:
        """What goes from ``a`` to ``b`` waits; one way alone, a connection is half there."""
        self.link(a, b).held = True
        self.scheduler.trace_fault("hold", f"{a} -> {b}")

    def release(self, a: str, b: str) -> None:
        """What waited goes on."""
        self.link(a, b).held = False
        self.scheduler.trace_fault("release", f"{a} -> {b}")
        for end in self._between(a, b):
            if end.host.name == a:
                end.release()

    def hold_one(self, a: str, b: str) -> Callable[[], None]:
        """What goes from ``a`` to ``b`` over one of the connections that are there waits, until this is called."""
        return self._change_one(a, b, self.scheduler.random.choice, "hold one connection", held=True)

    def delay_newest(self, a: str, b: str, seconds: float) -> Callable[[], None]:
        """What goes from ``a`` to ``b`` over the connection that came about last arrives so late, until this is
        called."""
        return self._change_one(a, b, lambda ends: ends[-1], "delay the newest connection", latency=seconds)

    def _change_one(
        self, a: str, b: str, choose: Callable[[list[End]], End], what: str, **changes: Any
    ) -> Callable[[], None]:
        ends = [end for end in self._between(a, b) if end.host.name == a]
        if not ends:
            return lambda: None
        end, link = choose(ends), self.link(a, b)
        end.link = replace(link, **changes)
        self.scheduler.trace_fault(what, f"{a} -> {b}")

        def release() -> None:
            self.scheduler.trace_fault(f"no more: {what}", f"{a} -> {b}")
            end.link = link
            if not link.held:
                end.release()

        return release

    def cut(self, a: str, b: str) -> None:
        """All connections between two hosts break, and both hear of it. New ones may come about."""
        self.scheduler.trace_fault("cut", f"{a} - {b}")
        ends = self._between(a, b)
        for end in ends:
            end.lose()
        for end in ends:
            end.break_down()

    def half_open(self, a: str, b: str) -> None:
        """Host ``b`` forgets its connections with ``a``, and what it sent there and the link holds; ``a`` hears of it
        when it sends something."""
        self.scheduler.trace_fault("half open", f"{a} - {b}")
        for end in self._between(a, b):
            if end.host.name == b and end.connected:
                end.lose()
                end.break_down()

    def open_ends(self, host: Host) -> list[End]:
        """The ends of connections that are there on a host."""
        return [end for end in self._ends if end.host is host and not end.ended]

    def _between(self, a: str, b: str) -> list[End]:
        self._ends = [e for e in self._ends if not (e.ended and e.other.ended)]
        return [e for e in self._ends if {e.host.name, e.other.host.name} == {a, b}]

    def _died(self, host: Host) -> None:
        """Its system closes what its process had open."""
        self._listeners.pop(host.name, None)
        for end in self._ends:
            if end.host is host:
                end.notify = None
                end.close()

    def connect(self, host: Host, to: str) -> End:
        """Begin to connect: the end is connected later, or has an error."""
        there = self.scheduler.host(to)
        near = End(self.scheduler, host, self.link(host.name, to))
        far = End(self.scheduler, there, self.link(to, host.name))
        near.other, far.other = far, near
        self._ends += (near, far)

        def syn(_: bytes) -> None:
            listener = self._listeners.get(to)
            if listener is None:
                far.closed = True
                far.carry(b"", lambda _: near.break_down(errno.ECONNREFUSED))
                return
            far.connected = True
            far.carry(b"", syn_ack)
            listener.accept(far)

        def syn_ack(_: bytes) -> None:
            near.connected = True
            near.tell()

        near.carry(b"", syn)
        return near
