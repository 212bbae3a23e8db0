"""Discovery on Malamute: :class:`~mama_spark.bridge.DiscoveryBridge` over the broker's own stream (see
:mod:`.codec`).

Needs our broker, with its stream of events stored. Readers subscribe to nothing: they fetch by number, and leave
nothing behind but images.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator, Sequence

from mama_spark.bridge import DiscoveryEvent, DiscoveryEventKind, Position, SourceKey
from mama_spark.bridges.snapshot_codec import pack, unpack
from mama_spark.errors import ClientClosed, ConfigError, DataLost
from mama_spark.malamute.protocol.extensions import Extension
from mama_spark.source_expiry import check_ttl

from . import offsets as positions
from .client import DiscoveryClient, DiscoverySettings, FoundMessages, LogBounds
from .codec import EVENT, DiscoveryMessage, StoredRecord
from .lease import RenewalKeeper, renewal_keeper
from .offsets import EventStreamOffset, WrittenSnapshot

_holders = itertools.count(1)
LATEST, EARLIEST = -1, -2  #: numbers that stand for a place to begin
_CHUNK = 512 * 1024  #: octets of an image in one message
_MOST = 2**62


class MalamuteDiscovery:
    """A place of discovery on a Malamute broker."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings, self.words = settings, settings.words
        self._talk: DiscoveryClient | None = None
        self._announcer: RenewalKeeper | None = None
        self._holder = next(_holders)

    def __repr__(self) -> str:
        return f"<MalamuteDiscovery {self.words.events!r}, {'closed' if self._talk is None else repr(self._talk)}>"

    def open(self) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`.

        :raises ConfigError: the broker keeps no discovery (NOT_IMPLEMENTED), or refuses us
        """
        talk = DiscoveryClient(self.settings)
        talk.open()
        self._talk = talk

    def close(self) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`. What is announced stays warm for a while."""
        talk, self._talk = self._talk, None
        if self._announcer is not None:
            self._announcer.release(self._holder)
            self._announcer = None
        if talk is not None:
            talk.close()

    def _open(self) -> DiscoveryClient:
        if self._talk is None:
            raise ClientClosed("discovery is not open")
        return self._talk

    # --- who announces ---------------------------------------------------------------------------------------------

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        check_ttl(ttl)
        self._open()
        self._announcer = renewal_keeper(self.settings)
        self._announcer.announce(self._holder, source, record, ttl)

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        self._open()
        renewal_keeper(self.settings).withdraw(source, record)

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        subject = self.words.subject(EVENT, source)
        told = [
            DiscoveryMessage(subject, event, Extension(message_id=id_.encode()))
            for event, id_ in zip(events, ids, strict=True)
        ]
        self._open().store(told)

    # --- who reads -------------------------------------------------------------------------------------------------

    def image(self) -> list[DiscoveryEvent]:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        return self._image(self._open().standing())

    def _image(self, found: FoundMessages) -> list[DiscoveryEvent]:
        end = DiscoveryEvent(DiscoveryEventKind.IMAGE_END, time.time_ns() // 1000, self.words.events)
        return [*self.words.image(found.messages), end]

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`. The log is named as the stream of events; -1 is the latest,
        -2 the earliest."""
        if where == "image":
            return dict(positions.IMAGE)
        number = {"latest": LATEST, "earliest": EARLIEST}.get(where) if isinstance(where, str) else self._number(where)
        if number is None:
            raise ConfigError(f"discovery begins at image, earliest, latest or a number of a log, got {where!r}")
        there = self._open().extent()
        return EventStreamOffset(
            there.identity, {LATEST: there.last + 1, EARLIEST: there.first}.get(number, number)
        ).as_json()

    def _number(self, where: tuple[tuple[str, int], ...]) -> int:
        name = self.words.events
        if len(where) != 1 or where[0][0] != name or (where[0][1] < 1 and where[0][1] not in (LATEST, EARLIEST)):
            raise ConfigError(f"the only log of discovery here is {name}, whose numbers begin at 1; got {dict(where)}")
        return where[0][1]

    def latest_offset(self, start: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`."""
        place, goal = positions.parse_offset(start), None if until is None else positions.parse_offset(until)
        there = self._open().extent()
        fresh = place is None or not positions.same_log(place, there.identity, there.last)
        if place is not None and fresh and goal is not None and goal.log == place.log:
            return start  # it cannot be reached any more: the next call has another goal
        if place is None or fresh:
            planned = goal is not None and goal.image is not None and goal.log == there.identity
            place = goal.further(0) if planned and goal is not None else self._write_image(there)
        if goal is not None and goal.log != place.log:
            goal = None
        found = positions.onward(place, there.first, there.last, _MOST if limit is None else limit, goal)
        return found.as_json()

    def _write_image(self, there: LogBounds) -> EventStreamOffset:
        """Write the image down for this reader; the position before it."""
        talk, token = self._open(), secrets.token_hex(8)
        found = talk.standing()
        changes = self._image(found)
        subject = self.words.image_subject(token)
        chunks = [
            DiscoveryMessage(subject, chunk, Extension(message_id=b"%s-%d" % (token.encode(), i)))
            for i, chunk in enumerate(pack(changes, _CHUNK))
        ]
        runs = talk.store(chunks)
        image = WrittenSnapshot(token, len(changes), runs[0].first, runs[-1].first, found.last + 1)
        return EventStreamOffset(found.identity, image.next, image)

    # --- between two positions -------------------------------------------------------------------------------------

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        """See :class:`~mama_spark.bridge.DiscoveryBridge`.

        :raises DataLost: an image that was written down is not there any more
        """
        first, last = positions.parse_offset(start), positions.parse_offset(end)
        if first == last:
            return
        if last is None or (first is None and last.image is None):
            raise ConfigError("an image that was never written down cannot be read")
        if first is not None and first.log != last.log:
            info = "the stream was deleted and made again, or lost its end"
            at = time.time_ns() // 1000
            yield [
                DiscoveryEvent(DiscoveryEventKind.GAP, at, self.words.events, gap=(first.next, first.next), info=info)
            ]
            first = None
        yield from self._between(first, last)

    def _between(self, first: EventStreamOffset | None, last: EventStreamOffset) -> Iterator[list[DiscoveryEvent]]:
        image = last.image or (None if first is None else first.image)
        if image is not None:
            told = first.told if first is not None and first.image == image else 0
            stop = last.told if last.image is not None else image.changes
            if stop > told:
                yield self._written(image)[told:stop]
        if last.image is None and first is not None:
            yield from self._changes(last.log, first.next, last.next - 1)

    def _written(self, image: WrittenSnapshot) -> list[DiscoveryEvent]:
        pages = self._open().fetch(image.first - 1, image.last, [self.words.image_subject(image.token)])
        try:
            return unpack([one.content for page in pages for one in page.messages])
        except ValueError as e:
            raise DataLost(f"the image that this reader began with is not in {self.words.events} any more: {e}") from e

    def _changes(self, log: str, first: int, last: int) -> Iterator[list[DiscoveryEvent]]:
        if first > last:
            return
        expected = first
        for page in self._open().fetch(first - 1, last):
            if page.identity != log:
                break  # made again meanwhile: what stood there is gone
            changes: list[DiscoveryEvent] = []
            for one in page.messages:
                if one.sequence > expected:
                    changes.append(self._gap(expected, one.sequence - 1, one))
                expected = one.sequence + 1
                change = self.words.change(one)
                if change is not None:
                    changes.append(change)
            if changes:
                yield changes
        if expected <= last:
            yield [self._gap(expected, last, None)]

    def _gap(self, first: int, last: int, behind: StoredRecord | None) -> DiscoveryEvent:
        """:param behind: the message that comes next; nobody knows when the others went"""
        at = time.time_ns() // 1000 if behind is None else behind.time
        return DiscoveryEvent(DiscoveryEventKind.GAP, at, self.words.events, gap=(first, last))
