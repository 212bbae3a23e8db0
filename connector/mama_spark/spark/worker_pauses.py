"""Takes two pauses away from Spark's Python workers, which are long for a small micro-batch.

A worker that Spark uses again collects all its garbage after each task, each planning and each commit, before it takes
the next one. It visits every object of every imported module, which takes longer than to publish a small micro-batch,
and Spark waits for it when the next micro-batch follows at once.

Spark's JVM sends the command of a task and its first rows one after the other over TCP, without ``TCP_NODELAY``: the
rows wait until the command is acknowledged. A kernel acknowledges at once only what the process answers; a worker has
nothing to answer yet, so the rows came 40 ms later, in each task.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import sys
from typing import Any

from .plain_errors import in_worker

_last_count = _frozen_count = 0
#: File descriptors of the connections to the JVM, of the process of this id.
_connections: tuple[int, tuple[int, ...]] = (0, ())
#: Linux alone has it.
_TCP_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


def exempt_modules() -> None:
    """At the beginning of each piece of work that Spark gives to a worker. Elsewhere, nothing happens.

    What exists is exempted once the work before has imported nothing new: at this moment the worker has just collected,
    so no garbage is kept, and what comes later is collected as ever. A worker that imports more is exempted again.
    """
    global _last_count, _frozen_count
    if not in_worker():
        return
    count = len(sys.modules)
    if count == _last_count and count != _frozen_count:
        gc.freeze()
        _frozen_count = count
    _last_count = count


class TaskObject:
    """Base of what Spark sends to its workers as part of a task's command. When it arrives there, the command is
    acknowledged, for which the JVM waits before it sends rows."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if in_worker():
            acknowledge_at_once()


def acknowledge_at_once() -> None:
    """Have the kernel acknowledge what the JVM has sent, and what comes while this process sends nothing."""
    global _connections
    if _TCP_QUICKACK is None:
        return
    if _connections[0] != os.getpid():
        # the first task of this process: it has opened no connection of its own yet
        _connections = os.getpid(), tuple(_tcp_connections())
    for fd in _connections[1]:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
            one.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, 1)


def _tcp_connections() -> list[int]:
    """One file descriptor of each TCP connection of this process."""
    found: dict[int, int] = {}
    names: list[str] = []
    with contextlib.suppress(OSError):  # without /proc, rows wait as they always did
        names = os.listdir("/proc/self/fd")
    for name in names:
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and status.st_ino not in found:
                with socket.socket(fileno=os.dup(int(name))) as one:
                    one.getpeername()
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                        found[status.st_ino] = int(name)
    return list(found.values())
