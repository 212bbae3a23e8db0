"""Reads the streams of discovery: the image, offsets, and the events between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from mama_spark.contracts.bridge import DiscoveryEvent, Position
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import EARLIEST, LATEST

from ..jetstream.client import JetStream
from ..protocol.direct_get import StoredMessage, micros
from . import consumer_advisories as adv
from .consumer_tracker import ConsumerTracker
from .events import event_of
from .images import Images, gap, none_yet
from .layout import DiscoveryLayout
from .offsets import (
    ABSENT,
    DiscoveryOffset,
    ImageRange,
    RecordRange,
    StreamCreationTimes,
    StreamRecreated,
    parse_offset,
    steps_between,
)
from .streams import StreamWatch

_ADVANCE = 600.0  #: age in seconds of the record at an offset, at which the offset advances without an event
_MANY = 100  #: advisories that requests of the reader itself may have made: no reason to advance an offset


class DiscoveryReader:
    """Reader whose only state is a cache: the sequence up to which it found no event."""

    def __init__(self, api: JetStream, layout: DiscoveryLayout, clock_offset: float) -> None:
        self.api, self.layout = api, layout
        self.watch = StreamWatch(api, layout)
        self.images = Images(self.watch)
        self._scanned: dict[tuple[str, str, int], int] = {}
        self._consumers = ConsumerTracker(api, clock_offset)

    # --- initial offsets ----------------------------------------------------------------------------------------

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`; not for ``image``."""
        named = {where: 0} if isinstance(where, str) else dict(where)
        unknown = set(named) - {"earliest", "latest", self.layout.events, self.layout.advisories}
        if unknown:
            logs = ", ".join(filter(None, (self.layout.events, self.layout.advisories)))
            raise ConfigError(f"discovery has no log {sorted(unknown)[0]!r}; there are {logs}")
        default = EARLIEST if where == "earliest" else LATEST
        streams = self.watch.refresh()
        if not streams.complete:
            if named.get(self.layout.events, 0) > 0:
                raise ConfigError(f"the stream {self.layout.events!r} is not there yet: it has no number")
            return DiscoveryOffset(0, (0, ""), 0, none_yet(streams)).as_json()
        self.watch.warn_without_advisories()
        events, mark = self._initial_events_offset(named.get(self.layout.events, default))
        advisories = 0
        if self.watch.advisories is not None and self.layout.advisories is not None:
            wanted = named.get(self.layout.advisories, default)
            first, last = self.api.first_and_last(self.layout.advisories)
            advisories = last if wanted == LATEST else max(0, first - 1) if wanted == EARLIEST else max(0, wanted - 1)
        return DiscoveryOffset(events, mark, advisories, streams.generations).as_json()

    def _initial_events_offset(self, wanted: int) -> tuple[int, tuple[int, str]]:
        if wanted == LATEST:
            mark = self.watch.write_mark()
            return mark[0], mark
        after = max(0, wanted - 1)
        if wanted > 0:
            first, last = self.api.first_and_last(self.layout.events)
            if wanted > last + 1:
                raise ConfigError(f"the stream {self.layout.events!r} has no number {wanted} yet: the last is {last}")
            if wanted < first:
                return after, (after, "")  # that record was removed: reading begins with a gap
        for page in self.api.pages(self.layout.events, after, f"{self.layout.topic}.>"):
            for record in page:
                if event_of(self.layout, record) is not None:
                    return record.sequence - 1, (record.sequence, record.time)
        mark = self.watch.write_mark()
        return mark[0], mark

    # --- latest offsets -----------------------------------------------------------------------------------------

    def latest_offset(self, start: Position, limit: int | None, until: Position | None) -> Position:
        here, stop = parse_offset(start), None if until is None else parse_offset(until)
        if here is None or here.remaining > 0 or (stop is not None and _image_token(stop) != _image_token(here)):
            return self._latest_in_image(here, limit, stop)
        generations, mark = self.watch.look(here)
        if not self.watch.streams.complete or (stop is not None and stop.before_streams):
            return start
        made, before = (generations.sources, generations.events), (here.generations.sources, here.generations.events)
        if not here.before_streams and (made != before or mark not in (None, here.mark)):
            return start if stop is not None else self._begin_again(here, limit)
        shorter = mark is None and self.watch.streams.last_event < here.mark[0]
        overdue = shorter or self._is_old(here.mark[1]) or self._falls_behind(here)
        return self._advance(here, generations, overdue, limit, stop) or start

    def _begin_again(self, here: DiscoveryOffset, limit: int | None) -> Position:
        """The offset in a new image: the streams were made again, or restored from older copies."""
        self._scanned.clear()
        return self.images.store(here, limit)

    def _latest_in_image(
        self, here: DiscoveryOffset | None, limit: int | None, stop: DiscoveryOffset | None
    ) -> Position:
        """The next offset within an image; within the image of ``stop`` if ``here`` is not in one."""
        if stop is not None and stop.image is not None and _image_token(stop) != _image_token(here):
            here = DiscoveryOffset.in_image(stop.image, stop.generations, 0)
        if here is None or here.image is None:
            return self.images.store(None, limit)
        image_read = here.image.changes if limit is None else min(here.image.changes, here.image_read + limit)
        if stop is not None and stop.events <= here.events:
            image_read = min(image_read, stop.image_read)
        return replace(here, image_read=image_read).as_json()

    def _advance(
        self,
        here: DiscoveryOffset,
        generations: StreamCreationTimes,
        overdue: bool,
        limit: int | None,
        stop: DiscoveryOffset | None,
    ) -> Position | None:
        share = None if limit is None else max(1, limit // 4)
        if here.generations.advisories == ABSENT and self.watch.advisories is not None:
            advisories, found = self._scan_advisories(here, share)
        elif generations.advisories != here.generations.advisories:
            advisories, found = self.watch.last_advisory(), 1
        else:
            advisories, found = self._scan_advisories(here, share)
        rest = None if limit is None else limit - found
        events, changed = (here.events, 0) if rest == 0 else self._scan_events(here, rest)
        if not found and not changed and not overdue:
            return None
        mark = self.watch.write_mark()
        if mark[0] <= here.events:
            return None if stop is not None else self._begin_again(here, limit)
        moves = self._falls_behind(here) or self._is_old(self.watch.advisory_time(here.advisories))
        if moves and (share is None or found < share):
            advisories = max(advisories, self.watch.last_advisory())  # those that tell nothing expire, too
        if rest is None or changed < rest:
            events = mark[0]  # all of it
        if stop is not None:
            events, advisories = min(events, stop.events), min(advisories, stop.advisories)
        if events <= here.events and advisories <= here.advisories and generations == here.generations:
            return None
        marks = [m for m in (mark, here.mark, *(() if stop is None else (stop.mark,))) if m[0] <= events]
        events = max(events, here.events)
        if generations.advisories == here.generations.advisories:
            advisories = max(advisories, here.advisories)
        best = max(marks, default=here.mark)
        return replace(here, events=events, mark=best, advisories=advisories, generations=generations).as_json()

    def _is_old(self, time: str) -> bool:
        """Whether an offset has to move on from a record of this time, so that the record is still kept."""
        return self.watch.now - micros(time) / 1e6 > min(_ADVANCE, self.layout.kept / 10)

    def _falls_behind(self, here: DiscoveryOffset) -> bool:
        """Whether half of the kept advisories, and at least :data:`_MANY`, have come since an offset: the stream may
        keep them for less time than :data:`_ADVANCE`."""
        first, last = self.watch.streams.advisories
        return last - here.advisories > max(_MANY, (last - first) // 2)

    def _scan_events(self, here: DiscoveryOffset, limit: int | None) -> tuple[int, int]:
        """The result of :meth:`_scan`; at most one without a limit."""
        skip = 0 if here.image is None else here.image.sources

        def tells(record: StoredMessage) -> bool:
            return event_of(self.layout, record, skip) is not None

        return self._scan((self.layout.events, here.generations.events, here.events), limit or 1, tells)

    def _scan_advisories(self, here: DiscoveryOffset, limit: int | None) -> tuple[int, int]:
        stream = self.watch.advisories
        if stream is None:
            return here.advisories, 0

        def tells(record: StoredMessage) -> bool:
            return adv.consumer_event(record) is not None

        return self._scan((stream, here.generations.advisories, here.advisories), limit, tells)

    def _scan(
        self, place: tuple[str, str, int], limit: int | None, tells: Callable[[StoredMessage], bool]
    ) -> tuple[int, int]:
        """Count events behind ``place`` (stream, its generation, sequence); returns the last one's sequence and their
        number."""
        stream, _, after = place
        after, found = self._scanned.get(place, after), 0
        for page in self.api.pages(stream, after, self._subject(stream)):
            for record in page:
                found += tells(record)
                if limit is not None and found >= limit:
                    return record.sequence, found
            after = page[-1].sequence
        if not found:
            self._scanned = {k: v for k, v in self._scanned.items() if k[0] != stream} | {place: after}
        return after, found

    def _subject(self, stream: str) -> str:
        return f"{self.layout.topic}.>" if stream == self.layout.events else adv.CONSUMERS

    # --- events between two offsets-----------------------------------------------------------------------------------

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        here, there = parse_offset(start), parse_offset(end)
        if there is None:
            return
        for step in steps_between(here, there):
            if isinstance(step, StreamRecreated):
                yield [self._recreated_event(step, there)]
            elif isinstance(step, ImageRange):
                yield from self.images.read(step)
            else:
                yield from self._read_records(step, there)

    def _recreated_event(self, step: StreamRecreated, there: DiscoveryOffset) -> DiscoveryEvent:
        when = 0 if there.image is None else there.image.at
        text = "the stream was deleted and made again, or restored from an older copy: what followed is lost"
        return gap(getattr(self.layout, step.stream) or "", step.after + 1, step.after + 1, when, text)

    def _read_records(self, span: RecordRange, there: DiscoveryOffset) -> Iterator[list[DiscoveryEvent]]:
        stream, after = getattr(self.layout, span.stream), span.after
        if stream is None:
            return
        if self._was_made_again(span, there):
            text = "the stream was deleted and made again before these were read"
            yield [gap(stream, span.after + 1, span.up_to, self.watch.streams.now, text)]
            return
        for page in self.api.pages(stream, after, self._subject(stream), span.up_to):
            changes = [c for r in page if r.sequence <= span.up_to for c in self._events_of(span, r)]
            changes = [*self._lost_events(span, after), *changes]
            if changes:
                yield changes
            after = page[-1].sequence
        lost = self._lost_events(span, after)
        if lost:
            yield lost

    def _was_made_again(self, span: RecordRange, there: DiscoveryOffset) -> bool:
        if span.stream == "events" and self._is_complete(span):
            return False
        generations = self.watch.refresh().generations
        return bool(getattr(generations, span.stream) != getattr(there.generations, span.stream))

    def _is_complete(self, span: RecordRange) -> bool:
        return span.mark is None or (span.stream == "events" and self.watch.mark_exists(span.mark))

    def _events_of(self, span: RecordRange, record: StoredMessage) -> list[DiscoveryEvent]:
        if span.stream != "events":
            generation = self.watch.streams.generations.advisories
            return self._consumers.changes(getattr(self.layout, span.stream), record, generation)
        event = event_of(self.layout, record, span.skip)
        return [] if event is None else [event]

    def _lost_events(self, span: RecordRange, after: int) -> list[DiscoveryEvent]:
        """Gaps for records after ``after`` that may be lost, because the stream has lost its beginning."""
        if after >= span.up_to or self._is_complete(span):
            return []
        stream = getattr(self.layout, span.stream)
        first, last = self.api.first_and_last(stream)
        if not last:
            first = span.up_to + 1
        if first <= after + 1:
            return []
        text = "the stream does not keep these any more: they were not read in time"
        return [gap(stream, after + 1, min(first - 1, span.up_to), self.watch.streams.now, text)]


def _image_token(position: DiscoveryOffset | None) -> str | None:
    return None if position is None or position.image is None else position.image.token
