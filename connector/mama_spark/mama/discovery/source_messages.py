"""The messages of an image and its changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.discovery.source_expiry import offline_by_absence

from ..messages.msg import MamaMsg
from ..messages.omnm import BadMessage, decode
from ..messages.source_records import (
    MAX_RECORD_BYTES,
    OFFLINE,
    BadSourceRecord,
    SourceFields,
    SourceRecord,
    decode_source,
    encode_source,
)
from .discovery_rows import shown_state


class Sources:
    """Tracks the state of sources and turns discovery events into messages."""

    def __init__(self, fields: SourceFields) -> None:
        self._fields = fields
        self._known: dict[SourceKey, tuple[bytes | None, SourceRecord, DiscoveryEventKind]] = {}

    def messages(self, change: DiscoveryEvent) -> Iterator[MamaMsg | str]:
        """The messages of one event: a text for undecodable bytes, nothing without a change."""
        if change.kind is DiscoveryEventKind.RECORD:
            yield from self._record_messages(change)
        elif change.kind in (DiscoveryEventKind.SUSPECT, DiscoveryEventKind.OFFLINE) and change.source is not None:
            yield from self._expiry(change.source, change.kind)
        elif change.kind is DiscoveryEventKind.GAP:
            first, last = change.gap or (0, 0)
            yield f"changes {first} to {last} of {change.origin} were lost; asking for the image again"

    def image(self, changes: list[DiscoveryEvent]) -> Iterator[MamaMsg | str]:
        """The messages of an image: one for each source that changed since the last one or is missing from it."""
        absent = offline_by_absence(self._known, changes)
        latest: dict[object, MamaMsg] = {}  # the last message of each source
        for number, change in enumerate(changes):
            for made in self.messages(change):
                if isinstance(made, str):
                    yield made
                else:
                    latest[change.source or number] = made
        yield from latest.values()
        for key in absent:
            yield from self._expiry(key, DiscoveryEventKind.OFFLINE)

    def _record_messages(self, change: DiscoveryEvent) -> Iterator[MamaMsg | str]:
        shown = f"the record of source {change.source.name!r}" if change.source else "a record"
        try:
            msg = decode(change.payload or b"", MAX_RECORD_BYTES)
            record, collisions = decode_source(msg, self._fields)
        except (BadMessage, BadSourceRecord) as error:
            yield f"{shown} cannot be read: {error}"
            return
        key = change.source or SourceKey(*record.key)
        payload, _, kind = self._known.get(key, (None, record, DiscoveryEventKind.RECORD))
        if payload == change.payload and kind is DiscoveryEventKind.RECORD:
            return
        self._known[key] = change.payload, record, DiscoveryEventKind.RECORD
        if collisions:
            yield f"{shown} has fields that collide: {'; '.join(collisions)}"
        yield msg

    def _expiry(self, key: SourceKey, kind: DiscoveryEventKind) -> Iterator[MamaMsg]:
        payload, record, before = self._known.get(
            key, (None, SourceRecord(key.name, key.id), DiscoveryEventKind.RECORD)
        )
        if before is kind or record.state == OFFLINE:
            return
        self._known[key] = payload, record, kind
        _, state, data_state = shown_state(kind, record.state)
        yield encode_source(replace(record, state=state, data_state=data_state), self._fields)
