"""A name server of OZ: a proxy that gives each peer what the others announce.

Peers subscribe at its known port, and each new subscriber is greeted with a welcome, which has the address that
announcements are sent to. It keeps no state, so a restart loses nothing: peers announce themselves each second.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

import zmq

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.zmq_connections import open_context
from mama_spark.openmama.wire.naming import NAMING_TOPIC, WELCOME, NamingFrame, encode_naming

MAX_FRAME = 1 << 16
_POLL = 0.1  #: seconds
_BURST = 1000  #: frames forwarded between two looks at the other socket
_TOPIC = NAMING_TOPIC.encode()

Socket = zmq.Socket[bytes]


class NameServer:
    """Made closed; :meth:`open` binds it. One thread calls it at a time, but :meth:`run` ends by ``stop`` only.

    :param host: address of an interface; ``*``: all of them, and then ``advertise`` is needed
    :param port: 0: a free one
    :param advertise: host that announcements are sent to
    """

    def __init__(self, host: str, port: int, advertise: str | None = None) -> None:
        if host == "*" and advertise is None:
            raise ConfigError("a name server at all interfaces must tell peers one address: give --advertise HOST")
        self._host, self._port, self._advertise = host, port, advertise
        self._context: zmq.Context[Socket] | None = None
        self._frontend: Socket | None = None
        self._backend: Socket | None = None

    @property
    def address(self) -> str:
        return f"tcp://{self._host}:{self._port}"

    def open(self) -> None:
        """Open and bind the sockets that peers connect to.

        :raises Unavailable: the port is in use, or the address belongs to another machine
        """
        context = self._context = open_context()
        try:
            frontend, backend = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
            for sock in (frontend, backend):
                sock.setsockopt(zmq.LINGER, 0)
                sock.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
            self._frontend, self._backend = frontend, backend
            frontend.bind(f"tcp://{self._host}:*")
            port = str(frontend.get_string(zmq.LAST_ENDPOINT)).rstrip("\0").rpartition(":")[2]
            endpoint = f"tcp://{self._advertise or self._host}:{port}"
            welcome = NamingFrame(WELCOME, "mama-nsd", socket.gethostname()[:64], os.getpid(), "", endpoint)
            backend.setsockopt(zmq.XPUB_WELCOME_MSG, encode_naming(welcome))
            backend.bind(f"tcp://{self._host}:{self._port or '*'}")
            bound = str(backend.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")
            self._port = int(bound.rpartition(":")[2])
        except zmq.ZMQError as e:
            self.close()
            raise Unavailable(f"{self.address}: {e.strerror}") from e

    def run(self, stop: Callable[[], bool]) -> None:
        assert self._frontend is not None
        assert self._backend is not None
        poller = zmq.Poller()
        poller.register(self._frontend, zmq.POLLIN)
        poller.register(self._backend, zmq.POLLIN)
        while not stop():
            if poller.poll(round(_POLL * 1000)):
                self._forward_subscriptions(self._frontend, self._backend)
                self._forward_announcements(self._frontend, self._backend)

    def _forward_subscriptions(self, frontend: Socket, backend: Socket) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(_BURST):
                parts = backend.recv_multipart(zmq.DONTWAIT)
                if len(parts) == 1 and parts[0][:1] in (b"\0", b"\1"):
                    frontend.send(parts[0], zmq.DONTWAIT)

    def _forward_announcements(self, frontend: Socket, backend: Socket) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(_BURST):
                parts = frontend.recv_multipart(zmq.DONTWAIT)
                if len(parts) == 1 and parts[0].startswith(_TOPIC):
                    backend.send(parts[0], zmq.DONTWAIT)

    def close(self) -> None:
        """Close the sockets; may be repeated."""
        for sock in (self._frontend, self._backend):
            if sock is not None:
                sock.close()
        if self._context is not None:
            self._context.term()
        self._context = self._frontend = self._backend = None
