"""Makes the I/O thread of a ZeroMQ context stand still."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import zmq
from mama_spark.testing.waiting import eventually


@contextmanager
def held(context: zmq.Context[Any]) -> Iterator[None]:
    """It waits for somebody who takes its event about a connection that it has accepted."""
    listener = context.socket(zmq.REP)
    listener.monitor("inproc://held", zmq.EVENT_ACCEPTED)
    port = listener.bind_to_random_port("tcp://127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as client:
        eventually(lambda: client.getsockname() in map(_peer, os.listdir("/proc/self/fd")), "it is accepted")
        try:
            yield
        finally:
            events = context.socket(zmq.PAIR)
            events.connect("inproc://held")
            events.recv_multipart()
            listener.monitor(None, 0)
            for one in (events, listener):
                one.close(linger=0)


def _peer(descriptor: str) -> object:
    with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as found:
        return found.getpeername()
    return None
