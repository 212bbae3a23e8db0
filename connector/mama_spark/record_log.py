"""What a log is: a durable, numbered, replayable sequence of records, behind a small synchronous, columnar face.

``mamasub`` and ``mamadiscovery`` read logs, so a record can be read again by its number for as long as the log keeps
it: the same range gives the same records, every time and on every executor. Numbers rise and are never reused; what
was deleted leaves a hole.

A log is named by a URL: ``nats://host:4222/STREAM``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from .message import Int64s, MessageBatch


@dataclass(frozen=True, slots=True)
class Records:
    """``n`` records of one log, ascending by sequence.

    :ivar sequences: one a record
    :ivar times: microseconds since the epoch, by the clock of the middleware
    :ivar topics: string, or dictionary<int32, string>
    :ivar payloads: binary
    :ivar headers: :data:`~mama_spark.message.HEADERS_TYPE`, null where a record has none; None when none has any
    """

    sequences: Int64s
    times: Int64s
    topics: pa.Array
    payloads: pa.Array
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.sequences)

    def slice(self, start: int, stop: int) -> Records:
        """The records from ``start`` to ``stop``; shares memory."""
        n = stop - start
        return Records(
            self.sequences[start:stop],
            self.times[start:stop],
            self.topics.slice(start, n),
            self.payloads.slice(start, n),
            None if self.headers is None else self.headers.slice(start, n),
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a log holds.

    :ivar first: sequence of the oldest record that is still there; ``last + 1`` when there is none
    :ivar last: sequence of the newest record there ever was; 0 when there never was one
    :ivar identity: changes when the log is deleted and made again: its sequences then mean something else
    """

    first: int
    last: int
    identity: str


class RecordLog(Protocol):
    """One log of an open :class:`RecordLogBridge`. Methods raise :class:`~mama_spark.errors.Unavailable` when nobody
    answers within the bridge's time limit, :class:`~mama_spark.errors.ConfigError` when the log is gone or
    forbidden."""

    @property
    def name(self) -> str: ...

    def bounds(self) -> Bounds:
        """First and last now."""
        ...

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        """The records with ``after < sequence <= up_to`` on one of ``topics`` (wildcards allowed; none = all), in
        order and in batches of a few thousand. What was deleted is left out: :meth:`missing` tells what that is.

        The same range gives the same records, unless some of them were deleted meanwhile.
        """
        ...

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        """Ranges ``(from, to)``, both inclusive, of sequences in ``after < sequence <= up_to`` that are not in the log
        any more, ascending; whatever their topics were, since nobody knows."""
        ...

    def at(self, time: int) -> int:
        """Sequence of the first record stored at or after ``time`` (µs since the epoch); ``last + 1`` if there is
        none yet."""
        ...

    def append(self, batch: MessageBatch) -> int:
        """Store all, in order; the sequence of the last. For a few records: rows go through publishers.

        :raises PublishError: one was refused; those before it are stored
        """
        ...

    def trim(self, before: int) -> None:
        """Delete what has a sequence below ``before``."""
        ...

    def warnings(self) -> list[str]:
        """What the limits of this log may remove before it is read, a sentence each."""
        ...

    def progress(self, name: str, up_to: int, topics: Sequence[str] = ()) -> None:
        """Show at the middleware, under ``name``, that everything up to ``up_to`` was read. Telemetry: never raises."""
        ...


class RecordLogBridge(Protocol):
    """A middleware that replays. Calls come from one thread: ``open``, anything, ``close``."""

    def open(self) -> None:
        """Connect.

        :raises ConfigError: the user must change something
        :raises Unavailable: nobody answers
        """
        ...

    def names(self, topics: Sequence[str]) -> list[str]:
        """Logs that hold records of any of ``topics`` (wildcards allowed; none = all logs), sorted.

        :raises ConfigError: a topic that no log holds
        """
        ...

    def log(self, name: str) -> RecordLog:
        """:raises ConfigError: there is no such log"""
        ...

    def close(self) -> None:
        """Never raises."""
        ...
