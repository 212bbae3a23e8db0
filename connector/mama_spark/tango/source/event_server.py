"""Event server: the sockets and threads of an event source, and the lock of its event supplier.

It connects the :class:`~mama_spark.tango.source.giop_server.GiopServer` (calls), the
:class:`~mama_spark.tango.source.zmq_publisher.ZmqPublisher` (heartbeats and events) and the
:class:`~mama_spark.tango.source.event_supplier.EventSupplier` (decides what is sent).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.options.urls import on_all_interfaces
from mama_spark.tango.giop import messages as giop
from mama_spark.tango.giop.cdr import CdrReader
from mama_spark.tango.idl.negotiation import EndpointPair
from mama_spark.tango.topics import BadEndpoint, check_endpoint

from .device_servant import DeviceServant
from .dserver_servant import Caller, Identity
from .event_channel import Frames
from .event_supplier import EventSupplier
from .giop_server import GiopServer
from .zmq_publisher import ZmqPublisher

logger = logging.getLogger(__name__)


class EventServer:
    """Starts and stops the sockets of an event source, and sends its events.

    :param host: address to listen at
    :param ports: ports of calls, heartbeats and events; 0: the system chooses
    :param hwm: high-water mark of the sockets: events that may wait for one client
    :param host_name: host in topics
    :param advertise: hosts or pairs of endpoints that clients connect to for events, instead of the address that they
        called; the preferred one, then alternates (TG-33)
    :ivar host_name: name of the machine
    :ivar sent: number of messages that were passed to the event socket, duplicates included
    :ivar heard: number of these that a connection had subscribed to
    :raises ConfigError: an endpoint in ``advertise`` is invalid
    """

    def __init__(
        self,
        supplier: EventSupplier,
        host: str,
        ports: tuple[int, int, int],
        hwm: int,
        host_name: str,
        advertise: Sequence[str | EndpointPair],
    ) -> None:
        self._supplier, self._lock = supplier, threading.RLock()
        self.host_name = host_name
        self._host, self._ports, self._hwm = host, ports, hwm
        self._advertise = tuple(advertise)
        for endpoint in (end for one in self._advertise for end in _pair_of(one, (1, 1))):
            try:
                check_endpoint(endpoint)
            except BadEndpoint as error:
                raise ConfigError(f"this endpoint cannot be advertised: {error}") from None
        self._servant = DeviceServant(supplier, Identity(host_name, hwm))
        self._publisher: ZmqPublisher | None = None
        self._giop_server: GiopServer | None = None
        self._event_ports = (0, 0)
        self.sent = self.heard = 0

    # --- start and stop --------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen. May be called again after :meth:`close`; then counters start again, and values stay.

        :raises Unavailable: an address or a port cannot be bound
        """
        if self.running:
            return self
        giop_server: GiopServer | None = None
        try:
            host = "0.0.0.0" if on_all_interfaces(self._host) else socket.gethostbyname(self._host)
            giop_server = GiopServer(self, host, self._ports[0])
            publisher = ZmqPublisher(host, self._ports[1:], self._hwm)
        except (OSError, zmq.ZMQError) as error:
            if giop_server is not None:
                giop_server.stop()
            raise Unavailable(f"an event source cannot listen at {self._host}, ports {self._ports}: {error}") from None
        with self._lock:
            self._publisher, self._giop_server, self._event_ports = publisher, giop_server, publisher.ports
            self._supplier.reset(f"{self.host_name}:{giop_server.port}")
        giop_server.start()
        if on_all_interfaces(self._host):
            logger.warning(
                "clients are served on all interfaces, and Tango has no login: whoever reaches this machine can read. "
                "Name one interface, or let a firewall decide"
            )
        return self

    def close(self, linger: float = 5.0) -> bool:
        """Stop listening; may be called twice. Clients notice missing heartbeats.

        :param linger: seconds to wait until clients have taken what was sent; the rest is dropped
        :returns: whether the system took everything that was sent
        """
        with self._lock:
            giop_server, self._giop_server = self._giop_server, None
        if giop_server is None:
            return True
        giop_server.stop()
        with self._lock:
            publisher, self._publisher = self._publisher, None
        return publisher is None or publisher.close(linger)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._giop_server is not None

    @property
    def port(self) -> int:
        """Port of calls; 0 while it is closed."""
        return self._giop_server.port if self._giop_server is not None else 0

    @property
    def _address(self) -> str:
        """``host:port`` that clients call."""
        return f"{self.host_name if on_all_interfaces(self._host) else self._host}:{self.port}"

    def endpoints(self, local_host: str = "127.0.0.1") -> tuple[EndpointPair, ...]:
        """Endpoints that clients connect to for heartbeats and events (TG-08, TG-33).

        :param local_host: local address of the connection over which a client called
        """
        ports = self._event_ports
        if self._advertise:
            return tuple(_pair_of(one, ports) for one in self._advertise)
        if on_all_interfaces(self._host):
            return (_pair_of(local_host.removeprefix("::ffff:"), ports),)
        return (_pair_of(socket.gethostbyname(self._host), ports),)

    # --- with the lock held ----------------------------------------------------------------------------------

    def send(self, messages: list[Frames]) -> int:
        """Send events; returns the number of messages, 0 unless it runs."""
        publisher = self._publisher
        if publisher is None or not messages:
            return 0
        publisher.send_events(messages)
        self.sent += len(messages)
        self.heard += sum(publisher.is_heard(frames[0]) for frames in messages)
        return len(messages)

    def subscribers(self) -> dict[bytes, int]:
        """Topic -> number of connections that subscribed to it."""
        return {} if self._publisher is None else self._publisher.subscribers()

    def is_writable(self) -> bool:
        """Whether no client holds events back now: the system takes more for each of them."""
        with self._lock:
            return self._publisher is None or self._publisher.is_writable()

    # --- RequestHandler, in the thread of the GIOP server ----------------------------------------------------

    def call(self, request: giop.GiopRequest, reader: CdrReader, client_host: str, local_host: str) -> giop.Body:
        """Execute a call of a client; see :class:`RequestHandler`."""
        caller = Caller(client_host, self.endpoints(local_host))
        with self._lock:
            return self._servant.execute(request, reader, caller, time.monotonic())

    def has(self, key: bytes) -> bool:
        """Whether there is an object with this key."""
        with self._lock:
            return self._servant.has(key)

    def tick(self) -> float | None:
        """Send heartbeats and events that are due; returns the seconds until the next deadline, None if there is
        none."""
        with self._lock:
            now = time.monotonic()
            for frames in self._supplier.due_heartbeats(now):
                if self._publisher is not None:
                    self._publisher.send_heartbeat(frames)
            self.send(self._supplier.due_events(now))
            deadline = self._supplier.next_deadline()
        return None if deadline is None else deadline - time.monotonic()


def _pair_of(host: str | EndpointPair, ports: tuple[int, int]) -> EndpointPair:
    return EndpointPair(*(f"tcp://{host}:{port}" for port in ports)) if isinstance(host, str) else host
