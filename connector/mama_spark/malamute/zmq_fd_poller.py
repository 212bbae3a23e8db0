"""To wait for ZeroMQ sockets with one system call, and to receive from them quickly.

``zmq_poll`` looks at every socket before it sleeps and after: eight calls of the system for three sockets, and a
thread that hands a single message on sleeps twice for it. The descriptor of a socket, which is what is waited for in
the end, is enough if one rule is kept: **whoever waits has looked at each socket after its last use** (received, sent)
**and found nothing**, for ZeroMQ rings once, and only for who has found nothing.
"""

from __future__ import annotations

import select
from typing import Any

import zmq


class ZmqFdPoller:
    """Waits for any of these sockets."""

    def __init__(self, *sockets: zmq.Socket[bytes]) -> None:
        self._poll = select.poll()
        self._of: dict[int, zmq.Socket[bytes]] = {}
        for socket in sockets:
            descriptor: Any = socket.getsockopt(zmq.FD)
            self._poll.register(descriptor, select.POLLIN)
            self._of[descriptor] = socket

    def wait(self, milliseconds: int) -> list[zmq.Socket[bytes]]:
        """Those that ring: there may be something to receive, or nothing but news of a connection."""
        return [self._of[descriptor] for descriptor, _ in self._poll.poll(milliseconds)]


def readable(socket: zmq.Socket[bytes], milliseconds: int = 0) -> bool:
    """Something is there to be received, within so many milliseconds; to look costs half of being refused."""
    events: Any = socket.getsockopt(zmq.EVENTS)
    return bool(events & zmq.POLLIN) or (milliseconds > 0 and bool(socket.poll(milliseconds)))


def receive(socket: zmq.Socket[bytes], flags: int = 0) -> list[bytes]:
    """The frames of ``recv_multipart`` in half of its time: a frame knows whether there are more, and to ask the socket
    costs more than to receive one."""
    recv = socket.recv
    frame = recv(flags, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = recv(flags, copy=False)
        frames.append(frame.bytes)
    return frames
