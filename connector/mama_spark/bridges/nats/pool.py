"""Connections of this process, leased to one bridge at a time and kept warm for the next.

A stream of small micro-batches opens a bridge each; connecting costs more than their messages. What was forked from
another process, is down, or stayed idle for long is not given out again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import MamaError
from . import loop as loops
from .link import Link
from .settings import NatsSettings

IDLE = 50.0  #: seconds; Spark ends idle Python workers after a minute

_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Idle:
    link: Link
    since: float


class Pool:
    """Decides under the lock and returns what is to be closed; the I/O happens outside."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: dict[_Key, list[_Idle]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def lease(self, settings: NatsSettings) -> Link:
        """A connection for these settings, warm if there is one.

        :raises ConfigError, Unavailable: there is none and none can be made
        """
        link, dead = self._pick(settings.connection_key)
        _close(dead)
        if link is not None:
            return link
        loop = loops.shared()
        return loop.run(Link.connect(loop, settings), settings.connect_timeout * 2 + 5, "connecting to NATS")

    def _pick(self, key: _Key) -> tuple[Link | None, list[Link]]:
        with self._lock:
            dead = self._expired()
            waiting = self._idle.get(key, [])
            while waiting:
                link = waiting.pop().link
                if link.up and link.loop.alive:
                    return link, dead
                dead.append(link)
        return None, dead

    def give_back(self, settings: NatsSettings, link: Link) -> None:
        """The lease is over; never raises."""
        with self._lock:
            dead = self._expired()
            if link.up and link.loop.alive and not link.closed:
                self._idle.setdefault(settings.connection_key, []).append(_Idle(link, self._clock()))
                with contextlib.suppress(MamaError):
                    link.loop.soon(link.loop.loop.call_later, IDLE + 1, self.sweep)
            else:
                dead.append(link)
        _close(dead)

    def sweep(self) -> None:
        """Close what has been idle for too long."""
        with self._lock:
            dead = self._expired()
        _close(dead)

    def clear(self) -> None:
        """Close everything that is idle."""
        with self._lock:
            dead = [idle.link for waiting in self._idle.values() for idle in waiting]
            self._idle.clear()
        _close(dead)

    def _expired(self) -> list[Link]:
        if self._pid != os.getpid():  # sockets of the parent: not ours to use, nor to close
            self._idle.clear()
            self._pid = os.getpid()
            return []
        old = self._clock() - IDLE
        dead = []
        for key, waiting in list(self._idle.items()):
            dead += [idle.link for idle in waiting if idle.since < old or not idle.link.up]
            self._idle[key] = [idle for idle in waiting if idle.since >= old and idle.link.up]
            if not self._idle[key]:
                del self._idle[key]
        return dead


def _close(links: list[Link]) -> None:
    for link in links:
        if link.loop.alive:
            with contextlib.suppress(MamaError):
                link.loop.soon(lambda one: one.loop.loop.create_task(one.close()), link)


POOL = Pool()


def _after_fork() -> None:
    POOL._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
