"""Waiting for ZeroMQ sockets by their descriptors: no message is missed if sockets are drained before polling."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from mama_spark.malamute.zmq_fd_poller import ZmqFdPoller, readable

Socket = zmq.Socket[bytes]


@pytest.fixture
def sockets() -> Iterator[tuple[Socket, Socket, Socket]]:
    """Two servers, and a client of the first."""
    context: Any = zmq.Context()
    made = [context.socket(kind) for kind in (zmq.ROUTER, zmq.PULL, zmq.DEALER)]
    made[0].bind("inproc://one")
    made[2].connect("inproc://one")
    yield made[0], made[1], made[2]
    context.destroy(0)


def test_a_socket_rings_for_what_comes_once_nothing_was_found(sockets: tuple[Socket, Socket, Socket]) -> None:
    router, other, dealer = sockets
    waiter = ZmqFdPoller(router, other)
    assert not readable(router)
    assert not readable(other)
    for n in range(3):
        dealer.send(b"%d" % n)
        assert waiter.wait(60.0) == [router]
        assert router.recv_multipart(zmq.NOBLOCK)[1] == b"%d" % n
        assert not readable(router)
    assert waiter.wait(0) == []


def test_what_came_while_the_socket_was_in_use_is_found_by_looking(sockets: tuple[Socket, Socket, Socket]) -> None:
    router, _, dealer = sockets
    dealer.send(b"first")
    identity = router.recv_multipart()[0]
    for n in range(300):
        dealer.send(b"%d" % n)
        router.send_multipart([identity, b"answer"])  # may take the news that would have rung
        assert readable(router, 60.0)
        assert router.recv_multipart(zmq.NOBLOCK)[1] == b"%d" % n


def test_a_thread_may_wait_for_longer_than_zeromq_can(sockets: tuple[Socket, Socket, Socket]) -> None:
    """A time to live of a month is more milliseconds than a C int has."""
    router, _, dealer = sockets
    sender = threading.Timer(0.05, dealer.send, (b"x",))
    sender.start()
    try:
        assert readable(router, 30 * 86_400.0)
    finally:
        sender.join()
