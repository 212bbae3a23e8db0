"""Hosts that are connected by TCP, as their systems see it: what is written arrives later, in order, in pieces, or never.

A connection has two ends. Bytes that the system of an end has taken are on their way until the system of the other end
has them; a link may let them wait, and a connection that is reset loses some of them. :class:`SimSocket` stands in the
place of :class:`mama_spark.nats.connection.nonblocking_socket.NonBlockingSocket`; a server is called with what comes.
"""

from __future__ import annotations

import errno
import os
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from mama_spark.nats.protocol.server_pool import Server

from .kernel import Host, Scheduler, Signal, active

_BUFFER = 256 * 1024  #: bytes that are on their way or unread, at most, in one direction
_APART = 1e-9  #: seconds between two arrivals, so that nothing overtakes
Piece = bytes | memoryview


@dataclass(slots=True)
class Link:
    """The way from one host to another. A change counts for what is sent from then on.

    :ivar latency: seconds of the way; ``jitter``: at most so many more, by chance
    :ivar rate: bytes a second; None: as many as there are
    :ivar pieces: how probable it is that what is written is cut at any byte; the rest again
    :ivar held: bytes wait, and connections do not come about: a cable that is out, or a black hole
    """

    latency: float = 0.0005
    jitter: float = 0.0
    rate: float | None = None
    pieces: float = 0.0
    held: bool = False


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
        self._packets: deque[tuple[bytes, Callable[[bytes], None]]] = deque()
        self._held = 0  # arrivals that are due when the link is free again
        self._last_arrival = 0.0

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
        self._packets.append((data, arrived))
        self._travel(len(data))

    def release(self) -> None:
        """The link is not held any more: what waited is on its way."""
        held, self._held = self._held, 0
        for _, (data, _arrived) in zip(range(held), self._packets, strict=False):
            self._travel(len(data))

    def lose(self) -> None:
        """What was not sent is discarded; of what the link carries, the first part arrives, as far as chance wants."""
        waiting = [packet for packet in self._packets if packet[0]]
        kept = 0 if self.link.held or not waiting else self._scheduler.random.randrange(len(waiting) + 1)
        self._packets = deque(waiting[:kept])
        self.on_their_way = sum(len(data) for data, _ in self._packets)

    def _travel(self, size: int) -> None:
        link, scheduler = self.link, self._scheduler
        seconds = link.latency
        if link.jitter:
            seconds += scheduler.random.random() * link.jitter
        if link.rate is not None:
            seconds += size / link.rate
        self._last_arrival = max(scheduler.now + seconds, self._last_arrival + _APART)
        scheduler.call_at(self._last_arrival, self._due)

    def _due(self) -> None:
        if self.link.held:
            self._held += 1
        elif self._packets:
            data, arrived = self._packets.popleft()
            arrived(data)

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

    def cut(self, a: str, b: str) -> None:
        """All connections between two hosts break, and both hear of it. New ones may come about."""
        self.scheduler.trace_fault("cut", f"{a} - {b}")
        ends = self._between(a, b)
        for end in ends:
            end.lose()
        for end in ends:
            end.break_down()

    def half_open(self, a: str, b: str) -> None:
        """Host ``b`` forgets its connections with ``a``, which hears of it when it sends something."""
        self.scheduler.trace_fault("half open", f"{a} - {b}")
        for end in self._between(a, b):
            if end.host.name == b and end.connected:
                end.break_down()

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


class ByteServer(Protocol):
    """A server without I/O. What its calls return goes to connections, by number; None closes one."""

    def opened(self, number: int, now: float) -> Iterable[tuple[int, bytes | None]]: ...
    def received(self, number: int, data: bytes, now: float) -> Iterable[tuple[int, bytes | None]]: ...
    def closed(self, number: int, now: float) -> Iterable[tuple[int, bytes | None]]: ...


class ServerPort:
    """Moves the bytes of a server that listens on a host; it stands still with that.

    :ivar connections: ends by number
    """

    def __init__(self, network: Network, host: Host, server: ByteServer) -> None:
        self._scheduler, self._host, self._server = network.scheduler, host, server
        self.connections: dict[int, End] = {}
        self._unsent: dict[int, bytearray] = {}
        self._last, self._looks, self._new = 0, set[int](), set[int]()
        network.listen(host, self)

    def accept(self, end: End) -> None:
        self._last = number = self._last + 1
        self.connections[number], self._unsent[number] = end, bytearray()
        end.notify = lambda: self._look_soon(number)
        self._new.add(number)
        self._look_soon(number)

    def _look_soon(self, number: int) -> None:
        if number not in self._looks:
            self._looks.add(number)
            self._scheduler.call_at(self._scheduler.now, lambda: self._look(number), self._host)

    def _look(self, number: int) -> None:
        self._looks.discard(number)
        end, now = self.connections.get(number), self._scheduler.now
        if end is None:
            return
        if number in self._new:
            self._new.discard(number)
            self.write(self._server.opened(number, now))
        if end.incoming:
            self.write(self._server.received(number, end.read(), now))
        if number not in self.connections:
            return
        if end.readable:
            self._drop(number)
            self.write(self._server.closed(number, now))
        else:
            self._flush(number)

    def write(self, outputs: Iterable[tuple[int, bytes | None]]) -> None:
        """Send what the server has made."""
        for number, data in outputs:
            if number not in self.connections:
                continue
            if data is None:
                self._flush(number)
                self._drop(number)
            else:
                self._unsent[number] += data
                self._flush(number)

    def _flush(self, number: int) -> None:
        end, unsent = self.connections.get(number), self._unsent.get(number)
        if end is not None and unsent and not end.ended:
            del unsent[: end.send(bytes(unsent))]

    def _drop(self, number: int) -> None:
        end = self.connections.pop(number)
        del self._unsent[number]
        end.notify = None
        end.close()


class SimSocket:
    """See :class:`mama_spark.nats.connection.nonblocking_socket.NonBlockingSocket`; without TLS."""

    def __init__(self, server: Server) -> None:
        scheduler = active()
        self._server, self._unsent = server, bytearray()
        self.queued = self.written = self._came = 0
        self._watched, self._watched_taken = 0, -1
        self.secured = False
        self._end: End = scheduler.network.connect(scheduler.here, server.host)
        scheduler.trace("connects to " + server.host)

    @property
    def connected(self) -> bool:
        return self._end.connected

    @property
    def peer(self) -> str:
        return self._server.address if self._end.connected else ""

    @property
    def unsent(self) -> int:
        return self.queued - self.written + self._end.on_their_way

    def start_tls(self, context: ssl.SSLContext) -> None:
        raise NotImplementedError("the simulation has no TLS")

    def write(self, pieces: Iterable[Piece], size: int) -> None:
        for piece in pieces:
            self._unsent += piece
        self.queued += size

    def flush(self) -> None:
        end = self._end
        end.check()
        if self._unsent and end.connected:
            n = end.send(bytes(self._unsent))
            del self._unsent[:n]
            self.written += n

    def read(self) -> bytes:
        end = self._end
        if end.incoming:
            data = end.read()
            self._came += len(data)
            return data
        end.check()
        if end.finished:
            raise ConnectionResetError("the server closed the connection")
        return b""

    def wait(self, timeout: float) -> None:
        end = self._end
        if timeout > 0 and not (end.closed or end.readable or (self._unsent and end.room)):
            end.changed.wait(timeout, "the socket")

    def watch(self) -> None:
        self._watched, self._watched_taken = self.queued, -1

    def moved(self) -> int:
        if self._watched_taken < 0 and self.written >= self._watched:
            self._watched_taken = self.written
        moved = self.written
        if self._watched_taken >= 0:
            moved = self._watched_taken + min(self.written - self._end.on_their_way, self._watched_taken)
        return self._came + moved

    def discard_unsent(self, on: bool) -> None:
        self._end.resets = on

    def close(self, reset: bool = False) -> None:
        self._end.resets = reset
        self.forget()

    def forget(self) -> None:
        self._unsent.clear()
        self._end.close()
