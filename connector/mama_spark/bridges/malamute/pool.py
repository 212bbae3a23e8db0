"""Connections to brokers, kept warm between the tasks of a process (:mod:`mama_spark.bridges.connection_pool`), and
what each knows of streams.

A broker takes messages for the stream that the client said last (WRITE). It may refuse a stream, so nothing is sent
behind a WRITE before the broker has answered one for that stream on this connection; after that, WRITE and messages
go out together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from mama_spark.errors import NotReady, PublishError, Rejected
from mama_spark.malamute.client.calls import Call, CallFailed
from mama_spark.malamute.client.connection import ClientConnection
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol.commands import StatusCode

from ..connection_pool import ConnectionPool

#: Seconds for which a new lease believes what an earlier one was told of a stream.
KNOWN_FOR = 60.0
#: WRITEs for new streams under way at a time: each may start an engine.
MOST_ASKED = 64
_NEVER = float("inf")


@dataclass(slots=True)
class WritableStream:
    """What is known of a stream on one connection.

    :ivar call: the first WRITE; None = answered
    :ivar stored: it is numbered and stored
    :ivar error: why the broker refused it
    """

    call: Call | None
    since: float
    stored: bool = False
    error: PublishError | None = None


class PooledConnection:
    """One link and its streams. Use it with ``link.changed`` held, but for :meth:`close`.

    :ivar streams: those that were asked for on this connection
    :ivar current: the stream that messages go to now; None = that depends on an answer
    """

    def __init__(self, link: ClientConnection) -> None:
        self.link = link
        self.streams: dict[str, WritableStream] = {}
        self.current: str | None = None
        self._said: str | None = None  # by the last WRITE
        self._asked: set[str] = set()  # those of them that wait for an answer
        self.epoch = link.machine.reconnects
        self.warned = False  #: that ids do not travel

    @property
    def usable(self) -> bool:
        return self.link.connected and self.link.machine.reconnects == self.epoch

    def renew(self) -> None:
        """It is another connection: nothing is known of streams."""
        self.epoch = self.link.machine.reconnects
        self.streams.clear()
        self._asked.clear()
        self.current = None

    def refresh(self) -> None:
        """Forget what was told long ago, or refused."""
        old = time.monotonic() - KNOWN_FOR
        self.streams = {name: s for name, s in self.streams.items() if s.since > old and s.error is None and not s.call}
        self._asked.clear()

    def ask(self, name: str) -> None:
        """Ask for a stream, unless that is done or too many are under way.

        :raises MamaError: not connected
        """
        known = self.streams.get(name)
        if known is not None and not (known.error is not None and known.error.retryable):
            return
        if len(self._asked) < MOST_ASKED:
            self.streams[name] = WritableStream(self._write(name), time.monotonic())
            self._asked.add(name)
            self.current = None

    def answered(self) -> bool:
        """Note the answers that came; were there some?"""
        news = False
        for name in list(self._asked):
            stream = self.streams[name]
            if stream.call is not None and stream.call.done:
                self._asked.discard(name)
                stream.stored = bool(stream.call.extension.stored)
                if stream.call.error is not None:
                    stream.error = refusal(name, stream.call.error)
                elif name == self._said:
                    self.current = name
                stream.call, news = None, True
        return news

    def switch(self, name: str) -> None:
        """Messages from here on are for this stream, which was answered for."""
        if name != self.current:
            self._write(name)
            self.current = name

    def _write(self, name: str) -> Call:
        self._said = name
        return self.link.machine.write(name.encode(), _NEVER)


def refusal(stream: str, error: Exception) -> PublishError:
    """What a failed WRITE means for a message of that stream."""
    text = f"stream {stream!r}: {error}"
    if isinstance(error, CallFailed) and error.code != StatusCode.INTERNAL_ERROR:
        return Rejected(text, error.code)
    return NotReady(text)  # its engine did not start, or the connection was lost


class MalamutePool(ConnectionPool[PooledConnection]):
    """Connections by their settings."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda connection: connection.usable, _close, self._look_again, clock)
        self._timer: threading.Timer | None = None

    def lease(self, settings: ConnectionSettings, timeout: float) -> PooledConnection:
        """A connection, warm if there is one.

        :raises Unavailable: nobody answers
        :raises ConfigError: the login is refused, or a key is none
        :raises CallFailed: the broker refuses this client
        """
        connection = self.take(settings)
        if connection is None:
            link = ClientConnection(settings)
            link.open(timeout)
            connection = PooledConnection(link)
        with connection.link.changed:
            connection.refresh()
        return connection

    def give_back(self, connection: PooledConnection) -> None:
        """The lease is over, and all that was sent is answered; never raises."""
        self.put(connection.link.settings, connection)

    def _look_again(self, seconds: float, sweep: Callable[[], None], connection: PooledConnection) -> None:
        """One timer for all; it goes on while connections are idle."""
        if self._timer is not None and self._timer.is_alive():
            return

        def swept() -> None:
            self._timer = None
            sweep()
            if self._idle:
                self._look_again(seconds, sweep, connection)

        self._timer = threading.Timer(seconds, swept)
        self._timer.daemon = True
        self._timer.start()


def _close(connections: list[PooledConnection]) -> None:
    for connection in connections:
        connection.link.close(1.0 if connection.usable else 0.0)


POOL = MalamutePool()
