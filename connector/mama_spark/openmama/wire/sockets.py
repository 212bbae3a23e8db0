"""Makes and attaches the sockets of a peer, and receives from them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from itertools import repeat
from urllib.parse import urlsplit

import zmq

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.zmq_connections import open_context

from .naming import NAMING_TOPIC, NamingFrame
from .naming_client import Announce, NamingAction, NamingClient, PeerChange
from .settings import Endpoint

MAX_FRAME = 64 << 20  #: bytes; whoever sends more is disconnected
MAX_SUBSCRIPTION = 1 << 16  #: bytes of a message that readers send
_MOST_ANNOUNCEMENTS = 4096  #: that are taken at once
_PORTION = 512  #: messages that are pyzmq's Frames at once: these stay in the processor's cache
_RECONNECT, _MAX_RECONNECT = 0.1, 1.0  #: seconds until the first attempt, and at most

Socket = zmq.Socket[bytes]


def make_socket(context: zmq.Context[Socket], kind: int, most: int, high_water_mark: int) -> Socket:
    """A ZeroMQ socket with limits, which reconnects, and which drops unsent messages when it is closed.

    :param most: highest number of bytes of a received message
    :param high_water_mark: highest number of messages that wait, in each direction and connection
    """
    made = context.socket(kind)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.MAXMSGSIZE, most)
    made.setsockopt(zmq.SNDHWM, high_water_mark)
    made.setsockopt(zmq.RCVHWM, high_water_mark)
    made.setsockopt(zmq.RECONNECT_IVL, round(_RECONNECT * 1000))
    made.setsockopt(zmq.RECONNECT_IVL_MAX, round(_MAX_RECONNECT * 1000))
    return made


def make_sender(context: zmq.Context[Socket], high_water_mark: int, heartbeat: float | None) -> Socket:
    """XPUB that tells of each subscription and its end, and drops nothing.

    :param heartbeat: seconds that a reader may be silent; None: for ever
    """
    made = make_socket(context, zmq.XPUB, MAX_SUBSCRIPTION, high_water_mark)
    made.setsockopt(zmq.XPUB_VERBOSER, 1)
    made.setsockopt(zmq.XPUB_NODROP, 1)
    if heartbeat is not None:
        made.setsockopt(zmq.HEARTBEAT_IVL, round(heartbeat * 500))
        made.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(heartbeat * 500))
    return made


def attach(sock: Socket, endpoints: Sequence[Endpoint]) -> str:
    """Bind and connect; where it is bound, empty if it is not.

    :raises Unavailable: an address is in use
    :raises ConfigError: an address cannot be used
    """
    bound = ""
    for address, bind in endpoints:
        try:
            if bind:
                sock.bind(address)
            else:
                sock.connect(address)
        except zmq.ZMQError as e:
            if bind and e.errno in (zmq.EADDRINUSE, zmq.EADDRNOTAVAIL):
                raise Unavailable(f"{address}: {e.strerror}") from e
            raise ConfigError(f"{address}: {e.strerror}") from e
        if bind:
            bound = str(sock.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")
    return bound


def address_towards(endpoint: str) -> str:
    """The address of the interface by which a host is reached: where others of its network reach this one.

    :raises Unavailable: its name is not known
    """
    parts = urlsplit(endpoint)
    try:
        family, _, _, _, address = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            found = str(probe.getsockname()[0])
    except OSError as e:
        raise Unavailable(f"{endpoint}: {e.strerror or e}") from e
    return f"[{found}]" if ":" in found else found


def receive_single(sock: Socket, most: int) -> tuple[list[bytes], int]:
    """Waiting messages of one part each, and the number of others."""
    raws, others = list[bytes](), 0
    for begin in range(0, most, _PORTION):
        wanted = min(_PORTION, most - begin)
        parts = _receive_parts(sock, wanted)
        begins = True
        if not [part for part in parts if part.more]:
            raws += [part.bytes for part in parts]
        else:
            for part in parts:
                if begins and not part.more:
                    raws.append(part.bytes)
                others += begins and part.more
                begins = not part.more
        if len(parts) < wanted:
            break
    return raws, others


def _receive_parts(sock: Socket, most: int) -> list[zmq.Frame]:
    """Parts of messages, the last one whole; fewer than ``most``: there are no more."""
    receive: Callable[..., zmq.Frame] = sock.recv
    parts: list[zmq.Frame] = []
    with contextlib.suppress(zmq.Again):  # what came before it stays in the list
        # as Frames: to ask the socket for RCVMORE takes much longer
        parts.extend(map(receive, repeat(zmq.DONTWAIT, most), repeat(False)))
        while parts and parts[-1].more:  # the rest of the last message is there
            parts.append(receive(zmq.DONTWAIT, copy=False))
    return parts


class NamingSockets:
    """Takes part in the naming service of OZ: receives what others announce, and announces this peer.

    :raises zmq.ZMQError: no more sockets or files
    """

    def __init__(self, me: NamingFrame, servers: int, high_water_mark: int) -> None:
        self.client = NamingClient(me, servers)
        self._context = open_context()
        try:
            self.incoming = make_socket(self._context, zmq.SUB, MAX_SUBSCRIPTION, high_water_mark)
            self._outgoing = make_socket(self._context, zmq.PUB, MAX_SUBSCRIPTION, high_water_mark)
        except zmq.ZMQError:
            self._context.destroy()
            raise
        self.incoming.subscribe(NAMING_TOPIC.encode())

    def serve(self, data: Socket | None, now: float) -> list[PeerChange]:
        """Do what was announced, and what is due; ``data``: the socket that connects to other peers."""
        changes: list[PeerChange] = []
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST_ANNOUNCEMENTS):
                for action in self.client.received(self.incoming.recv(zmq.DONTWAIT), now):
                    self._act(action, data, changes)
        for action in self.client.tick(now):
            self._act(action, data, changes)
        return changes

    def close(self) -> None:
        """Take leave."""
        for action in self.client.leave():
            self._act(action, None, [])
        self._outgoing.close(linger=1000)
        self.incoming.close(linger=0)
        self._context.term()

    def _act(self, action: NamingAction, data: Socket | None, changes: list[PeerChange]) -> None:
        if isinstance(action, PeerChange):
            changes.append(action)
        elif isinstance(action, Announce):
            with contextlib.suppress(zmq.Again):
                self._outgoing.send(action.data, zmq.DONTWAIT)
        elif (sock := self._outgoing if action.sender else data) is not None:
            with contextlib.suppress(zmq.ZMQError):  # what others announce may be no endpoint at all
                (sock.connect if action.connect else sock.disconnect)(action.endpoint)
