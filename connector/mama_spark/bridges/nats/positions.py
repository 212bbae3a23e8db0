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

from ...bridge import Position


@dataclass(frozen=True, slots=True)
class Written:
    """An image written down for one reader.

    :ivar token: names the subject it stands at
    :ivar sources: number in the stream of sources up to which it tells everything
    :ivar events: number in the stream of events before which the reader need not look again
    :ivar first: numbers of its messages
    :ivar at: microseconds since the epoch, when it was taken
    """

    token: str
    sources: int
    events: int
    first: int
    last: int
    at: int


@dataclass(frozen=True, slots=True)
class Made:
    """When each stream was made, as the server tells it; empty = not there."""

    sources: str
    events: str
    advisories: str


@dataclass(frozen=True, slots=True)
class At:
    """A position that has been found.

    :ivar mark: number and time of a record; while it is there, nothing behind it was lost
    """

    events: int
    mark: tuple[int, str]
    advisories: int
    made: Made
    image: Written | None = None

    def as_json(self) -> Position:
        found: Position = {
            "events": self.events,
            "mark": list(self.mark),
            "advisories": self.advisories,
            "made": [self.made.sources, self.made.events, self.made.advisories],
        }
        if self.image is not None:
            i = self.image
            found["image"] = [i.token, i.sources, i.events, i.first, i.last, i.at]
        return found


#: ``begin("image")``
IMAGE: dict[str, Any] = {"begin": "image"}


def at(position: Position) -> At | None:
    """What a position says; None for the one of ``begin("image")``.

    :raises ValueError: it is none of ours
    """
    if position == IMAGE:
        return None
    try:
        image = position.get("image")
        sequence, time = position["mark"]
        return At(
            int(position["events"]),
            (int(sequence), str(time)),
            int(position["advisories"]),
            Made(*(str(m) for m in position["made"])),
            None if image is None else Written(str(image[0]), *(int(n) for n in image[1:])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise ValueError(f"no position of discovery on NATS: {str(position)[:200]}") from e


@dataclass(frozen=True, slots=True)
class Gone:
    """The stream was deleted and made again; what followed ``after`` is lost."""

    stream: str
    after: int


@dataclass(frozen=True, slots=True)
class Span:
    """Records ``after < sequence <= up_to`` of a stream.

    :ivar mark: see :class:`At`; None = do not look for losses (the stream is new)
    :ivar skip: see :func:`~.changes.change_of`
    """

    stream: str
    after: int
    up_to: int
    mark: tuple[int, str] | None = None
    skip: int = 0


Step = Gone | Span | Written


def between(start: At | None, end: At) -> list[Step]:
    """What a reader is told between two positions, in order; streams are named ``events``, ``sources`` and
    ``advisories``."""
    if start is None:
        return [] if end.image is None else [end.image]
    steps: list[Step] = []
    again = end.made.events != start.made.events
    fresh = end.image is not None and (start.image is None or end.image.token != start.image.token)
    up_to = end.image.events if fresh and end.image is not None else end.events
    if again:
        steps.append(Gone("events", start.events))
        steps.append(Span("events", 0, up_to, None, end.image.sources if end.image is not None else 0))
    else:
        skip = 0 if start.image is None else start.image.sources
        steps.append(Span("events", start.events, up_to, start.mark, skip))
    if end.made.sources != start.made.sources:
        steps.append(Gone("sources", 0 if start.image is None else start.image.sources))
    if fresh and end.image is not None:
        steps.append(end.image)
    if end.made.advisories and start.made.advisories:
        if end.made.advisories != start.made.advisories:
            steps.append(Gone("advisories", start.advisories))
            steps.append(Span("advisories", 0, end.advisories))
        else:
            steps.append(Span("advisories", start.advisories, end.advisories, (start.advisories, "")))
    return [s for s in steps if not isinstance(s, Span) or s.up_to > s.after]
