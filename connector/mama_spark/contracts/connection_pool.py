"""Connections of this process, given to one bridge at a time and kept warm for the next; also the check that file
descriptors are left before a library opens some that it cannot do without.

A stream of small micro-batches opens a bridge each; connecting costs more than their messages. Connections that another
process made, that cannot be used any more or that stayed idle for long are not given out again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import Unavailable

IDLE = 50.0  #: seconds; Spark ends idle Python workers after a minute

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class _Idle(Generic[C]):
    connection: C
    since: float


class ConnectionPool(Generic[C]):
    """Decides under the lock and returns what is to be closed; the I/O happens outside.

    :param usable: may this connection be given out
    :param discard: close connections; must not raise
    """

    def __init__(
        self,
        usable: Callable[[C], bool],
        discard: Callable[[list[C]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usable, self._discard, self._clock = usable, discard, clock
        self._timer: threading.Timer | None = None
        self._idle: dict[Hashable, list[_Idle[C]]] = {}
        self._lock = threading.Lock()
        self._foreign: list[object] = []
        os.register_at_fork(after_in_child=self._forked)

    def take(self, key: Hashable) -> C | None:
        """A warm connection, if there is one."""
        found, dead = self._pick(key)
        self._discard(dead)
        return found

    def _pick(self, key: Hashable) -> tuple[C | None, list[C]]:
        with self._lock:
            dead = self._expired()
            waiting = self._idle.get(key, [])
            while waiting:
                connection = waiting.pop().connection
                if self._usable(connection):
                    return connection, dead
                dead.append(connection)
        return None, dead

    def put(self, key: Hashable, connection: C) -> None:
        """Return a connection; never raises."""
        with self._lock:
            dead = self._expired()
            kept = self._usable(connection)
            if kept:
                self._idle.setdefault(key, []).append(_Idle(connection, self._clock()))
            else:
                dead.append(connection)
        if kept:
            self._sweep_later()
        self._discard(dead)

    def sweep(self) -> None:
        """Close what has been idle for too long."""
        with self._lock:
            dead = self._expired()
        self._discard(dead)

    def _sweep_later(self) -> None:
        """Sweep by one thread, which lives while connections are idle."""
        if self._timer is not None and self._timer.is_alive():
            return

        def run() -> None:
            self._timer = None
            self.sweep()
            if self._idle:
                self._sweep_later()

        self._timer = threading.Timer(IDLE + 1, run)
        self._timer.name, self._timer.daemon = "mama-idle-connections", True
        self._timer.start()

    def clear(self) -> None:
        """Close everything that is idle."""
        with self._lock:
            dead = [idle.connection for waiting in self._idle.values() for idle in waiting]
            self._idle.clear()
        self._discard(dead)

    def _expired(self) -> list[C]:
        old = self._clock() - IDLE
        dead = []
        for key, waiting in list(self._idle.items()):
            kept = [idle for idle in waiting if idle.since >= old and self._usable(idle.connection)]
            dead += [idle.connection for idle in waiting if idle not in kept]
            self._idle[key] = kept
            if not kept:
                del self._idle[key]
        return dead

    def _forked(self) -> None:
        """Set the connections of the parent aside: a fork must neither use nor close them, nor may a destructor."""
        self._lock = threading.Lock()
        self._foreign.append(self._idle)
        self._idle = {}


def require_file_descriptors(count: int, what: str) -> None:
    """Check that file descriptors are left, by opening ``count`` and closing them again.

    libzmq ends the whole process when it gets none for its own threads, and asyncio leaves half an event loop behind.

    :param what: needs them; for the error
    :raises Unavailable: fewer are left
    """
    found: list[int] = []
    try:
        while len(found) < count:
            found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as e:
        raise Unavailable(
            f"{e.strerror}: {what} needs {count} file descriptors, {len(found)} are left; close files and connections, "
            "or raise the limit (ulimit -n)"
        ) from e
    finally:
        for descriptor in found:
            os.close(descriptor)
