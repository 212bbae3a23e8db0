"""Waits for ZeroMQ sockets with one system call, and receives from them quickly.

``zmq_poll`` checks every socket before and after it sleeps: eight system calls for three sockets, and a thread that
forwards a single message sleeps twice for it. Polling the sockets' file descriptors is enough under one condition:
``ZMQ_FD`` is edge-triggered, so **drain each socket after its last use** (receive, send) **before polling again**.
"""

from __future__ import annotations

import math
import select
from typing import Any

import zmq

#: Milliseconds: ZeroMQ takes a C int, which is less than a time to live of 25 days.
_LONGEST_WAIT_MS = 2**31 - 1


class ZmqFdPoller:
    def __init__(self, *sockets: zmq.Socket[bytes]) -> None:
        self._poll = select.poll()
        self._socket_by_descriptor: dict[int, zmq.Socket[bytes]] = {}
        for socket in sockets:
            descriptor: Any = socket.getsockopt(zmq.FD)
            self._poll.register(descriptor, select.POLLIN)
            self._socket_by_descriptor[descriptor] = socket

    def wait(self, timeout: float) -> list[zmq.Socket[bytes]]:
        """Sockets with a ready descriptor, within ``timeout`` seconds: a message, or only an event of a connection."""
        found = self._poll.poll(math.ceil(timeout * 1000))  # to wake too early would be to look again and again
        return [self._socket_by_descriptor[descriptor] for descriptor, _ in found]


def readable(socket: zmq.Socket[bytes], timeout: float = 0.0) -> bool:
    """Whether a message can be received within ``timeout`` seconds, or 24 days; cheaper than a ``recv`` that fails."""
    events: Any = socket.getsockopt(zmq.EVENTS)
    if events & zmq.POLLIN or timeout <= 0:
        return bool(events & zmq.POLLIN)
    return bool(socket.poll(int(min(timeout * 1000, _LONGEST_WAIT_MS))))


def receive(socket: zmq.Socket[bytes], flags: int = 0) -> list[bytes]:
    """The frames of ``recv_multipart``, twice as fast: reads the MORE flag of the frame, as a query of the socket costs
    more."""
    recv = socket.recv
    frame = recv(flags, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = recv(flags, copy=False)
        frames.append(frame.bytes)
    return frames
