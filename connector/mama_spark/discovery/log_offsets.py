"""The offsets of a reader of discovery that is kept in one log. Pure.

An offset names the log by its identity and the next sequence to be read; at the beginning also the image that was saved
for the reader, and how many of its events were delivered. A log with another identity, or one that ends before what was
read, is another log: the reader then gets a gap and a new image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mama_spark.contracts.bridge import Position
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Bounds, Continuity, continuity

#: The offset of a reader that begins with an image.
IMAGE: dict[str, Any] = {"begin": "image"}


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """An image that was saved for one reader.

    :ivar token: names the subject of its messages
    :ivar events: how many it consists of, the end included
    :ivar first: first and :attr:`last` sequence of its messages; others may lie between
    :ivar next: the first sequence that it does not include
    """

    token: str
    events: int
    first: int
    last: int
    next: int


@dataclass(frozen=True, slots=True)
class LogOffset:
    """:ivar delivered: events of the image before this offset; after all of them comes the log"""

    log: str
    next: int
    image: WrittenSnapshot | None = None
    delivered: int = 0

    @property
    def remaining(self) -> int:
        """Events of the image that were not delivered."""
        return 0 if self.image is None else self.image.events - self.delivered

    def advanced(self, delivered: int) -> LogOffset:
        return replace(self, delivered=delivered)

    def as_json(self, identity: str = "log") -> Position:
        """:param identity: name of the log's identity"""
        found: Position = {identity: self.log, "next": self.next}
        if self.image is not None:
            i = self.image
            found |= {"image": [i.token, i.events, i.first, i.last, i.next], "told": self.delivered}
        return found


def parse_offset(position: Position, where: str, identity: str = "log") -> LogOffset | None:
    """The offset of a JSON value; None for the one of ``initial_offset("image")``.

    :param where: the discovery that it must be of
    :raises ConfigError: it is none of it
    """
    if position == IMAGE:
        return None
    try:
        image = position.get("image")
        saved = None if image is None else WrittenSnapshot(str(image[0]), *(int(number) for number in image[1:]))
        return LogOffset(str(position[identity]), int(position["next"]), saved, int(position.get("told", 0)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise ConfigError(f"no offset of discovery on {where}: {str(position)[:200]}") from e


def same_log(offset: LogOffset, bounds: Bounds) -> bool:
    """Whether the log is the one of the offset."""
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
