"""The two sockets of an event source: heartbeats and events (TG-31). They drop what a client's high-water mark does not
hold, and never wait (TG-44). The one of events knows who hears what."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

import zmq

_MORE, _LAST = zmq.SNDMORE | zmq.DONTWAIT, zmq.DONTWAIT
_COMES, _LEAVES = b"\1", b"\0"  #: what a subscriber says begins so; the topic follows
_OFTEN = 1024  #: events between two looks at what subscribers said, which waits in memory until then
_MOST = 65_536  #: subscriptions that are taken at one look


class ZmqPublisher:
    """Both sockets, listening. Whoever uses it holds a lock.

    :param host: an address, of IPv4 or IPv6
    :param ports: of heartbeats and events; 0 = the system chooses
    :param hwm: events that may wait for one client
    :raises zmq.ZMQError: an address or a port cannot be had; then nothing is open
    """

    def __init__(self, host: str, ports: tuple[int, int], hwm: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._open: list[zmq.Socket[bytes]] = []
        self._heard: Counter[bytes] = Counter()
        self._unlooked = 0
        try:
            for kind, port in zip((zmq.PUB, zmq.XPUB), ports, strict=True):
                found = self._context.socket(kind)
                self._open.append(found)
                if kind == zmq.XPUB:
                    found.setsockopt(zmq.XPUB_VERBOSER, 1)  # of each connection, not of the first and the last alone
                found.setsockopt(zmq.LINGER, 0)
                found.setsockopt(zmq.SNDHWM, hwm)
                found.setsockopt(zmq.IPV6, 1 if ":" in host else 0)
                found.bind(f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}")
        except zmq.ZMQError:
            self.close()
            raise
        self._beats, self._events = self._open

    @property
    def ports(self) -> tuple[int, int]:
        """Of heartbeats and events."""
        found = [str(one.getsockopt(zmq.LAST_ENDPOINT), "ascii").rstrip("\0") for one in self._open]  # type: ignore[arg-type]
        beats, events = (int(place.rpartition(":")[2]) for place in found)
        return beats, events

    def beat(self, frames: Sequence[bytes]) -> None:
        """Send a heartbeat."""
        self._beats.send_multipart(frames, zmq.DONTWAIT)
        self._look()

    def send(self, messages: list[list[bytes]]) -> None:
        """Send events, four frames each."""
        send = self._events.send  # twice as fast as send_multipart
        for topic, order, call, data in messages:
            send(topic, _MORE)
            send(order, _MORE)
            send(call, _MORE)
            send(data, _LAST)
        self._unlooked += len(messages)
        if self._unlooked >= _OFTEN:
            self._look()

    def heard(self) -> Counter[bytes]:
        """Topic -> connections whose subscription to just that has arrived: they get what is sent from now on."""
        self._look()
        return self._heard

    def _look(self) -> None:
        self._unlooked = 0
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST):
                said = self._events.recv(zmq.DONTWAIT)
                what, topic = said[:1], said[1:]
                if what == _COMES:
                    self._heard[topic] += 1
                elif what == _LEAVES and self._heard[topic] > 1:
                    self._heard[topic] -= 1
                elif what == _LEAVES:
                    del self._heard[topic]

    def close(self) -> None:
        for found in self._open:
            found.close(linger=0)
        self._context.term()
