"""Offsets of readers of discovery on NATS, and the steps from one offset to another. Pure.

**How a loss is distinguished from an expired renewal.** Renewals expire by their TTL all the time, so a changed first
sequence proves nothing. Limits, age and purges delete from the front, so while the mark exists, nothing after it was
lost except expired renewals. When it is gone, everything between the offset and the first sequence may be lost and is
reported as a gap. Deletions of single messages or of subjects by an operator cannot be detected.

**A stream that was deleted and created again** has another creation time. Then the reader gets a gap and, unless it is
the stream of advisories, a new image. So it does where the stream of events was restored from an older copy: another
record is in the place of its mark, or a new mark is stored at or before the offset. Not detected is a copy that has
grown beyond the offset, and still has the mark, which a limit left behind what was read; or in which a renewal took the
place of the mark, and expired.

**Why the reader is not** :class:`~mama_spark.discovery.log_discovery.LogDiscovery`: its offset is a place in one log.
On NATS it is a place in each of two streams, with a mark, and checkpoints hold such offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mama_spark.contracts.bridge import Position
from mama_spark.contracts.errors import ConfigError
from mama_spark.discovery.log_discovery import IMAGE


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image that was stored for one reader.

    :ivar token: part of its subject; empty: there were no streams, so the image is empty and not stored
    :ivar changes: number of its events, including IMAGE_END
    :ivar sources: sequence of the stream of sources up to which it is complete
    :ivar mark: sequence and time of a mark in the stream of events, after which reading continues
    :ivar advisories: sequence of the stream of advisories, after which reading continues
    :ivar first: sequence of its first message; ``last``: of its last
    :ivar at: time at which it was taken, microseconds since the epoch
    """

    token: str
    changes: int
    sources: int
    mark: tuple[int, str]
    advisories: int
    first: int
    last: int
    at: int


ABSENT = "absent"  #: generation of a stream of advisories that does not exist yet


@dataclass(frozen=True, slots=True)
class StreamCreationTimes:
    """Creation times of the streams, as the server's text; empty = no such stream. Advisories: empty = not requested,
    :data:`ABSENT` = no such stream."""

    sources: str
    events: str
    advisories: str


@dataclass(frozen=True, slots=True)
class DiscoveryOffset:
    """An offset of a reader that has begun.

    :ivar mark: sequence and time of a record without TTL up to here; while it exists, nothing after it was lost
    :ivar image_read: events of the image before this offset
    """

    events: int
    mark: tuple[int, str]
    advisories: int
    generations: StreamCreationTimes
    image: StoredImage | None = None
    image_read: int = 0

    @property
    def before_streams(self) -> bool:
        """Whether this offset is from before the streams: all their records come after it."""
        return not self.generations.events

    @classmethod
    def in_image(cls, image: StoredImage, generations: StreamCreationTimes, image_read: int) -> DiscoveryOffset:
        return cls(image.mark[0], image.mark, image.advisories, generations, image, image_read)

    @property
    def remaining(self) -> int:
        return 0 if self.image is None else self.image.changes - self.image_read

    def as_json(self) -> Position:
        found: Position = {
            "events": self.events,
            "mark": list(self.mark),
            "advisories": self.advisories,
            "made": [self.generations.sources, self.generations.events, self.generations.advisories],
        }
        if self.image is not None:
            i = self.image
            found["image"] = [i.token, i.changes, i.sources, list(i.mark), i.advisories, i.first, i.last, i.at]
            found["told"] = self.image_read
        return found


def parse_offset(position: Position) -> DiscoveryOffset | None:
    """An offset from its JSON; None for :data:`IMAGE`. ConfigError: not an offset of NATS discovery."""
    if position == IMAGE:
        return None
    try:
        sequence, time = position["mark"]
        return DiscoveryOffset(
            int(position["events"]),
            (int(sequence), str(time)),
            int(position["advisories"]),
            StreamCreationTimes(*(str(m) for m in position["made"])),
            _parse_image(position.get("image")),
            int(position.get("told", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise ConfigError(f"no position of discovery on NATS: {str(position)[:200]}") from e


def _parse_image(image: list[Any] | None) -> StoredImage | None:
    if image is None:
        return None
    token, changes, sources, (mark, time), advisories, first, last, taken = image
    numbers = (int(n) for n in (first, last, taken))
    return StoredImage(str(token), int(changes), int(sources), (int(mark), str(time)), int(advisories), *numbers)


@dataclass(frozen=True, slots=True)
class StreamRecreated:
    """The stream was deleted and created again, or went back; what followed ``after`` is lost."""

    stream: str
    after: int


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records ``after < sequence <= up_to`` of a stream.

    :ivar mark: see :class:`DiscoveryOffset`; None = do not check for losses (the stream is new)
    :ivar skip: see :func:`~.events.event_of`
    """

    stream: str
    after: int
    up_to: int
    mark: tuple[int, str] | None = None
    skip: int = 0


@dataclass(frozen=True, slots=True)
class ImageRange:
    """Events ``start`` (inclusive) to ``stop`` (exclusive) of an image."""

    image: StoredImage
    start: int
    stop: int


Step = StreamRecreated | RecordRange | ImageRange


def steps_between(start: DiscoveryOffset | None, end: DiscoveryOffset) -> list[Step]:
    """The reads from one offset to another, in order; the streams are ``events``, ``sources`` and ``advisories``."""
    steps: list[Step] = []
    fresh = end.image is not None and (start is None or start.image is None or end.image.token != start.image.token)
    if start is not None:
        steps += _events(start, end, fresh)
        if end.generations.sources != start.generations.sources != "":
            steps.append(StreamRecreated("sources", 0 if start.image is None else start.image.sources))
    if end.image is not None:
        steps.append(ImageRange(end.image, 0 if fresh or start is None else start.image_read, end.image_read))
    if fresh and end.image is not None:  # events since it was taken
        steps.append(RecordRange("events", end.image.mark[0], end.events, end.image.mark, end.image.sources))
    steps += _advisories(start, end)
    return [
        s
        for s in steps
        if isinstance(s, StreamRecreated) or (s.stop > s.start if isinstance(s, ImageRange) else s.up_to > s.after)
    ]


def _events(start: DiscoveryOffset, end: DiscoveryOffset, fresh: bool) -> list[Step]:
    """Steps in the stream of events, up to a new image."""
    image = end.image
    up_to = image.mark[0] if fresh and image is not None else end.events
    if not start.generations.events:  # from before the streams
        return [RecordRange("events", start.events, up_to, None)]
    if end.generations.events != start.generations.events:
        skip = 0 if image is None else image.sources
        return [StreamRecreated("events", start.events), RecordRange("events", 0, up_to, None, skip)]
    if fresh and end.generations.sources == start.generations.sources:  # the same streams: they went back
        return [StreamRecreated("events", start.events)]
    return [RecordRange("events", start.events, up_to, start.mark, 0 if start.image is None else start.image.sources)]


def _advisories(start: DiscoveryOffset | None, end: DiscoveryOffset) -> list[Step]:
    if start is None:
        begin = end.image.advisories if end.image is not None else end.advisories
        return [RecordRange("advisories", begin, end.advisories, (begin, ""))]
    if not (end.generations.advisories and start.generations.advisories) or end.generations.advisories == ABSENT:
        return []
    if start.generations.advisories == ABSENT:
        return [RecordRange("advisories", 0, end.advisories)]
    if end.generations.advisories != start.generations.advisories:
        return [StreamRecreated("advisories", start.advisories), RecordRange("advisories", 0, end.advisories)]
    return [RecordRange("advisories", start.advisories, end.advisories, (start.advisories, ""))]
