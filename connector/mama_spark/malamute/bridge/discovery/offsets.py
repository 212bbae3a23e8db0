"""The offsets of a reader of discovery on a Malamute broker. Pure.

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

#: ``initial_offset("image")``
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
class EventStreamOffset:
    """:ivar delivered: events of the image before this offset; after all of them comes the log"""

    log: str
    next: int
    image: WrittenSnapshot | None = None
    delivered: int = 0

    @property
    def remaining(self) -> int:
        """Events of the image that were not delivered."""
        return 0 if self.image is None else self.image.events - self.delivered

    def advanced(self, delivered: int) -> EventStreamOffset:
        return replace(self, delivered=delivered)

    def as_json(self) -> Position:
        found: Position = {"log": self.log, "next": self.next}
        if self.image is not None:
            i = self.image
            found |= {"image": [i.token, i.events, i.first, i.last, i.next], "told": self.delivered}
        return found


def parse_offset(position: Position) -> EventStreamOffset | None:
    """The offset of a JSON value; None for the one of ``initial_offset("image")``.

    :raises ConfigError: it is none of this bridge
    """
    if position == IMAGE:
        return None
    try:
        image = position.get("image")
        saved = None if image is None else WrittenSnapshot(str(image[0]), *(int(number) for number in image[1:]))
        return EventStreamOffset(str(position["log"]), int(position["next"]), saved, int(position.get("told", 0)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise ConfigError(f"no offset of discovery on Malamute: {str(position)[:200]}") from e


def same_log(offset: EventStreamOffset, bounds: Bounds) -> bool:
    """Whether the log is the one of the offset."""
    return continuity(offset.next, offset.log, bounds) not in (Continuity.RECREATED, Continuity.SHORTER)


def next_offset(
    start: EventStreamOffset, first: int, last: int, most: int, goal: EventStreamOffset | None
) -> EventStreamOffset:
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
    return start if end <= start.next else EventStreamOffset(start.log, end)
