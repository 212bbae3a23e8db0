"""Reads discovery that is kept in one numbered log: offsets in it, snapshots saved for a reader, events, gaps.

What the log is and what its records say is the middleware's.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from ..contracts.bridge import DiscoveryEvent, DiscoveryEventKind, Position
from ..contracts.errors import ConfigError, DataLost
from ..contracts.record_log import EARLIEST, LATEST, Bounds
from .log_offsets import IMAGE, LogOffset, WrittenSnapshot, broken, next_offset, parse_offset, same_log
from .snapshot_codec import blocks, pack, unpack

_NO_LIMIT = 2**62


class Present(NamedTuple):
    """The sources that exist.

    :ivar log: identity of the log
    :ivar last: sequence of its newest record that is included
    :ivar events: IMAGE_END included
    """

    log: str
    last: int
    events: list[DiscoveryEvent]


class LogDiscovery(ABC):
    """The reading half of a :class:`~mama_spark.contracts.bridge.DiscoveryBridge`.

    :cvar where: what error messages call this discovery
    :cvar identity: name of the log's identity in an offset
    :cvar recreated: what is said of a log that was deleted and created again, or lost its end
    """

    where: ClassVar[str]
    identity: ClassVar[str] = "log"
    recreated: ClassVar[str] = "the stream was deleted and made again, or lost its end"

    # --- what a middleware gives ---

    @property
    @abstractmethod
    def _log_name(self) -> str: ...

    @abstractmethod
    def _bounds(self, read: LogOffset | None = None) -> Bounds:
        """:param read: what a reader has read; see :meth:`~mama_spark.contracts.record_log.RecordLog.bounds_with`"""

    @abstractmethod
    def _now(self) -> int:
        """Microseconds since the epoch, for events of our own."""

    @abstractmethod
    def _present(self) -> Present: ...

    @abstractmethod
    def _events(self, identity: str, first: int, last: int) -> Iterator[list[DiscoveryEvent]]:
        """The events of these records, and gaps for those that are not there.

        :param identity: of the log that they are in; if it is another one now, all of them are lost
        """

    def _save(self, token: str, chunks: list[bytes]) -> tuple[int, int]:
        """Save a snapshot for one reader; sequences of its first and its last message."""
        raise NotImplementedError

    def _saved(self, snapshot: WrittenSnapshot) -> list[bytes]:
        """The chunks of a snapshot that are still there."""
        raise NotImplementedError

    # --- reading ---

    def image(self) -> list[DiscoveryEvent]:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        return self._present().events

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`; -1 is the latest, -2 the earliest."""
        if where == "image":
            return dict(IMAGE)
        number = {"latest": LATEST, "earliest": EARLIEST}.get(where) if isinstance(where, str) else self._number(where)
        if number is None:
            raise ConfigError(f"discovery begins at image, earliest, latest or a sequence of a log, got {where!r}")
        bounds = self._bounds()
        first = {LATEST: bounds.last + 1, EARLIEST: bounds.first}.get(number, number)
        return LogOffset(bounds.identity, first).as_json(self.identity)

    def _number(self, where: tuple[tuple[str, int], ...]) -> int:
        name = self._log_name
        if len(where) != 1 or where[0][0] != name or (where[0][1] < 1 and where[0][1] not in (LATEST, EARLIEST)):
            raise ConfigError(
                f"the only log of discovery here is {name}, whose sequences begin at 1; got {dict(where)}"
            )
        return where[0][1]

    def latest_offset(self, start: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        here, goal = self._parse(start), None if until is None else self._parse(until)
        bounds = self._bounds(here)
        if here is not None and not same_log(here, bounds):
            if goal is not None and goal.log == here.log:
                return start  # the goal cannot be reached any more: the next call has another one
            here = self._begin_again(bounds, goal)
        elif here is None:
            here = self._begin(bounds, goal)
        if goal is not None and goal.log != here.log:
            goal = None
        most = _NO_LIMIT if limit is None else limit
        return next_offset(here, bounds.first, bounds.last, most, goal).as_json(self.identity)

    def _parse(self, position: Position) -> LogOffset | None:
        return parse_offset(position, self.where, self.identity)

    def _begin(self, bounds: Bounds, goal: LogOffset | None) -> LogOffset:
        """The offset before a snapshot: that of the goal, or one that is saved for this reader now."""
        if goal is not None and goal.image is not None and goal.log == bounds.identity:
            return goal.advanced(0)
        token, present = secrets.token_hex(8), self._present()
        first, last = self._save(token, pack(present.events))
        image = WrittenSnapshot(token, len(present.events), first, last, present.last + 1)
        return LogOffset(present.log, image.next, image)

    def _begin_again(self, bounds: Bounds, goal: LogOffset | None) -> LogOffset:
        """Where a reader goes on whose log is another one."""
        return self._begin(bounds, goal)

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`.

        :raises DataLost: a saved snapshot is not there any more
        """
        first, last = self._parse(start), self._parse(end)
        if first == last:
            return
        if last is None:
            raise ConfigError("an image that was never saved cannot be read")
        if first is not None and broken(first, last):
            yield [self._gap(first.next, first.next, self.recreated)]
            first = None if last.image is not None else LogOffset(last.log, self._bounds().first)
        yield from self._between(first, last)

    def _between(self, first: LogOffset | None, last: LogOffset) -> Iterator[list[DiscoveryEvent]]:
        image = last.image or (None if first is None else first.image)
        if image is not None:
            start = first.delivered if first is not None and first.image == image else 0
            stop = last.delivered if last.image is not None else image.events
            if stop > start:
                yield from blocks(self._snapshot(image, start, stop))
        elif first is None:
            yield from blocks(self._snapshot_at(last))
        if last.image is None and first is not None and first.next < last.next:
            yield from self._events(last.log, first.next, last.next - 1)

    def _snapshot(self, image: WrittenSnapshot, start: int, stop: int) -> list[DiscoveryEvent]:
        try:
            return unpack(self._saved(image), start, stop)
        except ValueError as e:
            raise DataLost(f"the image that this reader began with is not in {self._log_name} any more: {e}") from e

    def _snapshot_at(self, end: LogOffset) -> list[DiscoveryEvent]:
        """The snapshot at an offset for which none was saved."""
        raise ConfigError("an image that was never saved cannot be read")

    def _gap(self, first: int, last: int, info: str | None = None, at: int | None = None) -> DiscoveryEvent:
        at = self._now() if at is None else at
        return DiscoveryEvent(DiscoveryEventKind.GAP, at, self._log_name, gap=(first, last), info=info)
