"""Where a reader of discovery on a Malamute broker stands. Pure.

A position names the log by its identity and the next number to be read; in an image also the image, as it was written
down for the reader, and how much of it was told. Another identity, or a log that ends in front of what was read, is
another log: then the reader is told of a gap and given a fresh image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mama_spark.bridge import Position
from mama_spark.errors import ConfigError

#: ``begin("image")``
IMAGE: dict[str, Any] = {"begin": "image"}


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """An image written down for one reader.

    :ivar token: names the subject it stands at
    :ivar changes: how many it is made of, the end included
    :ivar first: numbers of its messages, others may lie between
    :ivar next: it tells everything up to, but without this number
    """

    token: str
    changes: int
    first: int
    last: int
    next: int


@dataclass(frozen=True, slots=True)
class EventStreamOffset:
    """:ivar told: changes of the image before this position; all of them: what comes is the log"""

    log: str
    next: int
    image: WrittenSnapshot | None = None
    told: int = 0

    @property
    def left(self) -> int:
        """How much of the image is still to be told."""
        return 0 if self.image is None else self.image.changes - self.told

    def further(self, told: int) -> EventStreamOffset:
        return replace(self, told=told)

    def as_json(self) -> Position:
        found: Position = {"log": self.log, "next": self.next}
        if self.image is not None:
            i = self.image
            found |= {"image": [i.token, i.changes, i.first, i.last, i.next], "told": self.told}
        return found


def parse_offset(position: Position) -> EventStreamOffset | None:
    """What a position says; None for the one of ``begin("image")``.

    :raises ConfigError: it is none of ours
    """
    if position == IMAGE:
        return None
    try:
        image = position.get("image")
        written = None if image is None else WrittenSnapshot(str(image[0]), *(int(number) for number in image[1:]))
        return EventStreamOffset(str(position["log"]), int(position["next"]), written, int(position.get("told", 0)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise ConfigError(f"no position of discovery on Malamute: {str(position)[:200]}") from e


def same_log(place: EventStreamOffset, identity: str, last: int) -> bool:
    """Is the log that ends with ``last`` the one where ``place`` is?"""
    return place.log == identity and last >= place.next - 1


def onward(
    place: EventStreamOffset, first: int, last: int, most: int, goal: EventStreamOffset | None
) -> EventStreamOffset:
    """The position after what there is, at most ``most`` records on and not beyond ``goal``, which is of the same log;
    the same position if there is nothing."""
    image = place.image
    if image is not None and place.left:
        whole = goal.told if goal is not None and goal.image == image else image.changes
        return place.further(max(place.told, min(whole, place.told + most)))
    if goal is not None and goal.image is not None:
        return place
    end = min(last + 1, max(place.next, first) + most)
    if goal is not None:
        end = min(end, goal.next)
    return place if end <= place.next else EventStreamOffset(place.log, end)
