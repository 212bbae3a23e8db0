"""Reads discovery that is kept in one numbered log: offsets in it, images saved for a reader, events, gaps.

An offset names the log by its identity and the next sequence to be read; at the beginning also the image that was saved
for the reader, and how many of its events were delivered. A log with another identity, or one that ends before what was
read, is another log: the reader then gets a gap and a new image.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from ..contracts.bridge import DiscoveryEvent, DiscoveryEventKind, Position
from ..contracts.errors import ConfigError, DataLost
from ..contracts.record_log import EARLIEST, LATEST, Bounds, Continuity, continuity
from .image_codec import blocks, pack, unpack

_NO_LIMIT = 2**62
IMAGE: dict[str, Any] = {"begin": "image"}


@dataclass(frozen=True, slots=True)
class SavedImage:
    """An image that was saved for one reader.

    :ivar token: names the subject of its messages
    :ivar events: number of its events, the end included
    :ivar first: sequence of its first message; other messages may lie between it and :attr:`last`
    :ivar next: the first sequence that it does not include
    """

    token: str
    events: int
    first: int
    last: int
    next: int


@dataclass(frozen=True, slots=True)
class LogOffset:
    """Position of a reader in a saved image, of which it has read ``delivered`` events, and in the log that follows."""

    log: str
    next: int
    image: SavedImage | None = None
    delivered: int = 0

    @property
    def remaining(self) -> int:
        return 0 if self.image is None else self.image.events - self.delivered

    def advanced(self, delivered: int) -> LogOffset:
        return replace(self, delivered=delivered)

    def as_json(self, identity: str = "log") -> Position:
        found: Position = {identity: self.log, "next": self.next}
        if self.image is not None:
            i = self.image
            found |= {"image": [i.token, i.events, i.first, i.last, i.next], "told": self.delivered}
        return found


def parse_offset(position: Position, where: str, identity: str = "log") -> LogOffset | None:
    """The offset of a JSON value; None for the one of ``initial_offset("image")``.

    :param where: the discovery, for the error
    :raises ConfigError: it is no offset of discovery
    """
    if position == IMAGE:
        return None
    try:
        image = position.get("image")
        saved = None if image is None else SavedImage(str(image[0]), *(int(number) for number in image[1:]))
        return LogOffset(str(position[identity]), int(position["next"]), saved, int(position.get("told", 0)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise ConfigError(f"no offset of discovery on {where}: {str(position)[:200]}") from e


def same_log(offset: LogOffset, bounds: Bounds) -> bool:
    return continuity(offset.next, offset.log, bounds) not in (Continuity.RECREATED, Continuity.SHORTER)


def broken(start: LogOffset, end: LogOffset) -> bool:
    """Whether the records after ``start`` are lost, because the log of ``end`` is another one or lost its end."""
    begun_again = end.image is not None and end.image != start.image
    return start.log != end.log or end.next < start.next or begun_again


def next_offset(start: LogOffset, first: int, last: int, most: int, goal: LogOffset | None) -> LogOffset:
    """The offset after what there is, at most ``most`` records on and not beyond ``goal``, which is of the same log;
    ``start`` if there is nothing."""
    image = start.image
    if image is not None and start.remaining:
        end = goal.delivered if goal is not None and goal.image == image else image.events
        return start.advanced(max(start.delivered, min(end, start.delivered + most)))
    if goal is not None and goal.image is not None:
        return start
    end = min(last + 1, max(start.next, first) + most)
    if goal is not None:
        end = min(end, goal.next)
    return start if end <= start.next else LogOffset(start.log, end)


class Present(NamedTuple):
    """The sources that exist: ``events`` end with IMAGE_END, ``last`` is the newest sequence of the log that they
    include."""

    log: str
    last: int
    events: list[DiscoveryEvent]


class LogDiscovery(ABC):
    """The reading half of a :class:`~mama_spark.contracts.bridge.DiscoveryBridge`.

    :cvar where: name of this discovery in error messages
    :cvar identity: name of the log's identity in an offset
    :cvar recreated: text of a gap for a log that was deleted and created again, or lost its end
    """

    where: ClassVar[str]
    identity: ClassVar[str] = "log"
    recreated: ClassVar[str] = "the stream was deleted and made again, or lost its end"

    @property
    @abstractmethod
    def _log_name(self) -> str: ...

    @abstractmethod
    def _bounds(self, read: LogOffset | None = None) -> Bounds:
        """The bounds of the log now; ``read``: position of a reader, see
        :meth:`~mama_spark.contracts.record_log.RecordLog.bounds_with`."""

    @abstractmethod
    def _now(self) -> int:
        """Microseconds since the epoch, for events of our own."""

    @abstractmethod
    def _present(self) -> Present: ...

    @abstractmethod
    def _events(self, identity: str, first: int, last: int) -> Iterator[list[DiscoveryEvent]]:
        """The events of these records, and gaps for missing ones; all are lost if the log has another ``identity``
        now."""

    def _save(self, token: str, chunks: list[bytes]) -> tuple[int, int]:
        """Save an image for one reader; sequences of its first and its last message."""
        raise NotImplementedError

    def _saved(self, image: SavedImage) -> list[bytes]:
        raise NotImplementedError

    def image(self) -> list[DiscoveryEvent]:
        return self._present().events

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`; -1 is the latest, -2 the earliest."""
        if where == "image":
            return dict(IMAGE)
        number = {"latest": LATEST, "earliest": EARLIEST}.get(where) if isinstance(where, str) else self._number(where)
        if number is None:
            raise ConfigError(f"discovery begins at image, earliest, latest or a sequence of a log, got {where!r}")
        bounds = self._bounds()
        if number > bounds.last + 1:
            raise ConfigError(f"the log {self._log_name!r} has no number {number} yet: the last is {bounds.last}")
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
        """The offset before an image: that of the goal, or one that is saved for this reader now."""
        if goal is not None and goal.image is not None and goal.log == bounds.identity:
            return goal.advanced(0)
        token, present = secrets.token_hex(8), self._present()
        first, last = self._save(token, pack(present.events))
        image = SavedImage(token, len(present.events), first, last, present.last + 1)
        return LogOffset(present.log, image.next, image)

    def _begin_again(self, bounds: Bounds, goal: LogOffset | None) -> LogOffset:
        """The offset at which a reader goes on whose log is another one."""
        return self._begin(bounds, goal)

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`.

        :raises DataLost: a saved image is not there any more
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
                yield from blocks(self._image_part(image, start, stop))
        elif first is None:
            yield from blocks(self._image_at(last))
        if last.image is None and first is not None and first.next < last.next:
            yield from self._events(last.log, first.next, last.next - 1)

    def _image_part(self, image: SavedImage, start: int, stop: int) -> list[DiscoveryEvent]:
        try:
            return unpack(self._saved(image), start, stop)
        except ValueError as e:
            raise DataLost(f"the image that this reader began with is not in {self._log_name} any more: {e}") from e

    def _image_at(self, end: LogOffset) -> list[DiscoveryEvent]:
        """The image at an offset for which none was saved."""
        raise ConfigError("an image that was never saved cannot be read")

    def _gap(self, first: int, last: int, info: str | None = None, at: int | None = None) -> DiscoveryEvent:
        at = self._now() if at is None else at
        return DiscoveryEvent(DiscoveryEventKind.GAP, at, self._log_name, gap=(first, last), info=info)
