"""The pooled connection of a log bridge, and the subscriptions that read over it."""

from __future__ import annotations

import math
import time

from mama_spark.contracts.errors import ClientClosed, ConfigError, Unavailable

from ..connection.pool import POOL
from ..connection.socket_connection import SocketConnection
from ..jetstream.answers import ApiError, StreamInfo
from ..jetstream.client import JetStream
from ..protocol.acks import AckColumns, Reply
from ..settings import NatsSettings
from .consumer_course import SubscriptionBroken
from .pull_subscription import PullSubscription

#: Seconds for a new leader to apply messages of other replicas. If it is still behind, the stream was restored.
_CATCH_UP = 5.0


class LogConnection:
    """Connection whose events go to the open subscriptions (a ``ConnectionListener``).

    :param timeout: seconds without an answer after which :class:`~mama_spark.contracts.errors.Unavailable` is raised
    """

    def __init__(self, settings: NatsSettings, timeout: float = 30.0) -> None:
        self.settings, self.timeout = settings, timeout
        self.api = JetStream(self.connection, timeout)
        self.subscriptions: set[PullSubscription] = set()
        self._connection: SocketConnection | None = None

    def connect(self) -> None:
        """Connect, without a request to JetStream."""
        self._use(POOL.checkout(self.settings))

    def _use(self, connection: SocketConnection) -> SocketConnection:
        self._connection = connection
        connection.listener = self
        return connection

    def connection(self) -> SocketConnection:
        """The connection; a new one if the last was closed for good. ClientClosed: not open."""
        if self._connection is None:
            raise ClientClosed("the log bridge is not open")
        if self._connection.closed:
            return self._use(POOL.checkout(self.settings))
        return self._connection

    def stream(self, name: str, read: tuple[str, int] = ("", 0), **details: bool) -> StreamInfo:
        """State of the stream; if its last sequence fell, waits some seconds for a leader that has more.

        :param read: identity, and a sequence of it that the caller has read
        :raises ConfigError: there is no such stream, or the permissions hide it
        :raises Unavailable: no leader answers
        """
        found, key = self._ask(name, details), f"the last sequence of stream {name!r}"
        known = (read, self.connection().cached(key) or read)
        last = max((last for created, last in known if created == found.created), default=0)
        if found.replicas > 1 and found.last < last:
            found = self.stream_with(name, last, min(_CATCH_UP, self.timeout / 2), **details)
        self.connection().cache(key, (found.created, found.last))
        return found

    def stream_with(self, name: str, sequence: int, patience: float = math.inf, **details: bool) -> StreamInfo:
        """State of the stream from a leader that has this sequence. A new leader answers before it has applied all
        messages of others, and without a leader any replica answers (nats-server 2.15).

        :param patience: seconds after which a leader that lacks it is believed
        :raises Unavailable: no leader has it within the time limit
        """
        behind = dict[tuple[str | None, str], float]()  # when a leader first lacked it

        def look(_: float) -> StreamInfo:
            found, now = self._ask(name, details), time.monotonic()
            since = behind.setdefault((found.leader, found.leads_since), now)
            if not found.led or (found.last < sequence and now - since < patience):
                raise Unavailable(f"its leader, {found.leader}, is at sequence {found.last} and lacks {sequence}")
            return found

        return self.api.retry(f"the read of stream {name!r}", look)

    def decided_last(self, name: str, topic: str, patience: float | None = None) -> int:
        """See :meth:`.BatchLedger.decided_last`; ``topic``: a topic that the stream takes."""
        return self.api.decided_last(topic, lambda: self.stream(name), patience)

    def _ask(self, name: str, details: dict[str, bool]) -> StreamInfo:
        try:
            found = self.api.stream(name, **details)
        except ApiError as e:
            raise ConfigError(f"stream {name!r}: {e}") from e
        if found is None:
            raise ConfigError(f"there is no stream {name!r}")
        return found

    # --- events of the connection, on the thread that drives it -----------------------------------------------

    def on_acks(self, columns: list[AckColumns]) -> None:
        """Nothing is published here."""

    def on_reply(self, subject: bytes, reply: Reply) -> None:
        """Nothing is published here."""

    def on_written(self, size: int) -> None:
        """Nothing is published here."""

    def on_reconnected(self) -> None:
        """Readers subscribe again by themselves."""

    def on_denied(self, kind: str, subject: str, exact: bool) -> None:
        for subscription in list(self.subscriptions):
            subscription.on_denied(kind, subject)

    def on_disconnected(self, why: str = "") -> None:
        self._fail("the connection to NATS was lost")

    def _fail(self, text: str) -> None:
        for subscription in list(self.subscriptions):
            subscription.fail(SubscriptionBroken(text))

    # --- the end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._fail("the log bridge was closed")
        if connection is not None:
            connection.listener = None
            POOL.give_back(self.settings, connection)
