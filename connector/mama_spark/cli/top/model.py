"""The content of the live view, from discovery events and states of streams. Pure: the caller gives the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ...contracts.record_log import LogStatus
from ...mama.discovery.discovery_rows import GAP, PUBLISHER, SOURCE, SOURCE_OFFLINE, DiscoveryRow
from ...mama.messages.event_records import COUNTS, ERROR, FIELDS, TOPIC

#: Limits of what is kept: rates for a sparkline, events, and the latest publishers.
MOST_RATES, MOST_EVENTS, MOST_PUBLISHERS = 40, 500, 2_000
#: Seconds for which the rate of a publisher is shown after its last counts.
RATE_SHOWN = 15.0
#: Columns of each table, and which are numbers.
COLUMNS = {
    "sources": ("source", "id", "state", "data", "rate", "timeliness", "since", "info"),
    "publishers": (
        "publisher", "state", "acked/s", "trend", "in flight", "acked", "failed", "topics", "source", "last event",
        "info",
    ),
    "readers": ("reader", "stream", "lag", "unacknowledged"),
    "streams": ("stream", "stored/s", "trend", "messages", "bytes", "readers", "limits"),
    "events": ("time", "kind", "event", "what", "info"),
}  # fmt: skip
Cells = tuple[Any, ...]
_COUNTED = [FIELDS[name][0] for name in ("acked", "failed", "in_flight")]


@dataclass
class _Publisher:
    """State and counts of one event publisher.

    :ivar acked, in_flight: counts of its last event with some; None = there was none
    :ivar counted: when that happened, microseconds since the epoch; ``seen``: when it came here, monotonic seconds
    """

    source: str
    state: str = "?"
    topics: int = 0
    failed: int = 0
    at: int = 0
    info: str = ""
    acked: int | None = None
    in_flight: int | None = None
    counted: int = 0
    seen: float = 0.0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_RATES))

    def count(self, about: Mapping[str, str], at: int, now: float) -> None:
        acked, failed, in_flight = (int(about.get(name, 0)) for name in _COUNTED)
        if self.acked is not None and at > self.counted:
            self.rates.append(max(0, acked - self.acked) * 1e6 / (at - self.counted))
        self.acked, self.failed, self.in_flight, self.counted, self.seen = acked, failed, in_flight, at, now

    def rate(self, now: float) -> int | None:
        """Messages acknowledged a second; None = not known now."""
        if self.state != "LIVE" or not self.rates:
            return None
        return round(self.rates[-1]) if now - self.seen <= RATE_SHOWN else None


@dataclass
class _Stream:
    status: LogStatus
    at: float
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_RATES))


class LiveModel:
    """The tables; feed it with :meth:`set_sources`, :meth:`add_changes` and :meth:`set_streams`."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, int | None], DiscoveryRow] = {}
        self._publishers: dict[str, _Publisher] = {}
        self._streams: dict[str, _Stream] = {}
        self._events: deque[Cells] = deque(maxlen=MOST_EVENTS)
        self._now = 0.0

    def set_sources(self, image: Iterable[DiscoveryRow]) -> None:
        self._sources = {(row.source_name or "", row.source_id): row for row in image}

    def add_changes(self, rows: Iterable[DiscoveryRow], now: float = 0.0) -> None:
        """Add changes, in order; ``now``: monotonic seconds."""
        self._now = max(self._now, now)
        for row in rows:
            if row.kind == SOURCE:
                self._sources[row.source_name or "", row.source_id] = row
            elif row.kind in (PUBLISHER, TOPIC):
                self._publisher_event(row)
            if row.kind in (SOURCE, PUBLISHER, TOPIC, GAP) and row.event != COUNTS:
                self._events.append(_event_cells(row))

    def _publisher_event(self, row: DiscoveryRow) -> None:
        about = row.capabilities or {}
        name = about.get("EventPublisher")
        if name is None:
            return
        one = self._publishers.pop(name, None) or _Publisher(row.source_name or "")
        self._publishers[name] = one  # at the end: the latest
        one.state, one.at = about.get("EventPublisherState", one.state), row.event_time or one.at
        if row.event == COUNTS:
            one.count(about, row.event_time or 0, self._now)
            one.info = f"waits for {row.info}" if row.info else ""
        one.topics += row.event in ("PUBLISH_CREATE", "onCreate") and row.topic is not None
        if row.event in (ERROR, "onError") or row.event.startswith("PUBLISH_ERROR"):
            one.failed += one.acked is None  # else its counts say it
            one.info = " ".join(str(part) for part in (row.topic, row.status, row.info) if part)
        if len(self._publishers) > MOST_PUBLISHERS:
            del self._publishers[next(iter(self._publishers))]

    def set_streams(self, statuses: Iterable[LogStatus], now: float) -> None:
        """Set the states of the streams at ``now``, monotonic seconds."""
        self._now = max(self._now, now)
        before, self._streams = self._streams, {}
        for status in statuses:
            known = before.get(status.name)
            if known is None or status.last < known.status.last:  # a new one
                known = _Stream(status, now)
            elif now > known.at:
                known.rates.append((status.last - known.status.last) / (now - known.at))
                known.status, known.at = status, now
            self._streams[status.name] = known

    def table(self, name: str) -> list[Cells]:
        """The rows of a table of :data:`COLUMNS`."""
        made: list[Cells] = getattr(self, f"_{name}_table")()
        return made

    def _sources_table(self) -> list[Cells]:
        return [
            (
                row.source_name or "", "" if row.source_id is None else str(row.source_id),
                row.source_state or row.event, row.source_data_state or "-", row.source_qos_rate or "-",
                row.source_qos_timeliness or "-", _clock(row.event_time), row.info or "",
            )
            for row in self._sources.values()
        ]  # fmt: skip

    def _publishers_table(self) -> list[Cells]:
        return [
            (
                name, one.state, one.rate(self._now), sparkline(one.rates), one.in_flight, one.acked, one.failed,
                one.topics, one.source, _clock(one.at), one.info,
            )
            for name, one in reversed(self._publishers.items())
        ]  # fmt: skip

    def _readers_table(self) -> list[Cells]:
        return [
            (reader.name, stream.status.name, reader.pending, reader.unacknowledged)
            for stream in self._streams.values()
            for reader in stream.status.readers
        ]

    def _streams_table(self) -> list[Cells]:
        return [
            (
                name, round(stream.rates[-1]) if stream.rates else 0, sparkline(stream.rates), stream.status.records,
                stream.status.size, len(stream.status.readers), _limits(stream.status),
            )
            for name, stream in self._streams.items()
        ]  # fmt: skip

    def _events_table(self) -> list[Cells]:
        return list(reversed(self._events))

    def totals(self) -> dict[str, int]:
        """Sources online and all, messages stored a second, of publishers what they acknowledge a second, have in
        flight, have had acknowledged and failed, and the lag of readers."""
        publishers = self._publishers.values()
        online = sum(row.event != SOURCE_OFFLINE and row.source_state == "ONLINE" for row in self._sources.values())
        return {
            "sources": len(self._sources),
            "online": online,
            "stored_per_second": sum(round(s.rates[-1]) for s in self._streams.values() if s.rates),
            "acked_per_second": sum(one.rate(self._now) or 0 for one in publishers),
            "in_flight": sum(one.in_flight or 0 for one in publishers if one.state == "LIVE"),
            "acked": sum(one.acked or 0 for one in publishers),
            "failed": sum(one.failed for one in publishers),
            "lag": sum(reader.pending for s in self._streams.values() for reader in s.status.readers),
            "unacknowledged": sum(r.unacknowledged for s in self._streams.values() for r in s.status.readers),
        }

    def tables(self) -> dict[str, Any]:
        found = {
            name: [dict(zip(columns, row, strict=True)) for row in self.table(name)]
            for name, columns in COLUMNS.items()
        }
        return {"totals": self.totals(), **found}


def sparkline(numbers: Sequence[float] | deque[float], width: int = 12) -> str:
    """The last numbers as bars of text, the highest of them full."""
    shown = list(numbers)[-width:]
    most = max(shown, default=0)
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * number / most))] if most else "▁" for number in shown)


def select(rows: Iterable[Cells], text: str, column: int | None, descending: bool) -> list[Cells]:
    """Rows with ``text`` in one of their cells, sorted by a column (None: as they are); numbers come before text."""
    low = text.lower()
    found = [row for row in rows if any(low in str(cell).lower() for cell in row)]
    if column is None:
        return found

    def key(row: Cells) -> tuple[bool, Any]:
        value = row[column]
        return (False, value) if isinstance(value, int | float) else (True, "" if value is None else str(value).lower())

    return sorted(found, key=key, reverse=descending)


def _limits(status: LogStatus) -> str:
    parts = [
        f"{100 * used / most:.0f} % of {most:,} {unit}"
        for used, most, unit in (
            (status.records, status.most_records, "messages"),
            (status.size or 0, status.most_bytes, "bytes"),
        )
        if most
    ]
    return ", ".join(parts) or "-"


def _event_cells(row: DiscoveryRow) -> Cells:
    if row.kind == GAP:
        return (_clock(row.event_time), GAP, "lost", row.origin or "", f"records {row.gap_from} to {row.gap_to}")
    what = row.topic or (row.source_name or "") + ("" if row.source_id is None else f" {row.source_id}")
    parts = (row.source_state if row.kind == SOURCE else None, row.status, row.code, row.info)
    return (_clock(row.event_time), row.kind, row.event, what, " ".join(str(p) for p in parts if p is not None))


def _clock(micros: int | None) -> str:
    return "-" if not micros else f"{datetime.fromtimestamp(micros / 1e6, UTC):%H:%M:%S}"
