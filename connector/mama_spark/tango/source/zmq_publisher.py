"""ZeroMQ sockets of an event source: PUB for heartbeats, XPUB for events (TG-31).

They never block: messages above the high-water mark of a client are dropped (TG-44). The XPUB socket also receives
the subscription messages of clients. A client may subscribe to one topic several times over one connection, as cppTango
does after a reconnection; so the publisher keeps the connections of each topic, not the number of messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import zmq

from mama_spark.contracts.zmq_connections import (
    Connection,
    WrittenProbe,
    connection_of,
    end_context,
    ended,
    open_context,
)

_MORE, _LAST = zmq.SNDMORE | zmq.DONTWAIT, zmq.DONTWAIT
_SUBSCRIBED, _UNSUBSCRIBED = b"\1", b"\0"  #: first byte of a subscription message; the topic follows
_READ_PERIOD = 1024  #: number of sent events after which waiting subscription messages are read
_MAX_READ = 65_536  #: most subscription messages of one read


class ZmqPublisher:
    """Both sockets, bound. It is not thread-safe: callers hold a lock.

    :param host: IPv4 or IPv6 address
    :param ports: ports of heartbeats and events; 0: the system chooses
    :param hwm: high-water mark: events that may wait for one client
    :raises zmq.ZMQError: an address or a port cannot be bound; all sockets are closed then
    """

    def __init__(self, host: str, ports: tuple[int, int], hwm: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = open_context()
        self._open: list[zmq.Socket[bytes]] = []
        self._probe: WrittenProbe | None = None
        self._subscribers: dict[bytes, set[Connection]] = {}
        self._sent_since_read = 0
        try:
            for kind, port in zip((zmq.PUB, zmq.XPUB), ports, strict=True):
                found = self._context.socket(kind)
                self._open.append(found)
                if kind == zmq.XPUB:  # receive the subscription of each connection, not only the first and last
                    found.setsockopt(zmq.XPUB_VERBOSER, 1)
                found.setsockopt(zmq.LINGER, 0)
                found.setsockopt(zmq.SNDHWM, hwm)
                found.setsockopt(zmq.IPV6, 1 if ":" in host else 0)
                found.bind(f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}")
            self._probe = WrittenProbe(self._context)
        except zmq.ZMQError:
            self.close()
            raise
        self._heartbeats, self._events = self._open

    @property
    def ports(self) -> tuple[int, int]:
        """Ports of heartbeats and events."""
        found = [str(one.getsockopt(zmq.LAST_ENDPOINT), "ascii").rstrip("\0") for one in self._open]  # type: ignore[arg-type]
        heartbeats, events = (int(endpoint.rpartition(":")[2]) for endpoint in found)
        return heartbeats, events

    def send_heartbeat(self, frames: Sequence[bytes]) -> None:
        self._heartbeats.send_multipart(frames, zmq.DONTWAIT)
        self._read_subscriptions()

    def send_events(self, messages: list[list[bytes]]) -> None:
        send = self._events.send  # twice as fast as send_multipart
        for topic, order, call, data in messages:
            send(topic, _MORE)
            send(order, _MORE)
            send(call, _MORE)
            send(data, _LAST)
        self._sent_since_read += len(messages)
        if self._sent_since_read >= _READ_PERIOD:
            self._read_subscriptions()

    def subscribers(self) -> dict[bytes, int]:
        """Topic -> number of connections whose subscription message has arrived; they receive further events."""
        self._read_subscriptions()
        self._forget_ended()
        return {topic: len(connections) for topic, connections in self._subscribers.items()}

    def is_heard(self, topic: bytes) -> bool:
        """Whether a connection had subscribed to a topic when subscription messages were last read."""
        return topic in self._subscribers

    def all_written(self) -> bool:
        """Whether nothing waits for any connection that subscribed to something."""
        self._read_subscriptions()
        self._forget_ended()
        assert self._probe is not None
        return self._probe.all_written({one for found in self._subscribers.values() for one in found})

    def _read_subscriptions(self) -> None:
        self._sent_since_read = 0
        with contextlib.suppress(zmq.Again):
            for _ in range(_MAX_READ):
                frame = self._events.recv(zmq.DONTWAIT, copy=False)
                message = frame.bytes
                what, topic = message[:1], message[1:]
                connection = connection_of(frame)
                if what == _SUBSCRIBED and connection is not None:
                    self._subscribers.setdefault(topic, set()).add(connection)
                elif what == _UNSUBSCRIBED and connection is not None:
                    self._remove(topic, {connection})

    def _forget_ended(self) -> None:
        gone = ended({connection for found in self._subscribers.values() for connection in found})
        if gone:
            for topic in list(self._subscribers):
                self._remove(topic, gone)

    def _remove(self, topic: bytes, connections: set[Connection]) -> None:
        left = self._subscribers.get(topic, set())
        left -= connections
        if not left:
            self._subscribers.pop(topic, None)

    def close(self, linger: float = 0.0) -> bool:
        """Close both sockets; return whether everything was written: only the end of their context tells. Waiting
        events may take ``linger`` seconds; then they are dropped."""
        if self._probe is not None:
            self._probe.close()
        return end_context(self._context, self._open, linger)
