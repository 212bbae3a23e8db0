"""ZeroMQ contexts, and connections of sockets that send to subscribers: whose they are, and whether all was written.

libzmq does not tell how much waits for a connection. The system tells whether it takes more for one, and how much it
has got for it; and a context ends when all was written, or the time for that is over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
import uuid
from collections.abc import Collection, Iterable
from typing import Any

import zmq

from .connection_pool import require_file_descriptors

#: A context takes 6 with its first socket (epoll and eventfd of two threads), and each further socket takes one.
_FILE_DESCRIPTORS = 16
Connection = tuple[int, object]  #: file descriptor and address of the client
TIMER = 0.02  #: seconds that a timer of libzmq may be early
_PATIENCE = 0.02  #: seconds in which a pass of a thread that has a processor is over
_SERVED = 128  #: half of the sockets that libzmq serves in one pass
_WRITTEN = struct.Struct("=144xI52xQQ")  #: of Linux' tcp_info: bytes that wait to be sent, sent, and sent again


def open_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A new ZeroMQ context.

    :raises Unavailable: too few file descriptors are left; libzmq would end the process
    """
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
    """The ended connections, whose own messages about that do not name them."""
    return {one for one in connections if _peer(one[0]) != one[1]}


class WrittenProbe:
    """Tells whether all was written that a context has sent. Its messages to itself go through the only I/O thread of
    the context: what comes back was passed on by a thread that runs.

    :raises zmq.ZMQError: no more sockets or files
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._near, self._far = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._awaited = False
        address = f"ipc://@mama-spark-{uuid.uuid4().hex}"
        try:
            self._near.bind(address)
            self._far.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    def all_written(self, connections: Collection[Connection]) -> bool:
        """Whether nothing waits for any of these. Nobody else may send meanwhile. In each pass through its sockets a
        thread writes what it has for a socket to which the system takes more: a whole pass without writing shows that
        it has nothing."""
        if not connections:
            return True
        if not self._answered() or (before := _written(connections)) is None:
            return False
        # the first pass may have begun before we looked, and be over for others than our socket
        passes = 2 + len(connections) // _SERVED
        return all(self._pass() for _ in range(passes)) and _written(connections) == before

    def _pass(self) -> bool:
        try:
            self._near.send(b"", zmq.DONTWAIT)
        except zmq.Again:  # the thread has not even connected our two sockets
            return False
        self._awaited = True
        return self._answered()

    def _answered(self) -> bool:
        if self._awaited and self._far.poll(round(_PATIENCE * 1000)):
            self._far.recv()
            self._awaited = False
        return not self._awaited

    def close(self) -> None:
        """Close both sockets; may be repeated."""
        self._near.close(linger=0)
        self._far.close(linger=0)


def _written(connections: Iterable[Connection]) -> list[int] | None:
    """Bytes that the system has got for each of them that is there; None: it takes no more for one now, or does not
    tell (before Linux 4.19, or where no more files can be opened)."""
    poller, found = select.poll(), list[int]()
    with contextlib.ExitStack() as copies:
        try:
            for one in filter(None, (_copy(descriptor) for descriptor, _ in connections)):
                copy = copies.enter_context(one)
                told = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WRITTEN.size)
                waiting, sent, again = _WRITTEN.unpack(told)
                found.append(waiting + sent - again)
                poller.register(copy, select.POLLOUT)
        except (OSError, struct.error):
            return None
        return found if len(poller.poll(0)) == len(found) else None


def _copy(descriptor: int) -> socket.socket | None:
    """Of the socket with this descriptor; None: it has none any more.

    :raises OSError: no more files can be opened
    """
    try:
        copy = os.dup(descriptor)
    except OSError as e:
        if e.errno != errno.EBADF:
            raise
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:  # it is no socket
        os.close(copy)
        return None


def end_context(context: zmq.Context[Any], sockets: Iterable[zmq.Socket[Any]], linger: float) -> bool:
    """Close the sockets of a context and end it; return whether everything was written.

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
    found = _copy(descriptor)
    if found is None:
        return None
    with found:
        try:
            return found.getpeername()
        except OSError:
            return None
