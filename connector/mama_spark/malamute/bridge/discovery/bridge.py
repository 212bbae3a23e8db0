"""Source discovery on a Malamute broker: :class:`~mama_spark.contracts.bridge.DiscoveryBridge` over the broker's own
stream.

Needs our broker, with its event stream stored (see :mod:`.codec`). Readers do not subscribe: they fetch by sequence,
and leave nothing behind but saved images.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, Position, SourceKey
from mama_spark.contracts.errors import ClientClosed, ConfigError, DataLost
from mama_spark.discovery import leases
from mama_spark.discovery.leases import Announced, LeaseKeeper
from mama_spark.discovery.snapshot_codec import pack, unpack
from mama_spark.discovery.source_expiry import check_ttl
from mama_spark.malamute.protocol.extensions import Extension

from .client import DiscoveryClient, DiscoverySettings, FoundMessages
from .codec import EVENT, DiscoveryMessage, StoredRecord
from .lease import MalamuteLeases
from .offsets import IMAGE, EventStreamOffset, WrittenSnapshot, next_offset, parse_offset, same_log

LATEST, EARLIEST = -1, -2  #: in place of a sequence to begin at
_CHUNK = 512 * 1024  #: octets of a saved image in one message
_NO_LIMIT = 2**62


class MalamuteDiscovery:
    """Discovery below one topic of a Malamute broker."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings, self.codec = settings, settings.codec
        self._client: DiscoveryClient | None = None

    def __repr__(self) -> str:
        return f"<MalamuteDiscovery {self.codec.events!r}, {'closed' if self._client is None else repr(self._client)}>"

    def open(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`.

        :raises ConfigError: the broker keeps no discovery (NOT_IMPLEMENTED), or refuses us
        """
        client = DiscoveryClient(self.settings)
        client.open()
        self._client = client

    def close(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`. Announced sources are renewed for a while."""
        client, self._client = self._client, None
        leases.release(self)
        if client is not None:
            client.close()

    def _require_client(self) -> DiscoveryClient:
        if self._client is None:
            raise ClientClosed("discovery is not open")
        return self._client

    # --- announcing ------------------------------------------------------------------------------------------------

    @property
    def leases(self) -> LeaseKeeper:
        """The leases of this process at this broker."""
        return leases.lease_keeper(self.settings, lambda: MalamuteLeases(self.settings))

    def create_streams(self) -> None:
        """Nothing is missing here."""

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        check_ttl(ttl)
        self._require_client()
        ttl = max(1, round(ttl * 1000)) / 1000  # as it is encoded
        self.leases.announce(self, Announced(source, record, ttl))

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        self._require_client()
        self.leases.withdraw(source, record)

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        subject = self.codec.subject(EVENT, source)
        messages = [
            DiscoveryMessage(subject, event, Extension(message_id=id_.encode()))
            for event, id_ in zip(events, ids, strict=True)
        ]
        self._require_client().store(messages)

    # --- reading ---------------------------------------------------------------------------------------------------

    def image(self) -> list[DiscoveryEvent]:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        return self._image(self._require_client().current())

    def _image(self, found: FoundMessages) -> list[DiscoveryEvent]:
        # Time of day: stamps events of its own.
        end = DiscoveryEvent(DiscoveryEventKind.IMAGE_END, time.time_ns() // 1000, self.codec.events)
        return [*self.codec.image(found.messages), end]

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`. The log has the name of the event stream; -1 is
        the latest, -2 the earliest."""
        if where == "image":
            return dict(IMAGE)
        number = {"latest": LATEST, "earliest": EARLIEST}.get(where) if isinstance(where, str) else self._number(where)
        if number is None:
            raise ConfigError(f"discovery begins at image, earliest, latest or a sequence of a log, got {where!r}")
        bounds = self._require_client().bounds()
        return EventStreamOffset(
            bounds.identity, {LATEST: bounds.last + 1, EARLIEST: bounds.first}.get(number, number)
        ).as_json()

    def _number(self, where: tuple[tuple[str, int], ...]) -> int:
        name = self.codec.events
        if len(where) != 1 or where[0][0] != name or (where[0][1] < 1 and where[0][1] not in (LATEST, EARLIEST)):
            raise ConfigError(
                f"the only log of discovery here is {name}, whose sequences begin at 1; got {dict(where)}"
            )
        return where[0][1]

    def latest_offset(self, start: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`."""
        offset, goal = parse_offset(start), None if until is None else parse_offset(until)
        bounds = self._require_client().bounds()
        log_lost = offset is not None and not same_log(offset, bounds)
        if offset is not None and log_lost and goal is not None and goal.log == offset.log:
            return start  # the goal cannot be reached any more: the next call has another one
        if offset is None or log_lost:
            saved = goal is not None and goal.image is not None and goal.log == bounds.identity
            offset = goal.advanced(0) if saved and goal is not None else self._save_image()
        if goal is not None and goal.log != offset.log:
            goal = None
        return next_offset(offset, bounds.first, bounds.last, _NO_LIMIT if limit is None else limit, goal).as_json()

    def _save_image(self) -> EventStreamOffset:
        """Save the image for this reader; the offset before it."""
        client, token = self._require_client(), secrets.token_hex(8)
        found = client.current()
        events = self._image(found)
        subject = self.codec.snapshot_subject(token)
        chunks = [
            DiscoveryMessage(subject, chunk, Extension(message_id=b"%s-%d" % (token.encode(), i)))
            for i, chunk in enumerate(pack(events, _CHUNK))
        ]
        runs = client.store(chunks)
        image = WrittenSnapshot(token, len(events), runs[0].first, runs[-1].first, found.last + 1)
        return EventStreamOffset(found.identity, image.next, image)

    # --- between two offsets ---------------------------------------------------------------------------------------

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        """See :class:`~mama_spark.contracts.bridge.DiscoveryBridge`.

        :raises DataLost: a saved image is not there any more
        """
        first, last = parse_offset(start), parse_offset(end)
        if first == last:
            return
        if last is None or (first is None and last.image is None):
            raise ConfigError("an image that was never saved cannot be read")
        if first is not None and first.log != last.log:
            info = "the stream was deleted and made again, or lost its end"
            at = time.time_ns() // 1000
            yield [
                DiscoveryEvent(DiscoveryEventKind.GAP, at, self.codec.events, gap=(first.next, first.next), info=info)
            ]
            first = None
        yield from self._between(first, last)

    def _between(self, first: EventStreamOffset | None, last: EventStreamOffset) -> Iterator[list[DiscoveryEvent]]:
        image = last.image or (None if first is None else first.image)
        if image is not None:
            start = first.delivered if first is not None and first.image == image else 0
            stop = last.delivered if last.image is not None else image.events
            if stop > start:
                yield self._saved_image(image, start, stop)
        if last.image is None and first is not None:
            yield from self._events(last.log, first.next, last.next - 1)

    def _saved_image(self, image: WrittenSnapshot, start: int, stop: int) -> list[DiscoveryEvent]:
        pages = self._require_client().fetch(image.first - 1, image.last, [self.codec.snapshot_subject(image.token)])
        try:
            return unpack([one.content for page in pages for one in page.messages], start, stop)
        except ValueError as e:
            raise DataLost(f"the image that this reader began with is not in {self.codec.events} any more: {e}") from e

    def _events(self, log: str, first: int, last: int) -> Iterator[list[DiscoveryEvent]]:
        if first > last:
            return
        expected = first
        for page in self._require_client().fetch(first - 1, last):
            if page.identity != log:
                break  # created again meanwhile: the old messages are gone
            events: list[DiscoveryEvent] = []
            for message in page.messages:
                if message.sequence > expected:
                    events.append(self._gap(expected, message.sequence - 1, message))
                expected = message.sequence + 1
                event = self.codec.event_of(message)
                if event is not None:
                    events.append(event)
            if events:
                yield events
        if expected <= last:
            yield [self._gap(expected, last, None)]

    def _gap(self, first: int, last: int, following: StoredRecord | None) -> DiscoveryEvent:
        """:param following: the message behind the gap, whose time the event has; None = now"""
        at = time.time_ns() // 1000 if following is None else following.time
        return DiscoveryEvent(DiscoveryEventKind.GAP, at, self.codec.events, gap=(first, last))
