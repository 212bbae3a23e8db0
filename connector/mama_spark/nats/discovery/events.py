"""Decodes records of discovery streams to events; an unreadable one becomes an event with the reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.discovery.source_expiry import offline_after, state_by_marker, state_by_markers

from ..protocol.direct_get import StoredMessage
from ..protocol.headers import MARKER_REASON, MAX_AGE
from .layout import (
    LIVE,
    REC,
    RENEWAL,
    SOURCE_TTL,
    WARN,
    WITHDRAWN,
    BadSubject,
    DiscoveryLayout,
)


def event_of(layout: DiscoveryLayout, record: StoredMessage, skip: int = 0) -> DiscoveryEvent | None:
    """The event of a record of the stream of events; None for renewals, marks and images.

    :param skip: records of the stream of sources up to this sequence are in an image that was read before
    """
    if record.subject == layout.mark_subject or record.subject.startswith(f"{layout.events}.image."):
        return None
    if record.subject.startswith(f"{layout.topic}.event."):
        return _event(layout, record)
    if record.sourced and record.sourced <= skip:
        return None
    return _source(layout, record, layout.events)


def _event(layout: DiscoveryLayout, record: StoredMessage) -> DiscoveryEvent:
    source, info = None, None
    try:
        source = layout.source_of_event(record.subject)
    except BadSubject as e:
        info = str(e)
    kind = DiscoveryEventKind.EVENT
    return DiscoveryEvent(kind, record.at, layout.events, record.sequence, source, record.payload, info=info)


def _source(layout: DiscoveryLayout, record: StoredMessage, origin: str) -> DiscoveryEvent | None:
    marker = record.headers.get(MARKER_REASON)
    try:
        source, part = layout.source_of(record.subject)
    except BadSubject as e:
        if marker is not None:
            return None
        return DiscoveryEvent(
            DiscoveryEventKind.RECORD, record.at, origin, record.sequence, None, record.payload, info=str(e)
        )
    if part == REC:
        if marker is not None or RENEWAL in record.headers:
            return None
        return DiscoveryEvent(DiscoveryEventKind.RECORD, record.at, origin, record.sequence, source, record.payload)
    if not _has_expired(record):
        return None  # a renewal
    return DiscoveryEvent(state_by_marker(half=part == WARN), record.at, origin, record.sequence, source)


def _has_expired(record: StoredMessage) -> bool:
    """Whether the record is the server's marker of one whose time to live has passed."""
    return record.headers.get(MARKER_REASON) == MAX_AGE


@dataclass(frozen=True, slots=True)
class SourcesImage:
    """The sources up to one sequence of their stream.

    :ivar unconfirmed: sources without a renewal: expired long ago, or renewed while the stream was read
    """

    changes: list[DiscoveryEvent]
    unconfirmed: list[SourceKey]


def image_of(
    layout: DiscoveryLayout, records: Iterable[StoredMessage], now: int, renewed_sources: Iterable[SourceKey] = ()
) -> SourcesImage:
    """The image from the records of the stream of sources, ordered by the last write of each source's record.

    :param records: the last record of each subject
    :param now: microseconds since the epoch, by the server's clock
    :param renewed_sources: sources certainly renewed, although no renewal is among the records
    """
    sources: dict[SourceKey, dict[str, StoredMessage]] = {}
    entries: list[tuple[int, list[DiscoveryEvent]]] = []
    alive, unconfirmed = frozenset(renewed_sources), []
    for record in records:
        try:
            source, part = layout.source_of(record.subject)
        except BadSubject:
            change = _source(layout, record, layout.sources)
            if change is not None:
                entries.append((record.sequence, [change]))
            continue
        sources.setdefault(source, {})[part] = record
    for source, parts in sources.items():
        rec = parts.get(REC)
        if rec is None or MARKER_REASON in rec.headers:
            continue
        record_event = DiscoveryEvent(
            DiscoveryEventKind.RECORD, rec.at, layout.sources, rec.sequence, source, rec.payload
        )
        lapsed = LIVE not in parts and source not in alive and _lapsed(rec, now)
        if lapsed:
            unconfirmed.append(source)
        verdict = _expiry(layout, source, rec, parts, lapsed)
        entries.append((rec.sequence, [record_event] if verdict is None else [record_event, verdict]))
    entries.sort(key=lambda one: one[0])
    return SourcesImage([change for _, changes in entries for change in changes], unconfirmed)


def _is_withdrawn(rec: StoredMessage) -> bool:
    return WITHDRAWN in rec.headers


def _lapsed(rec: StoredMessage, now: int) -> bool:
    """Whether a record without a renewal is older than its TTL. Before that, a renewal may still arrive."""
    try:
        ttl = float(rec.headers.get(SOURCE_TTL, ""))
    except ValueError:
        return False
    return not _is_withdrawn(rec) and now - rec.at > offline_after(ttl) * 1e6


def _expiry(
    layout: DiscoveryLayout, source: SourceKey, rec: StoredMessage, parts: Mapping[str, StoredMessage], lapsed: bool
) -> DiscoveryEvent | None:
    """SUSPECT or OFFLINE, by the markers of the server; None: the source is online, or was withdrawn."""
    if _is_withdrawn(rec):
        return None
    markers = {part: m for part in (WARN, LIVE) if (m := parts.get(part)) and _has_expired(m)}
    warn, live = (None if (m := markers.get(part)) is None else m.sequence for part in (WARN, LIVE))
    kind = state_by_markers(rec.sequence, warn, live)
    if kind is not None:
        marker = markers[LIVE if kind is DiscoveryEventKind.OFFLINE else WARN]
        return DiscoveryEvent(kind, marker.at, layout.sources, marker.sequence, source)
    if lapsed:
        return DiscoveryEvent(DiscoveryEventKind.OFFLINE, rec.at, layout.sources, rec.sequence, source)
    return None
