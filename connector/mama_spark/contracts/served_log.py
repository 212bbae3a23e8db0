"""The contract of record logs that another server serves to clients of its own: a Malamute broker, a stream in NATS
JetStream. Optional: the part ``served_log_bridge`` of a middleware. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from .record_log import Bounds, RecordLog, Records


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Topics and limits of a log; None = no limit.

    :ivar topics: topics that it takes, with wildcards
    :ivar max_age: seconds
    :ivar max_size: bytes of all records together
    :ivar max_per_topic: records of one topic
    :ivar duplicate_window: seconds in which an id is stored once
    :ivar replicas: servers that keep it; ``storage``: where, in the middleware's word
    """

    topics: tuple[str, ...]
    max_age: float | None = None
    max_size: int | None = None
    max_records: int | None = None
    max_per_topic: int | None = None
    duplicate_window: float = 0.0
    replicas: int = 1
    storage: str = "file"


@dataclass(frozen=True, slots=True)
class LogState:
    """A log at this moment.

    :ivar records, size: stored now; bytes
    """

    bounds: Bounds
    records: int
    size: int
    settings: LogSettings


class LogTail(Protocol):
    """Follows a log from a position on, also over lost connections, and never waits. One thread calls it.

    :ivar position: sequence of the last record returned
    :ivar caught_up: it has reached the end of the log since it last began again
    """

    position: int
    caught_up: bool

    def poll(self) -> Records | None:
        """The records that came, with the headers of the middleware; None: none did.

        :raises ConfigError: the log was deleted, or cannot be read
        """

    def close(self) -> None:
        """End the tail; never raises."""


class ServedLog(Protocol):
    """The calls of a log that a server of its records needs."""

    @property
    def records(self) -> RecordLog:
        """The log itself."""

    def state(self) -> LogState:
        """The state as the leader has it now.

        :raises ConfigError: it was deleted since it was opened, or deleted and created again
        """

    def decided_last(self, topic: str, patience: float) -> int:
        """The last sequence, once everything that the leader had taken before this call is stored or lost.

        :param topic: topic that the log takes
        :param patience: seconds to wait for that
        :raises Unavailable: it takes longer
        """

    def tail(self, after: int, topics: Sequence[str], name: str) -> LogTail:
        """A tail of the records after ``after`` on ``topics``.

        :param name: description for the log, as a noun
        """

    def read_without_payloads(self, after: int, up_to: int) -> Iterator[Records]:
        """The records of :meth:`.RecordLog.read`, with empty payloads."""

    def newest(self, topic: str) -> Records | None:
        """The last record on this topic; None = there is none."""


class ServedLogBridge(Protocol):
    """A connection to a middleware with such logs: see :class:`~.record_log.RecordLogBridge`."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    def served(self, name: str) -> ServedLog: ...

    def make(self, name: str, settings: LogSettings) -> None:
        """Make a log; nothing if there is one of this name.

        :raises ConfigError: the middleware refuses it
        """
