"""One JetStream stream: finds or creates it, reads its last sequence, and runs requests on its connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.topics import covers
from mama_spark.nats.connection.connection import Connection
from mama_spark.nats.jetstream.api import NO_STREAM, ApiError, JetStreamClient
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.read.retention import require_log
from mama_spark.nats.settings import NatsSettings

from .settings import JetStreamSettings

REQUEST_TIMEOUT = 3.0  #: seconds that one request to the JetStream API may take
T = TypeVar("T")
#: Seconds in which the server must answer when the stream is opened.
OPEN_TIMEOUT = 10.0


class JetStreamReader:
    """One JetStream stream."""

    def __init__(self, connection: NatsSettings, name: str, prefix: str) -> None:
        self.logs = NatsLogs(connection, OPEN_TIMEOUT)
        self.name, self.prefix = name, prefix
        self.created = ""  #: creation time of the stream, which distinguishes it from another one of its name
        self.duplicate_window = 0.0  #: seconds in which the server stores a message id once

    def open(self, settings: JetStreamSettings) -> int:
        """Find the stream or create it; returns its last sequence.

        :raises ConfigError: it does not exist and is not created, or it cannot be used
        :raises Unavailable: no server answers
        """
        self.logs.open()
        info = self._find(settings)
        config = info["config"]
        wanted = f"{self.prefix}.>"
        if not any(covers(subject, wanted) for subject in config.get("subjects") or ()):
            raise ConfigError(f"the JetStream stream {self.name!r} does not take {wanted!r}")
        require_log(self.name, config.get("retention", "limits"))
        if config.get("no_ack"):
            raise ConfigError(f"the JetStream stream {self.name!r} does not acknowledge (no_ack)")
        self.created = str(info["created"])
        self.duplicate_window = int(config.get("duplicate_window") or 0) / 1e9
        return int(info["state"]["last_seq"])

    def _find(self, settings: JetStreamSettings) -> dict[str, Any]:
        try:
            return self.logs.api.request(f"STREAM.INFO.{self.name}")
        except ApiError as e:
            if e.code != NO_STREAM or not settings.create:
                raise ConfigError(f"the JetStream stream {self.name!r}: {e}") from e
        try:
            return self.logs.api.request(f"STREAM.CREATE.{self.name}", settings.configuration(self.name, self.prefix))
        except ApiError as e:
            with contextlib.suppress(ApiError):  # another broker has created it meanwhile
                return self.logs.api.request(f"STREAM.INFO.{self.name}")
            raise ConfigError(f"the JetStream stream {self.name!r} cannot be created: {e}") from e

    def last_sequence(self) -> int | None:
        """The stream's last sequence; None if no server answers now.

        :raises ConfigError: the stream was deleted, or created again
        """
        try:
            info = self.logs.api.request(f"STREAM.INFO.{self.name}", timeout=REQUEST_TIMEOUT)
        except ApiError as e:
            raise ConfigError(f"the JetStream stream {self.name!r}: {e}") from e
        except Unavailable:
            return None
        return int(self.require_same(info)["state"]["last_seq"])

    def require_same(self, info: dict[str, Any]) -> dict[str, Any]:
        """:raises ConfigError: ``info`` is not of the stream that was opened"""
        if str(info["created"]) != self.created:
            raise ConfigError(f"the JetStream stream {self.name!r} was deleted and created again")
        return info

    def submit(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine on the event loop of the connection that is open now.

        :raises BackgroundTaskFailed: the event loop has ended
        """
        connection = self.logs.connection()
        if not connection.loop.alive:
            connection.loop.soon(_nothing)  # raises the reason
        return asyncio.run_coroutine_threadsafe(work(connection), connection.loop.loop)

    def close(self) -> None:
        self.logs.close()


def _nothing() -> None: ...


async def request(connection: Connection, api: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request to the JetStream API, for :meth:`JetStreamReader.submit`."""
    return await JetStreamClient(connection, REQUEST_TIMEOUT, REQUEST_TIMEOUT).request(api, body)
