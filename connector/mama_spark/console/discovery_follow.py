"""Follows discovery for ``mama sources`` and ``mama events``, and formats its rows."""

from __future__ import annotations

import base64
import json
import select
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from ..contracts.bridge import DiscoveryBridge, DiscoveryEvent, Position
from ..mama.discovery.discovery_rows import DiscoveryRow, DiscoveryRowReader
from ..mama.messages.status import Status, StatusError
from ..options import DiscoveryOptions, Use
from ..publishing.window.reconnecting import ReconnectingBridge
from ..registry import discovery_bridge
from .arguments import completed
from .output import printable

T = TypeVar("T")

#: Options that have an effect besides those of the connection.
TAKES = (
    *("discovery_topic", "sources_stream", "events_stream", "advisories_stream"),
    *("tango", "stream", "wait_timeout"),
)
INTERVAL = 0.25  #: seconds between two polls of the middleware
_AT_ONCE = 10_000  #: events that are held at most; the past may be long


@dataclass
class DiscoveryFollower:
    """Reads discovery events through an open bridge; close it after use."""

    reader: DiscoveryRowReader
    bridge: ReconnectingBridge[DiscoveryBridge]

    @classmethod
    def of(cls, given: Mapping[str, str], use: Use) -> DiscoveryFollower:
        """A follower with these options, connected to the middleware.

        :param given: options as of ``mamadiscovery``
        :raises ConfigError: one is wrong
        :raises StatusError: NOT_IMPLEMENTED: the transport does not support discovery
        :raises Unavailable: the middleware cannot be reached
        """
        full = completed(given, DiscoveryOptions)
        if full.discovery_supported is False:
            raise StatusError(Status.NOT_IMPLEMENTED, f"{full.supported_key} is not true in the properties file")
        o = DiscoveryOptions.parse(full.options, use, full.shared)
        bridge = ReconnectingBridge(lambda: discovery_bridge(o), o.wait_timeout)
        bridge.call(lambda opened: None, timeout=0.0)  # a wrong URL fails here; outages later are waited for
        return cls(DiscoveryRowReader.of(o, full.fields), bridge)

    def create_streams(self) -> None:
        self.bridge.call(lambda bridge: bridge.create_streams())

    def image(self) -> list[DiscoveryRow]:
        """The sources there are, by name and id."""
        rows = self.reader.image(self.bridge.call(lambda bridge: bridge.image()))
        return sorted(rows, key=lambda row: (row.source_name or "", row.source_id or 0))

    def initial_offset(self, where: str) -> Position:
        return self.bridge.call(lambda bridge: bridge.initial_offset(where))

    def changes(self, at: Position, sleep: Callable[[float], None] = time.sleep) -> Iterator[list[DiscoveryRow]]:
        """Changes after ``at``, without end; an empty list after each poll that found nothing."""
        while True:
            start = at

            def read_next(bridge: DiscoveryBridge, start: Position = start) -> tuple[Position, list[DiscoveryEvent]]:
                there = bridge.latest_offset(start, _AT_ONCE)
                return there, [change for part in bridge.read(start, there) for change in part]

            at, changes = self.bridge.call(read_next)
            yield list(self.reader.rows(changes))
            if not changes:
                sleep(INTERVAL)

    def close(self) -> None:
        self.bridge.close()


def as_json(row: DiscoveryRow) -> str:
    """One line: the columns that are not null; times in ISO 8601, ids as text, bytes in base64."""
    return json.dumps({name: _plain(name, value) for name, value in row._asdict().items() if value is not None},
                      ensure_ascii=False)  # fmt: skip


def _plain(name: str, value: Any) -> Any:
    if name == "event_time":
        return instant(value).isoformat(timespec="microseconds")
    if name == "source_id":
        return str(value)  # JSON readers lose digits beyond 2**53
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def instant(micros: int) -> datetime:
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)


def clock(row: DiscoveryRow) -> str:
    """Time of day, for a line of the table."""
    return "" if row.event_time is None else f"{instant(row.event_time):%H:%M:%S}.{row.event_time // 1000 % 1000:03}"


def shown_source(row: DiscoveryRow) -> str:
    name = printable(row.source_name or "")
    return name if row.source_id is None else f"{name} {row.source_id}"


def say_changes(
    follower: DiscoveryFollower, at: Position, kinds: Collection[str], line: Callable[[DiscoveryRow], str]
) -> None:
    """Print changes of these kinds after ``at``, a line each, until the reader of our output is gone."""
    for rows in follower.changes(at):
        for row in rows:
            if row.kind in kinds:
                say(line(row))
        if not rows and _reader_is_gone():
            return


def say(text: str) -> None:
    print(text, flush=True)


def _reader_is_gone() -> bool:
    """Whether the reader closed our output, by a poll: a quiet stream writes nothing that would fail."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False  # not a file
