"""The contract of record logs: durable, numbered, replayable sequences of records, read and written in columns. Pure.

A record can be read again by its sequence for as long as the log keeps it: the same range gives the same records, every
time and on every executor. Sequences rise and are never reused; a deleted record leaves a gap. A URL names a log:
``nats://host:4222/STREAM``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, Self

import numpy as np
import pyarrow as pa

from .errors import ConfigError
from .message import Bools, Int64s, MessageBatch

LATEST, EARLIEST = -1, -2  #: in place of a sequence to begin at
PUT = "put"  #: what a record does to its topic or key, unless the middleware says another thing


@dataclass(frozen=True, slots=True)
class Records:
    """``n`` records of one log, ascending by sequence.

    :ivar sequences: one a record
    :ivar times: microseconds since the epoch, by the clock of the middleware
    :ivar topics: string, or ``dictionary<int32, string>``
    :ivar payloads: binary; binary_view from :meth:`RecordLog.read_views`
    :ivar headers: ``message.HEADERS_TYPE``, null where a record has none; None when none has any
    :ivar faults: why headers of a record are left out, by its place
    """

    sequences: Int64s
    times: Int64s
    topics: pa.Array
    payloads: pa.Array
    headers: pa.Array | None = None
    faults: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sequences)

    def slice(self, start: int, stop: int) -> Records:
        """The records from ``start`` to ``stop``; shares memory."""
        if start == 0 and stop >= len(self):
            return self
        return Records(
            self.sequences[start:stop],
            self.times[start:stop],
            self.topics[start:stop],
            self.payloads[start:stop],
            None if self.headers is None else self.headers[start:stop],
            {row - start: why for row, why in self.faults.items() if start <= row < stop},
        )

    def take(self, rows: Int64s) -> Records:
        """The records at ``rows``, ascending; copies."""
        if len(rows) == len(self):
            return self
        index = pa.array(rows)
        return Records(
            self.sequences[rows],
            self.times[rows],
            self.topics.take(index),
            self.payloads.take(index),
            None if self.headers is None else self.headers.take(index),
            {i: self.faults[row] for i, row in enumerate(rows.tolist()) if row in self.faults} if self.faults else {},
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """First and last sequence of a record log.

    :ivar first: sequence of the oldest record that is still stored; ``last + 1`` when there is none
    :ivar last: sequence of the newest record that was ever stored; 0 when there never was one
    :ivar identity: changes when the log is deleted and created again: its sequences then name other records; an empty
        log has it, too
    :ivar time: storage time of the newest record, microseconds since the epoch; None: the middleware does not say
    """

    first: int
    last: int
    identity: str
    time: int | None = field(default=None, compare=False)


class Continuity(Enum):
    """Changes of a record log since a reader saved its position in it."""

    UNBROKEN = "the reader can continue"
    RECREATED = "deleted and created again: its sequences name other records"
    SHORTER = "it ends before the position: restored from an older copy, for example"
    REWRITTEN = "its sequences went back behind the position and were given again"
    REMOVED = "records from the position on were deleted; later ones are there"

    @property
    def went_back(self) -> bool:
        """Whether the log went back: restored from an older copy, for example."""
        return self in (Continuity.SHORTER, Continuity.REWRITTEN)


def continuity(next_sequence: int, identity: str, bounds: Bounds) -> Continuity:
    """Compare a saved position without a time with the log as it is: never REWRITTEN; see :func:`resume`.

    :param next_sequence: the first sequence that was not read
    :param identity: identity of the log when the position was saved
    """
    if bounds.identity != identity:
        return Continuity.RECREATED
    if bounds.last + 1 < next_sequence:
        return Continuity.SHORTER
    return Continuity.REMOVED if bounds.first > next_sequence else Continuity.UNBROKEN


def time_of(log: RecordLog, bounds: Bounds, sequence: int) -> int | None:
    """Time at which this record was stored, microseconds since the epoch; None: it is not there.

    :param bounds: bounds of the log, now
    """
    if not bounds.first <= sequence <= bounds.last:
        return None
    return next((int(some.times[0]) for some in log.read(sequence - 1, sequence)), None)


def resume(
    log: Callable[[], RecordLog], bounds: Bounds, identity: str, next_sequence: int, time: int | None, seen: int = 0
) -> tuple[Continuity, int]:
    """Compare a saved position with the log as it is.

    :param log: opens it, where it must be asked
    :param bounds: bounds of the log, now
    :param identity: identity of the log when the position was saved
    :param next_sequence: the first sequence that was not read
    :param time: when the record before ``next_sequence`` was stored; None = not known: only that the log ends before
        the position shows that its sequences went back
    :param seen: last sequence that the log is known to have had, if that is behind the position
    :returns: what became of it, and the sequence at which the reader goes on: in a log that went back, the first that
        was stored after what was read, or where that is not known, the first that is yet to come
    """
    state = continuity(max(next_sequence, seen + 1), identity, bounds)
    if state is Continuity.RECREATED:
        return state, bounds.first
    shorter = bounds.last + 1 < next_sequence
    nothing_new = bounds.last + 1 == next_sequence and bounds.time in (None, time)
    if time is not None and (shorter or not (nothing_new or time_of(log(), bounds, next_sequence - 1) in (None, time))):
        return state if state is Continuity.SHORTER else Continuity.REWRITTEN, log().sequence_at(time + 1)
    if state is Continuity.SHORTER:
        return state, min(next_sequence, bounds.last + 1)
    return state, bounds.first if state is Continuity.REMOVED else next_sequence


@dataclass(frozen=True, slots=True)
class MatchRange:
    """A range of a record log, by the records in it that match.

    :ivar last: last sequence
    :ivar matching: number of records in it that match
    """

    last: int
    matching: int


@dataclass(frozen=True, slots=True)
class CurrentRecords:
    """Some of the records of a log that are the last of their topics.

    :ivar sequences: theirs, ascending
    :ivar before: number of current records before these
    """

    sequences: Int64s
    before: int = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def within(self, after: int, up_to: int) -> CurrentRecords:
        """The current records with ``after < sequence <= up_to``; shares memory."""
        start, stop = np.searchsorted(self.sequences, [after, up_to], "right").tolist()
        return CurrentRecords(self.sequences[start:stop], self.before + start)

    def match_range(self, after: int, up_to: int, topics: Sequence[str], limit: int) -> MatchRange:
        """The range of :meth:`RecordLog.match_range` among the current records; they are on ``topics``."""
        part = self.within(after, up_to)
        return MatchRange(int(part.sequences[limit - 1]), limit) if len(part) > limit else MatchRange(up_to, len(part))

    def among(self, records: Records) -> Records:
        """The records of ``records`` that are current."""
        return records.take(np.flatnonzero(is_among(records.sequences, self.sequences)))


def is_among(numbers: Int64s, some: Int64s) -> Bools:
    """Whether each of these is one of ``some``, which ascend."""
    if not len(some):
        return np.zeros(len(numbers), np.bool_)
    found: Bools = some[np.minimum(np.searchsorted(some, numbers), len(some) - 1)] == numbers
    return found


@dataclass(frozen=True, slots=True)
class Removal:
    """The records that the limits of a log remove besides its oldest ones.

    :ivar between: records between others that stay: of a topic, or with a time to live
    :ivar replaced_since: a record of this time (microseconds since the epoch) or later only when newer ones of its
        topic are there, or say that it has expired; 0: any record; None: none
    :ivar all_but_last: all but one record of each topic, so all that the log has is current
    """

    between: bool = False
    replaced_since: int | None = None
    all_but_last: bool = False


class RecordLog(Protocol):
    """One record log of an open :class:`RecordLogBridge`. Methods raise
    :class:`~mama_spark.contracts.errors.Unavailable` when the middleware does not answer within the bridge's timeout,
    :class:`~mama_spark.contracts.errors.ConfigError` when the log does not exist any more or is forbidden.

    Inherit it, and give :attr:`name` and the methods from :meth:`bounds` to :meth:`progress`, except
    :meth:`bounds_with`. The others have a body, for logs that can do more, or the same with fewer questions or copies.
    """

    @property
    def name(self) -> str: ...

    def bounds(self) -> Bounds:
        """First and last sequence at this moment."""

    def bounds_with(self, sequence: int, identity: str) -> Bounds:
        """:meth:`bounds`, for a reader that has read ``sequence`` of the log of this identity: a replicated log waits
        some seconds for a replica that has it."""
        return self.bounds()

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        """The records with ``after < sequence <= up_to`` on one of ``topics`` (wildcards allowed; none = all), in order
        and in batches of a few thousand. The same range gives the same records, but deleted ones are left out
        (:meth:`missing`). A replicated log waits for a replica that has ``up_to``."""

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        """Ranges ``(from, to)``, both inclusive, of sequences in ``after < sequence <= up_to`` that are not stored any
        more, ascending, on whatever topics they were."""

    def sequence_at(self, time: int) -> int:
        """Sequence of the first record stored at or after ``time`` (microseconds since the epoch); ``last + 1`` if
        there is none."""

    def append(self, batch: MessageBatch) -> int:
        """Store all, in order; the sequence of the last. For a few records: rows go through publishers.

        :raises PublishError: one was rejected, or its outcome is not known; those before it are stored
        """

    def trim(self, before: int) -> None:
        """Delete the records with a sequence below ``before``."""

    def warnings(self, topics: Sequence[str] = ()) -> list[str]:
        """Limits of this log that may remove unread records, and ``topics`` on which it has no record and may never
        have one; one sentence each."""

    def require_topics(self, topics: Sequence[str]) -> None:
        """Check that the log has or may get records on each of these topics.

        :raises ConfigError: it has no record on one of them, and will have none
        """

    def progress(self, name: str, up_to: int, topics: Sequence[str] = ()) -> None:
        """Show at the middleware, under ``name``, that everything up to ``up_to`` was read. Never raises."""

    # --- what some can do ---

    def delete(self, sequences: Sequence[int]) -> None:
        """Delete these records; missing ones are ignored.

        :raises ConfigError: the middleware cannot, or the permissions forbid it
        """
        raise ConfigError(f"stream {self.name!r}: this middleware deletes no single records")

    @property
    def removal(self) -> Removal:
        """The records that the limits of the log remove."""
        return Removal()

    @property
    def made(self) -> int | None:
        """The time of its creation, microseconds since the epoch; None: the middleware does not say."""
        return None

    def current(self, topics: Sequence[str] = (), since: int = 0, payloads: bool = True) -> Iterator[Records]:
        """Records, ascending, on ``topics`` (wildcards allowed; none = all), up to a sequence that is not below the end
        that the log had when it was asked: the last one of each topic is what its topic had last at that sequence.

        :param since: a sequence that the log has: a replicated log waits for a leader that has it
        :param payloads: false: they, and headers, may be left out
        :raises ConfigError: the middleware cannot tell
        """
        raise ConfigError(f"option latestPerTopic: {self.name!r} is of a middleware that keeps no last value")

    def read_current(self, wanted: CurrentRecords, topics: Sequence[str] = ()) -> Iterator[Records]:
        """The records of ``wanted`` that are still stored.

        :param topics: topics as given to :meth:`current`
        """
        for records in self.read(int(wanted.sequences[0]) - 1, int(wanted.sequences[-1]), topics):
            yield wanted.among(records)

    # --- what some can do better ---

    @property
    def opened(self) -> Bounds:
        """The bounds that the log had when the bridge opened it, without a question; or those of this moment."""
        return self.bounds()

    def missing_at_open(self, after: int, up_to: int) -> list[tuple[int, int]]:
        """:meth:`missing` of the moment of :attr:`opened`."""
        return self.missing(after, up_to)

    def read_views(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        """The records of :meth:`read`; payloads may be binary_view arrays over the received buffers."""
        return self.read(after, up_to, topics)

    def match_range(self, after: int, up_to: int, topics: Sequence[str], limit: int) -> MatchRange | None:
        """The longest range, or nearly so, after ``after``, up to ``up_to`` at most, with at most ``limit`` records on
        ``topics``; at least one sequence.

        :param topics: wildcards allowed; none = the topics that the bridge selects
        :param limit: 1 or more
        :returns: None: the middleware, or its server, cannot tell without sending the records
        """
        return None

    def most_readers(self) -> tuple[int, str] | None:
        """The number of our readers that can read at once (1 or more), and the limit that says so; None = no limit."""
        return None


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """A reader that the middleware knows.

    :ivar pending: records that it has not been given
    :ivar unacknowledged: records that it has and did not acknowledge
    """

    name: str
    pending: int
    unacknowledged: int


@dataclass(frozen=True, slots=True)
class LogStatus:
    """One log at this moment.

    :ivar last: as in :class:`Bounds`
    :ivar records, size: stored now; bytes, None = the middleware does not tell
    :ivar most_records, most_bytes: limits; None = there is none, or the middleware does not tell
    """

    name: str
    last: int
    records: int
    size: int | None = None
    most_records: int | None = None
    most_bytes: int | None = None
    readers: tuple[ReaderStatus, ...] = ()


class RecordLogBridge(Protocol):
    """A connection to a middleware with record logs. Calls come one at a time: ``open``, anything, ``close``.
    Inherit it, like :class:`RecordLog`; :meth:`statuses` has a body."""

    def open(self) -> None:
        """Connect.

        :raises ConfigError: the user must change something
        :raises Unavailable: the middleware does not answer
        """

    def names(self, topics: Sequence[str]) -> list[str]:
        """Names of the logs with records on any of ``topics`` (wildcards allowed; none = all logs), sorted.

        :raises ConfigError: a topic that no log takes
        """

    def log(self, name: str) -> RecordLog:
        """The log of this name.

        :raises ConfigError: there is no such log
        """

    def statuses(self) -> list[LogStatus]:
        """All logs but those that the middleware keeps for itself, by name; with bytes, limits and readers where it
        knows these."""
        found = ((name, self.log(name).bounds()) for name in self.names(()))
        return [LogStatus(name, bounds.last, bounds.last - bounds.first + 1) for name, bounds in found]

    def close(self) -> None:
        """Close the bridge; never raises."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


ReadLog = Callable[[Callable[[RecordLog], None]], None]  #: calls a function with the log, if it exists
