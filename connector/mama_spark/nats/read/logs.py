"""Opens JetStream streams as record logs (:mod:`mama_spark.contracts.record_log`), over one pooled connection."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Self

from mama_spark.contracts.errors import ClientClosed, ConfigError
from mama_spark.contracts.record_log import LogStatus, ReaderStatus, RecordLogBridge
from mama_spark.contracts.served_log import LogSettings

from ..connection.connection import Connection
from ..connection.pool import POOL
from ..jetstream.api import NO_STREAM, ApiError, BlockingJetStreamClient, JetStreamClient
from ..jetstream.streams import StreamCache, check_jetstream, stream_names
from ..protocol.acks import AckColumns, Reply
from ..settings import NatsSettings
from ..subjects import may_store, stores_text
from .pull_subscription import PullSubscription, SubscriptionBroken
from .retention import config_of
from .stream_log import NatsLog

__all__ = ["NatsLog", "NatsLogs"]

#: A topic that only wildcards stand for.
_NOBODYS = "?"
#: Names of streams that keep buckets of values and objects.
_BUCKETS = ("KV_", "OBJ_")
_MAY_NOT_LIST = "whether the permissions hide the list of streams"
_JETSTREAM_CHECKED = "whether JetStream answers"


class NatsLogs(RecordLogBridge):
    """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`.

    :param timeout: seconds without an answer after which :class:`~mama_spark.contracts.errors.Unavailable` is raised
    """

    def __init__(self, settings: NatsSettings, timeout: float = 30.0) -> None:
        self.settings, self.timeout = settings, timeout
        self.api = BlockingJetStreamClient(self.connection, timeout)
        self.subscriptions: set[PullSubscription] = set()  #: of running reads
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        state = "closed" if self._connection is None else repr(self._connection)
        return f"<NatsLogs {', '.join(self.settings.shown_servers)}, {state}, {len(self.subscriptions)} reads>"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`."""
        self.connect()
        connection, limit = self.connection(), self.settings.connect_timeout
        if connection.cached(_JETSTREAM_CHECKED) is not None:
            return
        try:
            self.api.run(lambda api: check_jetstream(api, StreamCache()), "checking JetStream", limit)
        except BaseException:
            self.close()
            raise
        connection.cache(_JETSTREAM_CHECKED, True)

    def connect(self) -> None:
        """The same without a question to JetStream, for callers that ask it something themselves."""
        self._use(POOL.checkout(self.settings))

    def _use(self, connection: Connection) -> Connection:
        self._connection = connection
        connection.listener = _OpenSubscriptions(self)
        return connection

    def connection(self) -> Connection:
        """The connection; a new one if it was closed for good.

        :raises ClientClosed: not open
        """
        if self._connection is None:
            raise ClientClosed("the log bridge is not open")
        if self._connection.closed or not self._connection.loop.alive:
            return self._use(POOL.checkout(self.settings))
        return self._connection

    def names(self, topics: Sequence[str]) -> list[str]:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`; all streams when no topic is given. A topic is
        what a stream stores, not what it takes. Streams without subjects of their own (mirrors, streams that only
        source others) are not found by topic."""
        if not topics:
            return sorted(self._names(None))
        found: set[str] = set()
        for topic in topics:
            found.update(self._names_of(topic))
        return sorted(found)

    def _names(self, subject: str | None) -> list[str]:
        return self.api.run(lambda api: stream_names(api, subject), "listing the streams")

    def _names_of(self, topic: str) -> list[str]:
        """:raises ConfigError: no stream stores this topic"""
        takes = {name: self._config(name) for name in self._names(topic)}
        stores = {name for name, config in takes.items() if config is None or may_store(config, topic)}
        configs = self._configs()  # a stream stores what its transform makes beside one that takes it
        if stores := stores | {config["name"] for config in configs if may_store(config, topic)}:
            return sorted(stores)
        text = "".join(f"; stream {name!r} {stores_text(config)}" for name, config in takes.items() if config)
        if others := [config["name"] for config in configs if may_store(config, topic) is None]:
            text += f"; mirrors and streams that source others are read by name (option stream): {', '.join(others)}"
        raise ConfigError(
            f"no stream holds the topic {topic!r}: correct option topics, or make a stream that takes it{text}"
        )

    def _config(self, name: str) -> dict[str, Any] | None:
        """None: the stream has just been deleted, or the permissions hide it, which :meth:`log` will say."""
        try:
            return self.log(name).config
        except ConfigError:
            return None

    def _configs(self) -> list[dict[str, Any]]:
        """Of all streams but those that may store anything, such as members of a stream set, which are read by name.
        None, where the permissions hide them."""
        connection = self.connection()
        if connection.cached(_MAY_NOT_LIST) is not None:  # each request would be a line in the server's log
            return []
        try:
            configs = self.api.run(_stream_configs, "listing the streams")
        except ConfigError:
            connection.cache(_MAY_NOT_LIST, True)
            return []
        return [config for config in configs if not may_store(config, _NOBODYS)]

    def statuses(self) -> list[LogStatus]:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`."""
        return self.api.run(_log_statuses, "asking for the streams")

    def log(self, name: str) -> NatsLog:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`."""
        return NatsLog(self, name)

    def make(self, name: str, settings: LogSettings) -> None:
        """See :class:`~mama_spark.contracts.served_log.ServedLogBridge`."""
        try:
            self.api.request(f"STREAM.INFO.{name}")
            return
        except ApiError as e:
            if e.code != NO_STREAM:
                raise ConfigError(f"stream {name!r}: {e}") from e
        try:
            self.api.request(f"STREAM.CREATE.{name}", config_of(name, settings))
        except ApiError as e:
            with contextlib.suppress(ApiError):  # another process has created it meanwhile
                self.api.request(f"STREAM.INFO.{name}")
                return
            raise ConfigError(f"stream {name!r} cannot be created: {e}") from e

    def close(self) -> None:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`."""
        connection, self._connection = self._connection, None
        for subscription in list(self.subscriptions):
            subscription.fail(SubscriptionBroken("the log bridge was closed"))
        if connection is not None:
            connection.listener = None
            POOL.give_back(self.settings, connection)


class _OpenSubscriptions:
    """Forwards events of the connection to the subscriptions, on the loop's thread: see
    :class:`~mama_spark.nats.connection.connection.ConnectionListener`."""

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
        for subscription in list(self._logs.subscriptions):
            subscription.on_denied(kind, subject)

    def on_disconnected(self) -> None:
        self._fail("the connection to NATS was lost")

    def on_reconnected(self) -> None:
        """Not needed: the reader subscribes again by itself."""

    def on_closed(self, info: str) -> None:
        self._fail(f"the connection to NATS was closed for good: {info}")

    def _fail(self, text: str) -> None:
        for subscription in list(self._logs.subscriptions):
            subscription.fail(SubscriptionBroken(text))


# --- lists of the JetStream API --------------------------------------------------------------------------------------


async def _log_statuses(api: JetStreamClient) -> list[LogStatus]:
    """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`. A stream that is deleted meanwhile is left out."""
    found = []
    async for info in api.pages("STREAM.LIST", "streams"):
        config, state = info["config"], info["state"]
        name: str = config["name"]
        if name.startswith(_BUCKETS):
            continue
        readers: list[ReaderStatus] = []
        if state.get("consumer_count"):
            try:
                readers = [_reader(one) async for one in api.pages(f"CONSUMER.LIST.{name}", "consumers")]
            except ApiError:
                continue
        found.append(_status(config, state, tuple(readers)))
    return sorted(found, key=lambda status: status.name)


async def _stream_configs(api: JetStreamClient) -> list[dict[str, Any]]:
    """Of all streams that are no buckets, by name.

    :raises ApiForbidden: the permissions do not allow the request
    """
    found = [info["config"] async for info in api.pages("STREAM.LIST", "streams")]
    return sorted((one for one in found if not one["name"].startswith(_BUCKETS)), key=lambda one: str(one["name"]))


def _status(config: dict[str, Any], state: dict[str, Any], readers: tuple[ReaderStatus, ...]) -> LogStatus:
    def limit(name: str) -> int | None:
        number = int(config.get(name, -1))
        return number if number > 0 else None

    return LogStatus(
        config["name"], int(state["last_seq"]), int(state["messages"]), int(state["bytes"]),
        limit("max_msgs"), limit("max_bytes"), readers,
    )  # fmt: skip


def _reader(info: dict[str, Any]) -> ReaderStatus:
    return ReaderStatus(info["name"], int(info.get("num_pending", 0)), int(info.get("num_ack_pending", 0)))
