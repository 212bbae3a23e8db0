"""JetStream streams as logs: :mod:`mama_spark.record_log` over one leased connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from mama_spark.errors import ClientClosed, ConfigError

from ..connection.connection import Connection
from ..connection.pool import POOL
from ..jetstream.api import Api
from ..jetstream.streams import StreamCache, check_jetstream
from ..protocol.acks import AckColumns, Reply
from ..settings import NatsSettings
from .pull_subscription import PullSubscription, SubscriptionBroken
from .stream_log import NatsLog

__all__ = ["NatsLog", "NatsLogs"]


class NatsLogs:
    """See :class:`~mama_spark.record_log.RecordLogBridge`.

    :param timeout: seconds that nobody may answer before :class:`~mama_spark.errors.Unavailable`
    :param headers: False: records come without their headers
    """

    def __init__(self, settings: NatsSettings, timeout: float = 30.0, *, headers: bool = True) -> None:
        self.settings, self.timeout, self.headers = settings, timeout, headers
        self.api = Api(self.connection, timeout)
        self.feeds: set[PullSubscription] = set()  #: of the reads that are going on
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        state = "closed" if self._connection is None else repr(self._connection)
        return f"<NatsLogs {', '.join(self.settings.shown_servers)}, {state}, {len(self.feeds)} reads>"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:
        """See :class:`~mama_spark.record_log.RecordLogBridge`."""
        connection = self._take(POOL.lease(self.settings))
        limit = self.settings.connect_timeout
        try:
            connection.loop.run(check_jetstream(connection, StreamCache(), limit), limit + 1, "checking JetStream")
        except BaseException:
            self.close()
            raise

    def _take(self, connection: Connection) -> Connection:
        self._connection = connection
        connection.consumer = _OpenSubscriptions(self)
        return connection

    def connection(self) -> Connection:
        """The connection; another one if it was closed for good.

        :raises ClientClosed: not open
        """
        if self._connection is None:
            raise ClientClosed("the log bridge is not open")
        if self._connection.closed or not self._connection.loop.alive:
            return self._take(POOL.lease(self.settings))
        return self._connection

    def names(self, topics: Sequence[str]) -> list[str]:
        """See :class:`~mama_spark.record_log.RecordLogBridge`; all streams when no topic is given. What takes no
        subjects of its own (a mirror, a stream that only sources others) is not found by topic."""
        if not topics:
            return sorted(self._names(None))
        found: set[str] = set()
        for topic in topics:
            here = self._names(topic)
            if not here:
                raise ConfigError(f"no stream holds the topic {topic!r}")
            found.update(here)
        return sorted(found)

    def _names(self, subject: str | None) -> list[str]:
        found: list[str] = []
        while True:
            body: dict[str, Any] = {"offset": len(found)}
            if subject is not None:
                body["subject"] = subject
            answer = self.api.ask("STREAM.NAMES", body)
            page = answer.get("streams") or []
            found += page
            if not page or len(found) >= int(answer.get("total", 0)):
                return found

    def warnings(self, topics: Sequence[str]) -> list[str]:
        """What the limits of the streams of these topics may remove before it is read, a sentence each."""
        return [text for name in self.names(topics) for text in self.log(name).warnings()]

    def log(self, name: str) -> NatsLog:
        """See :class:`~mama_spark.record_log.RecordLogBridge`."""
        return NatsLog(self, name)

    def close(self) -> None:
        """See :class:`~mama_spark.record_log.RecordLogBridge`."""
        connection, self._connection = self._connection, None
        for feed in list(self.feeds):
            feed.fail(SubscriptionBroken("the log bridge was closed"))
        if connection is not None:
            connection.consumer = None
            POOL.give_back(self.settings, connection)


class _OpenSubscriptions:
    """Hears of the connection, on the loop's thread: see
    :class:`~mama_spark.bridges.nats.connection.connection.Consumer`."""

    def __init__(self, logs: NatsLogs) -> None:
        self._logs = logs

    def on_acks(self, columns: list[AckColumns]) -> None:
        """Nothing is published here."""

    def on_reply(self, subject: bytes, reply: Reply) -> None:
        """Nothing is published here."""

    def on_unsent(self, token: int, error: BaseException) -> None:
        """Nothing is published here."""

    def on_written(self, size: int) -> None:
        """Nothing is published here."""

    def on_denied(self, kind: str, subject: str, exact: bool) -> None:
        for feed in list(self._logs.feeds):
            feed.on_denied(kind, subject)

    def on_disconnected(self) -> None:
        self._fail("the connection to NATS was lost")

    def on_reconnected(self) -> None:
        """The reader begins again by itself."""

    def on_closed(self, info: str) -> None:
        self._fail(f"the connection to NATS was closed for good: {info}")

    def _fail(self, text: str) -> None:
        for feed in list(self._logs.feeds):
            feed.fail(SubscriptionBroken(text))
