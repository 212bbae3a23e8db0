"""Opens ZeroMQ contexts."""

from __future__ import annotations

import zmq

from .file_descriptors import require_file_descriptors

#: A context takes 6 with its first socket (epoll and eventfd of two threads), and each further socket takes one.
_FILE_DESCRIPTORS = 16


def open_context() -> zmq.Context[zmq.Socket[bytes]]:
    """:raises Unavailable: too few file descriptors are left; libzmq would end the process"""
    require_file_descriptors(_FILE_DESCRIPTORS, "ZeroMQ")
    return zmq.Context()
