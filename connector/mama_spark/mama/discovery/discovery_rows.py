"""Makes a :class:`DiscoveryRow` of each :class:`~mama_spark.contracts.bridge.DiscoveryEvent`. Pure.

Every event becomes a row: bytes that cannot be decoded are kept in ``raw`` with the reason in ``info``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, Self

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.options import DiscoveryOptions, redact_url
from mama_spark.registry import part

from ..messages.event_records import FIELDS, TOPIC, EventRecord, decode_event
from ..messages.omnm import BadMessage, decode
from ..messages.source_records import (
    DEFAULT_FIELDS,
    MAX_RECORD_BYTES,
    OFFLINE,
    OK,
    ONLINE,
    SUSPECT,
    BadSourceRecord,
    SourceFields,
    SourceRecord,
    decode_source,
)
from ..messages.status import Status
from ..states import TransportTopicEvent

SOURCE, PUBLISHER, IMAGE_END, GAP = "source", "publisher", "image_end", "gap"  #: kinds of rows, with :data:`TOPIC`
RESTART = "restart"  #: a kind of rows of what was recorded

#: Events of the kind ``source``: the new state of the source.
SOURCE_ONLINE, SOURCE_SUSPECT, SOURCE_OFFLINE, SOURCE_UNKNOWN = "online", "suspect", "offline", "unknown"
BAD_RECORD = "bad_record"  #: event of bytes that cannot be decoded; also their status where OpenMAMA has none

INFO_LENGTH = 1000  #: characters; reasons may quote text of other programs


class ShownState(NamedTuple):
    """The columns of a source that depend on its expiry."""

    event: str
    source_state: str | None
    source_data_state: str


def shown_state(expiry: DiscoveryEventKind | None, own_state: str | None = ONLINE) -> ShownState:
    """The state columns of a source. An OFFLINE source has SUSPECT data.

    :param expiry: SUSPECT, OFFLINE or None (ONLINE), by the rules of :mod:`mama_spark.discovery.source_expiry`
    :param own_state: the state in the source's own record, which only OFFLINE replaces
    """
    if expiry is DiscoveryEventKind.OFFLINE:
        return ShownState(SOURCE_OFFLINE, OFFLINE, SUSPECT)
    if expiry is DiscoveryEventKind.SUSPECT:
        return ShownState(SOURCE_SUSPECT, own_state, SUSPECT)
    return ShownState(SOURCE_ONLINE, own_state, OK)


def recorder_row(started: bool) -> DiscoveryRow:
    """A recorder started or stopped."""
    return DiscoveryRow(RESTART, "recorder_started" if started else "recorder_stopped")


#: Columns of a known source that is missing from an image:
#: :func:`~mama_spark.discovery.source_expiry.offline_by_absence`.
ABSENT = {**shown_state(DiscoveryEventKind.OFFLINE)._asdict(), "info": "not in the image"}


class DiscoveryRow(NamedTuple):
    """The columns of ``mamadiscovery``, in order. ``event_time``: microseconds since 1970 UTC."""

    kind: str
    event: str
    source_name: str | None = None
    source_id: int | None = None
    source_state: str | None = None
    source_data_state: str | None = None
    source_qos_rate: str | None = None
    source_qos_timeliness: str | None = None
    source_data_dict: str | None = None
    capabilities: dict[str, str] | None = None
    topic: str | None = None
    root: str | None = None
    source: str | None = None
    symbol: str | None = None
    status: str | None = None
    code: int | None = None
    info: str | None = None
    gap_from: int | None = None
    gap_to: int | None = None
    raw: bytes | None = None
    origin: str | None = None
    bridge: str | None = None
    transport: str | None = None
    event_time: int | None = None
    sequence: int | None = None


class DiscoveryRowReader:
    """Makes rows from discovery events.

    :param recorded: makes rows of what a recorder wrote, with its time (0: none); None: sources announced themselves
    """

    def __init__(
        self,
        bridge: str,
        transport: str,
        fields: SourceFields = DEFAULT_FIELDS,
        recorded: Callable[[DiscoveryEvent], tuple[DiscoveryRow, int]] | None = None,
    ) -> None:
        self._bridge, self._transport, self._fields, self._recorded = bridge, transport, fields, recorded

    @classmethod
    def of(cls, o: DiscoveryOptions, fields: SourceFields = DEFAULT_FIELDS) -> Self:
        """A reader for these options; the transport is named by the properties file, else by the URL without login."""
        shown = ",".join(redact_url(url, mask="") for url in o.url)
        recorded = None if o.recorded is None else part(o.recorded, "discovery_row")
        return cls(o.recorded or o.bridge_name, o.transport or shown, fields, recorded)

    def row(self, change: DiscoveryEvent) -> DiscoveryRow:
        """The row of one event; never raises, whatever the bytes are."""
        if self._recorded is not None and change.kind in (DiscoveryEventKind.RECORD, DiscoveryEventKind.EVENT):
            row, received = self._recorded(change)
            name, number = change.source or (None, None)
            return self._of(change, row._replace(source_name=name, source_id=number), received or change.at or None)
        made = _ROW_MAKERS[change.kind](change, self._fields)
        first, last = change.gap or (None, None)
        made = made._replace(
            topic=None if made.topic is None else _encodable(made.topic),
            gap_from=first,
            gap_to=last,
        )
        return self._of(change, made, change.at)

    def _of(self, change: DiscoveryEvent, row: DiscoveryRow, at: int | None) -> DiscoveryRow:
        return row._replace(
            info=None if row.info is None else _encodable(row.info[:INFO_LENGTH]),
            raw=change.payload,
            origin=change.origin,
            bridge=self._bridge,
            transport=self._transport,
            event_time=at,
            sequence=change.sequence,
        )

    def rows(self, changes: Iterable[DiscoveryEvent], image_log: str | None = None) -> Iterator[DiscoveryRow]:
        """One row per event; in an image one row per source.

        :param image_log: origin of the image's events; None = no image is read
        """
        before: tuple[DiscoveryEvent, DiscoveryRow] | None = None
        for change in changes:
            row = self.row(change)
            if before is not None:
                first, record = before
                if change.origin == image_log == first.origin and _is_expiry(change) and change.source == first.source:
                    before = first, _with_expiry(record, row)
                    continue
                yield record
            before = change, row
        if before is not None:
            yield before[1]

    def image(self, changes: Iterable[DiscoveryEvent]) -> list[DiscoveryRow]:
        """One row per source, its record with the expiry applied, without ``image_end``."""
        found: dict[SourceKey, DiscoveryRow] = {}
        for change in changes:
            if change.kind is DiscoveryEventKind.IMAGE_END:
                continue
            row = self.row(change)
            key = change.source or SourceKey(row.source_name or "", row.source_id)
            before = found.get(key)
            found[key] = _with_expiry(before, row) if before is not None and _is_expiry(change) else row
        return list(found.values())


def _encodable(text: str) -> str:
    """The text without surrogates, which UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _is_expiry(change: DiscoveryEvent) -> bool:
    return change.kind in (DiscoveryEventKind.SUSPECT, DiscoveryEventKind.OFFLINE)


def _with_expiry(record: DiscoveryRow, expiry: DiscoveryRow) -> DiscoveryRow:
    """The row of a source's record with the state of a SUSPECT or OFFLINE row."""
    return record._replace(
        event=expiry.event if record.event != BAD_RECORD else BAD_RECORD,
        source_state=expiry.source_state,
        source_data_state=expiry.source_data_state,
        status=expiry.status if record.status is None else record.status,
        code=expiry.code if record.code is None else record.code,
        info="; ".join(text for text in (record.info, expiry.info) if text) or None,
        event_time=expiry.event_time,
        sequence=expiry.sequence,
    )


# --- one function per kind of event --------------------------------------------------------------------------------


def _record_row(change: DiscoveryEvent, fields: SourceFields) -> DiscoveryRow:
    key = change.source
    try:
        record, collisions = decode_source(decode(change.payload or b"", MAX_RECORD_BYTES), fields)
    except (BadMessage, BadSourceRecord) as e:
        return _bad_record_row(SOURCE, e, key)
    notes = [change.info] if change.info else []
    if collisions:
        notes.append(f"fields that collide: {'; '.join(collisions)}")
    if key is not None and key != (record.name, record.id):
        notes.append(f"the record names itself {_source_label(*record.key)}, its subject {_source_label(*key)}")
    name, number = key if key is not None else record.key
    return DiscoveryRow(
        SOURCE,
        _event_of(record),
        name,
        number,
        record.state,
        record.data_state,
        record.qos_rate,
        record.qos_timeliness,
        record.data_dict,
        dict(record.capabilities),
        info="; ".join(notes) or None,
    )


def _event_of(record: SourceRecord) -> str:
    if record.state == OFFLINE:
        return SOURCE_OFFLINE
    if record.state != ONLINE:
        return SOURCE_UNKNOWN
    return SOURCE_SUSPECT if record.data_state == SUSPECT else SOURCE_ONLINE


def _source_label(name: str, number: int | None) -> str:
    return f"{name[:100]!r}" if number is None else f"{name[:100]!r} {number}"


def _expiry_row(change: DiscoveryEvent, fields: SourceFields) -> DiscoveryRow:
    name, number = change.source or SourceKey("", None)
    event, state, data_state = shown_state(change.kind)
    info = change.info or f"not renewed in time: the middleware calls it {event.upper()}"
    status, code = Status.EXPIRED.name, int(Status.EXPIRED)
    return DiscoveryRow(SOURCE, event, name, number, state, data_state, status=status, code=code, info=info)


def _event_row(change: DiscoveryEvent, fields: SourceFields) -> DiscoveryRow:
    key = change.source
    try:
        record = decode_event(decode(change.payload or b"", MAX_RECORD_BYTES))
    except (BadMessage, BadSourceRecord) as e:
        return _bad_record_row(PUBLISHER, e, key)
    name, number = key if key is not None else (record.source_name, record.source_id)
    return DiscoveryRow(
        record.kind,
        record.event,
        name,
        number,
        capabilities=_capabilities(record),
        topic=record.topic,
        root=record.root,
        source=record.source,
        symbol=record.symbol,
        status=record.status,
        code=record.code,
        info="; ".join(text for text in (record.info, change.info) if text) or None,
    )


def _capabilities(record: EventRecord) -> dict[str, str]:
    values = {"at_us": _iso_time(record.at_us), "publisher": record.publisher, "state": record.state}
    counts = {name: getattr(record, name) for name in ("taken", "acked", "failed", "in_flight")}
    values |= {name: str(number) for name, number in counts.items() if number is not None}
    return {FIELDS[attribute][0]: value for attribute, value in values.items() if value is not None}


def _iso_time(micros: int) -> str:
    try:
        return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError, OSError):
        return f"{micros} us"


def _bad_record_row(kind: str, error: BadMessage | BadSourceRecord, key: SourceKey | None) -> DiscoveryRow:
    name, number = key if key is not None else (None, None)
    status = Status.WRONG_FIELD_TYPE
    known = isinstance(error, BadMessage) and error.status is status
    reason = error.info if isinstance(error, BadMessage) else str(error)
    return DiscoveryRow(kind, BAD_RECORD, name, number, status=status.name if known else BAD_RECORD.upper(),
               code=int(status) if known else None, info=reason)  # fmt: skip


def _topic_row(change: DiscoveryEvent, fields: SourceFields, *, event: TransportTopicEvent) -> DiscoveryRow:
    name, number = change.source if change.source is not None else (None, None)
    return DiscoveryRow(TOPIC, event.value, name, number, topic=change.topic, info=change.info)


def _row_without_source(change: DiscoveryEvent, fields: SourceFields, *, kind: str) -> DiscoveryRow:
    return DiscoveryRow(kind, kind, info=change.info)


_ROW_MAKERS: dict[DiscoveryEventKind, Callable[[DiscoveryEvent, SourceFields], DiscoveryRow]] = {
    DiscoveryEventKind.RECORD: _record_row,
    DiscoveryEventKind.SUSPECT: _expiry_row,
    DiscoveryEventKind.OFFLINE: _expiry_row,
    DiscoveryEventKind.EVENT: _event_row,
    DiscoveryEventKind.SUBSCRIBED: partial(_topic_row, event=TransportTopicEvent.SUBSCRIBED),
    DiscoveryEventKind.UNSUBSCRIBED: partial(_topic_row, event=TransportTopicEvent.UNSUBSCRIBED),
    DiscoveryEventKind.IMAGE_END: partial(_row_without_source, kind=IMAGE_END),
    DiscoveryEventKind.GAP: partial(_row_without_source, kind=GAP),
}
