"""The contract by which a write finds out which rows of a batch are stored already: markers, and reading back. Pure.

Optional: the part ``batch_ledger`` of a middleware. :mod:`mama_spark.publishing.exactly_once` decides with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import Int64s
from mama_spark.contracts.record_log import Bounds, Records

#: Seconds after which what a live server had in the buffers of its sockets is surely stored or dropped: it reads 16 MB
#: in some 10 ms, hands them to the leader over a route, and the leader stores or refuses what is queued there; all in
#: much less than a second also on a busy machine. :meth:`BatchLedger.decided_last` waits for what a leader without a
#: majority keeps, and stores later, however long it takes.
SETTLE = 2.0

MARKERS_KEPT = 30 * 86_400  #: seconds that a marker is kept which nobody changes


class Marker(NamedTuple):
    """A small value that the middleware keeps under a key.

    :ivar revision: rises with each change; 0 = there is none
    """

    revision: int
    value: bytes


class MarkerChanged(MamaError):
    """Another process has written the marker since it was read: read it again."""


@dataclass(frozen=True, slots=True)
class StoredIds:
    """Messages of a stream, ascending by sequence.

    :ivar ids: their message ids
    :ivar records: the messages themselves, row for row; None where they were not asked for
    :ivar read: messages that the middleware sent to find these
    """

    sequences: Int64s
    ids: list[bytes]
    records: Records | None
    read: int


class BatchLedger(Protocol):
    """A connection of its own beside that of the publisher. ``open`` first, ``close`` last; calls may come from several
    threads. Methods raise :class:`~mama_spark.contracts.errors.ConfigError` for what the user must change and
    :class:`~mama_spark.contracts.errors.Unavailable` when the middleware does not answer."""

    def open(self) -> None:
        """Connect, and make the place of the markers where it is missing and that is allowed."""

    def streams_of(self, topics: pa.Array) -> list[str | None]:
        """The stream that takes each topic; None where none does, or no message may be published."""

    def marker(self, key: str) -> Marker:
        """Linearizable read (from the leader).

        :param key: tokens of letters, digits, ``-`` and ``_``, joined by dots
        """

    def markers_and_bounds(self, stream: str, keys: Sequence[str]) -> tuple[list[Marker], Bounds]:
        """:meth:`marker` of each key and :meth:`bounds`, in one round trip where that is possible."""

    def markers_below(self, key: str) -> list[Marker]:
        """All markers whose keys are ``key`` and one more token. Asked only of bridges with
        :meth:`.PublisherBridge.sent_to`."""

    def why_unfenced(self, stream: str, server: str) -> str:
        """Why messages to this stream that were sent to this server before now may still be stored later than now, for
        people; empty: they may not. May wait for an answer for some seconds.

        :param server: a server of :meth:`.PublisherBridge.sent_to`
        """

    def release_marker(self, key: str, value: bytes, revision: int) -> None:
        """Store it as :meth:`set_marker` does, without waiting until it is stored: it may not be. Raises nothing."""

    def set_marker(self, key: str, value: bytes, revision: int) -> int:
        """Store it if its revision is still this one; the new revision, once it is stored.

        :raises MarkerChanged: it is another one
        """

    def bounds(self, stream: str) -> Bounds:
        """First and last message as the leader of the stream has them now."""

    def decided_last(self, stream: str, patience: float | None = None) -> int:
        """The last sequence, once everything that the leader had taken before this call is stored or lost.

        :param patience: seconds to wait for that; None = as for any answer
        :raises Unavailable: it takes longer
        """

    def read(self, stream: str, after: int, up_to: int, prefix: bytes, *, records: bool = False) -> Iterator[StoredIds]:
        """All messages with ``after < sequence <= up_to`` whose id begins with ``prefix``, on whatever topics: the
        middleware may store a message under another topic than it was published to.

        It ends when the replica that is read from has reached ``up_to``.

        :param records: records with payloads and headers
        """

    def missing(self, stream: str, after: int, up_to: int) -> list[tuple[int, int]]:
        """See :meth:`~mama_spark.contracts.record_log.RecordLog.missing`."""

    def close(self) -> None:
        """Close the ledger; never raises; may be repeated."""
