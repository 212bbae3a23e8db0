"""Images of the sources: taken, stored in the stream of events for one reader, and read back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, Position, SourceKey
from mama_spark.contracts.headers import MSG_ID
from mama_spark.discovery.image_codec import CHUNK, blocks, pack, unpack

from ..protocol.direct_get import StoredMessage
from ..protocol.headers import TTL
from .events import image_of
from .layout import LIVE
from .offsets import ABSENT, DiscoveryOffset, ImageRange, StoredImage, StreamCreationTimes
from .streams import DiscoveryStreams, StreamWatch

_PART = MSG_ID  #: a chunk may be stored twice after a lost acknowledgement


class Images:
    def __init__(self, watch: StreamWatch) -> None:
        self._watch, self._api, self._layout = watch, watch.api, watch.layout

    def take(self) -> tuple[list[DiscoveryEvent], int]:
        """The sources and IMAGE_END, and the sequence of their stream up to which the image is complete."""
        streams, layout = self._watch.refresh(), self._layout
        if not streams.generations.sources:
            return [self._end(streams.now)], 0
        found: dict[str, StoredMessage] = {}
        last = 0
        for page in self._api.pages(layout.sources, 0, f"{layout.topic}.source.>", streams.last, beyond=True):
            for record in page:
                found[record.subject] = record
            last = page[-1].sequence
        image = image_of(layout, found.values(), streams.now)
        if image.unconfirmed:
            renewed_sources = [source for source in image.unconfirmed if self._is_renewed(source)]
            image = image_of(layout, found.values(), streams.now, renewed_sources)
        return [*image.changes, self._end(streams.now, last)], last

    def _end(self, now: int, last: int = 0) -> DiscoveryEvent:
        return DiscoveryEvent(DiscoveryEventKind.IMAGE_END, now, self._layout.sources, last or None)

    def _is_renewed(self, source: SourceKey) -> bool:
        """Whether the renewal was replaced by a newer one while the stream was read; False: it has expired."""
        subject = self._layout.source_subject(source, LIVE)
        return self._api.message(self._layout.sources, last_by_subj=subject) is not None

    def store(self, before: DiscoveryOffset | None, limit: int | None) -> Position:
        """Take an image and store it; the returned offset refers to it."""
        streams = self._watch.refresh()
        if not streams.complete:
            empty = StoredImage("", 1, 0, (0, ""), 0, 0, 0, streams.now)
            return DiscoveryOffset.in_image(empty, none_yet(streams), 1).as_json()
        self._watch.warn_without_advisories()
        mark = self._watch.write_mark()
        changes, last = self.take()
        generations = self._watch.streams.generations
        token = uuid.uuid4().hex
        sequences = self._store_chunks(token, changes)
        if before is not None and before.generations.advisories == generations.advisories:
            advisories = min(before.advisories, self._watch.last_advisory())  # it may have been restored, too
        else:
            advisories = self._watch.last_advisory() if before is None else 0
        written = StoredImage(token, len(changes), last, mark, advisories, sequences[0], sequences[-1], changes[-1].at)
        image_read = len(changes) if limit is None else min(limit, len(changes))
        return DiscoveryOffset.in_image(written, generations, image_read).as_json()

    def _store_chunks(self, token: str, changes: list[DiscoveryEvent]) -> list[int]:
        chunk = min(CHUNK, self._api.connection().info.max_payload // 2)
        subject, ttl = self._layout.image_subject(token), f"{max(1, round(self._layout.kept))}s"
        return [
            self._api.publish(subject, part, {TTL: ttl, _PART: f"{token}-{i}"})
            for i, part in enumerate(pack(changes, chunk))
        ]

    def read(self, part: ImageRange) -> Iterator[list[DiscoveryEvent]]:
        """Events of a stored image; a gap if it is not kept any more."""
        image, layout, chunks = part.image, self._layout, dict[str, bytes]()
        if not image.token:
            yield [self._end(image.at)]
            return
        for page in self._api.pages(layout.events, image.first - 1, layout.image_subject(image.token), image.last):
            chunks |= {r.headers.get(_PART, ""): r.payload for r in page if r.sequence <= image.last}
        try:
            yield from blocks(unpack(list(chunks.values()), part.start, part.stop))
        except ValueError:
            text = "the image that was written down is not kept any more"
            yield [gap(layout.events, image.first, image.last, image.at, text)]


def gap(stream: str, first: int, last: int, when: int, text: str) -> DiscoveryEvent:
    return DiscoveryEvent(DiscoveryEventKind.GAP, when, stream, gap=(first, last), info=text)


def none_yet(streams: DiscoveryStreams) -> StreamCreationTimes:
    """Whether discovery has not begun, even if some streams exist."""
    return StreamCreationTimes("", "", ABSENT if streams.generations.advisories else "")
