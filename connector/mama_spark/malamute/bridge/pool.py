"""Connections to brokers, kept open between the tasks of a process (:mod:`mama_spark.contracts.connection_pool`), and
what is known of streams on each.

A broker takes messages for the stream of the client's last WRITE. It may refuse a stream, so messages follow a WRITE
only after the broker has answered one for that stream on this connection; after that, both are sent together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from mama_spark.contracts.errors import NotReady, PublishError, Rejected
from mama_spark.malamute.client.calls import Call, CallFailed, passes, refused
from mama_spark.malamute.client.connection import ClientConnection
from mama_spark.malamute.client.connection_settings import ConnectionSettings, endpoint
from mama_spark.malamute.protocol.commands import StreamWrite

from ...contracts.connection_pool import ConnectionPool

#: Seconds for which a bridge relies on what an earlier user of its connection learned of a stream.
KNOWN_FOR = 60.0
#: WRITEs for new streams that may be pending: each may start an engine.
MAX_PENDING_WRITES = 64
_NEVER = float("inf")


@dataclass(slots=True)
class WritableStream:
    """A stream on one connection; ``call``: the first WRITE, None = answered; ``error``: why the broker refused it."""

    call: Call | None
    since: float
    stored: bool = False
    error: PublishError | None = None


class PooledConnection:
    """One connection, the streams for which a WRITE was sent on it, and the ``current`` one, to which messages go now
    (None = that depends on an answer). Use it with ``connection.changed`` held."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.streams: dict[str, WritableStream] = {}
        self.current: str | None = None
        self._last_write: str | None = None
        self._pending: set[str] = set()  # streams whose WRITE is not answered
        self.epoch = connection.machine.reconnects
        self.warned = False  #: that ids do not travel

    @property
    def usable(self) -> bool:
        return self.connection.connected and self.connection.machine.reconnects == self.epoch

    def renew(self) -> None:
        """The connection was replaced: nothing is known of streams."""
        self.epoch = self.connection.machine.reconnects
        self.streams.clear()
        self._pending.clear()
        self.current = None

    def refresh(self) -> None:
        """Forget streams that were answered for long ago, or refused."""
        old = time.monotonic() - KNOWN_FOR
        self.streams = {name: s for name, s in self.streams.items() if s.since > old and s.error is None and not s.call}
        self._pending.clear()

    def open_stream(self, name: str) -> None:
        """Send WRITE, unless that was done or too many are pending.

        :raises MamaError: not connected
        """
        known = self.streams.get(name)
        if known is not None and not (known.error is not None and known.error.retryable):
            return
        if len(self._pending) < MAX_PENDING_WRITES:
            self.streams[name] = WritableStream(self._write(name), time.monotonic())
            self._pending.add(name)
            self.current = None

    def take_answers(self) -> bool:
        """Process answers to WRITE; True if there were some."""
        news = False
        for name in list(self._pending):
            stream = self.streams[name]
            if stream.call is not None and stream.call.done:
                self._pending.discard(name)
                stream.stored = bool(stream.call.extension.stored)
                if stream.call.error is not None:
                    stream.error = stream_error(name, stream.call.error)
                elif name == self._last_write:
                    self.current = name
                stream.call, news = None, True
        return news

    def switch(self, name: str) -> None:
        """Send the next messages to this stream, for which the broker has answered."""
        if name != self.current:
            self._write(name)
            self.current = name

    def _write(self, name: str) -> Call:
        self._last_write = name
        return self.connection.machine.call(StreamWrite(name.encode()), _NEVER)


def stream_error(stream: str, error: Exception) -> PublishError:
    text = f"stream {stream!r}: {error}"
    if isinstance(error, CallFailed) and not passes(error.code):
        return Rejected(text, error.code)
    return NotReady(text)  # its engine did not start, or the connection was lost


class MalamutePool(ConnectionPool[PooledConnection]):
    def __init__(self) -> None:
        super().__init__(lambda pooled: pooled.usable, _close)

    def checkout(self, settings: ConnectionSettings, timeout: float) -> PooledConnection:
        """An idle connection, or a new one.

        :raises Unavailable: no broker answers
        :raises ConfigError: the login or the client is refused, or a key is none
        """
        pooled = self.take(settings)
        if pooled is None:
            connection = ClientConnection(settings)
            try:
                connection.open(timeout)
            except CallFailed as e:
                raise refused(e.code, f"{','.join(map(endpoint, settings.urls))}: {e}") from e
            pooled = PooledConnection(connection)
        with pooled.connection.changed:
            pooled.refresh()
        return pooled

    def give_back(self, pooled: PooledConnection) -> None:
        """Give a connection back, on which all that was sent is answered; never raises."""
        self.put(pooled.connection.settings, pooled)


def _close(connections: list[PooledConnection]) -> None:
    for pooled in connections:
        pooled.connection.close(1.0 if pooled.usable else 0.0)


POOL = MalamutePool()
