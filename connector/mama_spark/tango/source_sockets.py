"""The two sockets of an event source: heartbeats and events (TG-31). They drop what a client's high-water mark does not
hold, and never wait (TG-44)."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

_MORE, _LAST = zmq.SNDMORE | zmq.DONTWAIT, zmq.DONTWAIT


class Outlet:
    """Both sockets, listening. Whoever uses it holds a lock.

    :param host: an address, of IPv4 or IPv6
    :param ports: of heartbeats and events; 0 = the system chooses
    :param hwm: events that may wait for one client
    :raises zmq.ZMQError: an address or a port cannot be had; then nothing is open
    """

    def __init__(self, host: str, ports: tuple[int, int], hwm: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._open: list[zmq.Socket[bytes]] = []
        try:
            for port in ports:
                found = self._context.socket(zmq.PUB)
                self._open.append(found)
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

    def send(self, messages: list[list[bytes]]) -> None:
        """Send events, four frames each."""
        send = self._events.send  # twice as fast as send_multipart
        for topic, order, call, data in messages:
            send(topic, _MORE)
            send(order, _MORE)
            send(call, _MORE)
            send(data, _LAST)

    def close(self) -> None:
        for found in self._open:
            found.close(linger=0)
        self._context.term()
