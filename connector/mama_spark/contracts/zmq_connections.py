"""ZeroMQ contexts, and connections of sockets that send to whoever subscribes: whose they are, and whether all was
written.

libzmq does not tell how much waits for a connection. The system does say whether it takes more for it, and libzmq
writes as long as that is so; and a context ends when all was written, or the time for that is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterable
from typing import Any

import zmq

from .connection_pool import require_file_descriptors

#: A context takes 6 with its first socket (epoll and eventfd of two threads), and each further socket takes one.
_FILE_DESCRIPTORS = 16
Connection = tuple[int, object]  #: file descriptor and address of the client
TIMER = 0.02  #: seconds that a timer of libzmq may be early


def open_context() -> zmq.Context[zmq.Socket[bytes]]:
    """:raises Unavailable: too few file descriptors are left; libzmq would end the process"""
    require_file_descriptors(_FILE_DESCRIPTORS, "ZeroMQ")
    return zmq.Context()


def connection_of(frame: zmq.Frame) -> Connection | None:
    """Connection over which a subscription message arrived; None: it has ended."""
    try:
        descriptor = int(frame.get(zmq.SRCFD))
    except (zmq.ZMQError, ValueError):  # made by the socket itself, for a connection that has ended
        return None
    peer = _peer(descriptor)
    return None if peer is None else (descriptor, peer)


def ended(connections: Iterable[Connection]) -> set[Connection]:
    """Those that have ended: their own messages about that do not name them."""
    return {one for one in connections if _peer(one[0]) != one[1]}


def all_writable(connections: Iterable[Connection]) -> bool:
    """Whether the system takes more for each of them: then libzmq, too, holds nothing back for one of them, but for
    what it is writing at this moment."""
    poller, copies = select.poll(), list[socket.socket]()
    try:
        for descriptor, _ in connections:
            with contextlib.suppress(OSError):
                copies.append(socket.socket(fileno=os.dup(descriptor)))
                poller.register(copies[-1], select.POLLOUT)
        return len(poller.poll(0)) == len(copies)
    finally:
        for copy in copies:
            copy.close()


def end_context(context: zmq.Context[Any], sockets: Iterable[zmq.Socket[Any]], linger: float) -> bool:
    """Close the sockets of a context and end it; whether everything was written.

    :param linger: seconds that waiting messages may take; then they are dropped
    """
    for one in sockets:
        one.close(linger=round(linger * 1000))
    began = time.monotonic()
    context.term()
    return time.monotonic() - began < linger - TIMER


def _peer(descriptor: int) -> object:
    """Address of the client of a connection of ZeroMQ; None: it has ended. A later connection may have the same
    descriptor, but not the same address."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            return found.getpeername()
    except OSError:
        return None
