"""Where a reader of discovery on NATS stands, and what lies between two such places. Pure.

**What a position holds.** A number in the stream of events; a *mark*: a record without TTL at or before that number,
with its time; the image that the reader began with; a number in the stream of advisories; when each stream was made.

**How a loss is told from a vanished renewal.** Renewals vanish by their TTL all the time, so a first number that moved
proves nothing. Limits, age and purges delete from the front, so while the mark is there nothing behind it was lost that
was not meant to vanish. When it is gone, everything between the position and the first number may be lost and is
called so. What an operator deletes singly, or by subject, cannot be told.

**A stream that was deleted and made again** has another time of making. Then the reader is told of a gap and, unless it
is the stream of advisories, given a fresh image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mama_spark.bridge import Position
from mama_spark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SavedSnapshot:
    """An image written down for one reader.

    :ivar token: names the subject it stands at
    :ivar changes: how many it is made of, the end included
    :ivar sources: number in the stream of sources up to which it tells everything
    :ivar mark: number and time of a mark in the stream of events: before it the reader need not look again
    :ivar advisories: number in their stream, likewise
    :ivar first: numbers of its messages
    :ivar at: microseconds since the epoch, when it was taken
    """

    token: str
    changes: int
    sources: int
    mark: tuple[int, str]
    advisories: int
    first: int
    last: int
    at: int


@dataclass(frozen=True, slots=True)
class StreamGenerations:
    """When each stream was made, as the server tells it; empty = not there."""

    sources: str
    events: str
    advisories: str


@dataclass(frozen=True, slots=True)
class DiscoveryOffset:
    """A position that has been found.

    :ivar mark: number and time of a record; while it is there, nothing behind it was lost
    :ivar told: how much of the image lies before this position
    """

    events: int
    mark: tuple[int, str]
    advisories: int
    made: StreamGenerations
    image: SavedSnapshot | None = None
    told: int = 0

    @classmethod
    def in_image(cls, image: SavedSnapshot, made: StreamGenerations, told: int) -> DiscoveryOffset:
        """The position behind the first ``told`` changes of an image."""
        return cls(image.mark[0], image.mark, image.advisories, made, image, told)

    @property
    def left(self) -> int:
        """How much of the image is still to be told."""
        return 0 if self.image is None else self.image.changes - self.told

    def as_json(self) -> Position:
        found: Position = {
            "events": self.events,
            "mark": list(self.mark),
            "advisories": self.advisories,
            "made": [self.made.sources, self.made.events, self.made.advisories],
        }
        if self.image is not None:
            i = self.image
            found["image"] = [i.token, i.changes, i.sources, list(i.mark), i.advisories, i.first, i.last, i.at]
            found["told"] = self.told
        return found


#: ``begin("image")``
IMAGE: dict[str, Any] = {"begin": "image"}


def at(position: Position) -> DiscoveryOffset | None:
    """What a position says; None for the one of ``begin("image")``.

    :raises ConfigError: it is none of ours
    """
    if position == IMAGE:
        return None
    try:
        sequence, time = position["mark"]
        return DiscoveryOffset(
            int(position["events"]),
            (int(sequence), str(time)),
            int(position["advisories"]),
            StreamGenerations(*(str(m) for m in position["made"])),
            _written(position.get("image")),
            int(position.get("told", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise ConfigError(f"no position of discovery on NATS: {str(position)[:200]}") from e


def _written(image: list[Any] | None) -> SavedSnapshot | None:
    if image is None:
        return None
    token, changes, sources, (mark, time), advisories, first, last, taken = image
    numbers = (int(n) for n in (first, last, taken))
    return SavedSnapshot(str(token), int(changes), int(sources), (int(mark), str(time)), int(advisories), *numbers)


@dataclass(frozen=True, slots=True)
class StreamRecreated:
    """The stream was deleted and made again; what followed ``after`` is lost."""

    stream: str
    after: int


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records ``after < sequence <= up_to`` of a stream.

    :ivar mark: see :class:`DiscoveryOffset`; None = do not look for losses (the stream is new)
    :ivar skip: see :func:`~.events.change_of`
    """

    stream: str
    after: int
    up_to: int
    mark: tuple[int, str] | None = None
    skip: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """Changes ``start`` up to, but without ``stop`` of an image."""

    image: SavedSnapshot
    start: int
    stop: int


Step = StreamRecreated | RecordRange | SnapshotRange


def between(start: DiscoveryOffset | None, end: DiscoveryOffset) -> list[Step]:
    """What a reader is told between two positions, in order; streams are named ``events``, ``sources`` and
    ``advisories``."""
    steps: list[Step] = []
    fresh = end.image is not None and (start is None or start.image is None or end.image.token != start.image.token)
    if start is not None:
        steps += _events(start, end, fresh)
        if end.made.sources != start.made.sources:
            steps.append(StreamRecreated("sources", 0 if start.image is None else start.image.sources))
    if end.image is not None:
        steps.append(SnapshotRange(end.image, 0 if fresh or start is None else start.told, end.told))
    if fresh and end.image is not None:  # what has changed since it was taken
        steps.append(RecordRange("events", end.image.mark[0], end.events, end.image.mark, end.image.sources))
    steps += _advisories(start, end)
    return [
        s
        for s in steps
        if isinstance(s, StreamRecreated) or (s.stop > s.start if isinstance(s, SnapshotRange) else s.up_to > s.after)
    ]


def _events(start: DiscoveryOffset, end: DiscoveryOffset, fresh: bool) -> list[Step]:
    """Changes of sources and events, up to where a fresh image was taken."""
    image = end.image
    up_to = image.mark[0] if fresh and image is not None else end.events
    if end.made.events != start.made.events:
        skip = 0 if image is None else image.sources
        return [StreamRecreated("events", start.events), RecordRange("events", 0, up_to, None, skip)]
    return [RecordRange("events", start.events, up_to, start.mark, 0 if start.image is None else start.image.sources)]


def _advisories(start: DiscoveryOffset | None, end: DiscoveryOffset) -> list[Step]:
    if start is None:
        begin = end.image.advisories if end.image is not None else end.advisories
        return [RecordRange("advisories", begin, end.advisories, (begin, ""))]
    if not (end.made.advisories and start.made.advisories):
        return []
    if end.made.advisories != start.made.advisories:
        return [StreamRecreated("advisories", start.advisories), RecordRange("advisories", 0, end.advisories)]
    return [RecordRange("advisories", start.advisories, end.advisories, (start.advisories, ""))]
