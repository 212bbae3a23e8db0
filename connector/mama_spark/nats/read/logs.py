"""Opens JetStream streams as record logs (:mod:`mama_spark.contracts.record_log`), over one pooled connection."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import LogStatus, ReaderStatus, RecordLogBridge
from mama_spark.contracts.served_log import LogSettings
from mama_spark.options import SinkOptions

from ..jetstream.answers import ApiError, ConsumerInfo, StreamInfo
from ..jetstream.client import JetStream
from ..jetstream.streams import StreamCache, check_jetstream, stream_names
from ..protocol import key_value
from ..subjects import NO_READERS, may_store, stores_text
from .log_connection import LogConnection
from .retention import config_of
from .stream_log import NatsLog, ServedStream

__all__ = ["NatsLog", "NatsLogs"]

#: A topic that only wildcards match.
_NOBODYS = "?"
#: Names of streams that keep buckets of values and objects.
_BUCKETS = (key_value.STREAM, "OBJ_")
#: Default names of the connector's own streams.
_OWN = (
    *(SinkOptions.batches_stream, SinkOptions.sources_stream),
    *(SinkOptions.events_stream, SinkOptions.advisories_stream),
)
_MAY_NOT_LIST = "whether the permissions hide the list of streams"
_JETSTREAM_CHECKED = "whether JetStream answers"


class NatsLogs(LogConnection, RecordLogBridge):
    """Bridge of record logs; ``timeout``: seconds without an answer before ``Unavailable``."""

    def __repr__(self) -> str:
        state = "closed" if self._connection is None else repr(self._connection)
        return f"<NatsLogs {', '.join(self.settings.shown_servers)}, {state}, {len(self.subscriptions)} reads>"

    def open(self) -> None:
        self.connect()
        connection = self.connection()
        if connection.cached(_JETSTREAM_CHECKED) is not None:
            return
        try:
            timeout = self.settings.connect_timeout
            check_jetstream(JetStream(self.connection, timeout), StreamCache())
        except BaseException:
            self.close()
            raise
        connection.cache(_JETSTREAM_CHECKED, True)

    def names(self, topics: Sequence[str]) -> list[str]:
        """Names of all streams if no topic is given, else of those that store the topics. Not found by topic: streams
        without subjects of their own (mirrors, streams that only source others). Not found by a topic that begins with
        a wildcard: streams that keep the last message of a subject (buckets, the connector's own)."""
        if not topics:
            return sorted(self._names(None))
        found: set[str] = set()
        for topic in topics:
            found.update(self._names_of(topic))
        return sorted(found)

    def _names(self, subject: str | None) -> list[str]:
        return stream_names(self.api, subject)

    def _names_of(self, topic: str) -> list[str]:
        """Streams that store this topic. ConfigError: none does."""
        named = not topic.startswith(("*", ">"))
        takes = {name: self._config(name) for name in self._names(topic) if named or not _is_own(name)}
        stores = {name for name, config in takes.items() if config is None or may_store(config, topic)}
        streams = self._streams()  # a stream stores results of its transform beside one that takes the topic
        stores |= {one.name for one in streams if may_store(one.config, topic) and (named or not _is_own(one.name))}
        if stores:
            return sorted(stores)
        text = "".join(f"; stream {name!r} {stores_text(config)}" for name, config in takes.items() if config)
        if others := [stream.name for stream in streams if may_store(stream.config, topic) is None]:
            text += f"; mirrors and streams that source others are read by name (option stream): {', '.join(others)}"
        raise ConfigError(
            f"no stream holds the topic {topic!r}: correct option topics, or make a stream that takes it{text}"
        )

    def _config(self, name: str) -> dict[str, Any] | None:
        """Configuration of a stream; None = just deleted, or hidden by the permissions, as :meth:`log` will say."""
        try:
            return self.log(name).info.config
        except ConfigError:
            return None

    def _streams(self) -> list[StreamInfo]:
        """All streams but those that may store anything, such as members of a stream set, which are read by name. Empty
        if the permissions hide them."""
        connection = self.connection()
        if connection.cached(_MAY_NOT_LIST) is not None:  # each request would be a line in the server's log
            return []
        try:
            found = _list_streams(self.api)
        except ConfigError:
            connection.cache(_MAY_NOT_LIST, True)
            return []
        return [stream for stream in found if not may_store(stream.config, _NOBODYS)]

    def statuses(self) -> list[LogStatus]:
        return _log_statuses(self.api)

    def log(self, name: str) -> NatsLog:
        return NatsLog(self, name)

    def served(self, name: str) -> ServedStream:
        return ServedStream(self, name)

    def make(self, name: str, settings: LogSettings) -> None:
        try:
            if self.api.stream(name) is not None:
                return
        except ApiError as e:
            raise ConfigError(f"stream {name!r}: {e}") from e
        try:
            self.api.request(f"STREAM.CREATE.{name}", config_of(name, settings))
        except ApiError as e:
            with contextlib.suppress(ApiError):
                if self.api.stream(name) is not None:  # another process has created it meanwhile
                    return
            raise ConfigError(f"stream {name!r} cannot be created: {e}") from e


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith(_BUCKETS)


# --- lists of the JetStream API --------------------------------------------------------------------------------------


def _list_streams(api: JetStream) -> list[StreamInfo]:
    """Streams that are no buckets, by name. ApiForbidden: the permissions do not allow the request."""
    found = [StreamInfo.of(one) for one in api.listed("STREAM.LIST", "streams")]
    return sorted((stream for stream in found if not stream.name.startswith(_BUCKETS)), key=lambda stream: stream.name)


def _log_statuses(api: JetStream) -> list[LogStatus]:
    """Status of each stream, without streams deleted meanwhile."""
    found = []
    for stream in _list_streams(api):
        readers: list[ConsumerInfo] = []
        if stream.consumers:
            try:
                pages = api.listed(f"CONSUMER.LIST.{stream.name}", "consumers")
                readers = [one for one in map(ConsumerInfo.of, pages) if not one.name.startswith(NO_READERS)]
            except ApiError:
                continue
        found.append(
            LogStatus(
                *(stream.name, stream.last, stream.messages, stream.size),
                *(stream.limit("max_msgs"), stream.limit("max_bytes")),
                tuple(ReaderStatus(reader.name, reader.pending, reader.unacknowledged) for reader in readers),
            )
        )
    return found
