"""Reads the discovery events between two positions, for a task of ``mamadiscovery``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mama_spark.contracts.bridge import DiscoveryBridge, DiscoveryEvent, DiscoveryEventKind, Position
from mama_spark.contracts.errors import DataLost, MamaError
from mama_spark.publishing.window.reconnecting import ReconnectingBridge


class _RecordsDiffer(MamaError):
    """The log holds other records than before: some were removed while they were read."""


def read_between(
    bridge: ReconnectingBridge[DiscoveryBridge], start: Position, end: Position
) -> Iterator[list[DiscoveryEvent]]:
    """Events between two positions, in order, each once, also when the connection is lost in between.

    :raises MamaError: the outage lasts too long, or the log holds other records afterwards
    """
    reading = _RangeRead(start, end)
    while (events := bridge.call(reading.next_events)) is not None:
        yield events


class _RangeRead:
    """One read of the range, continued on another bridge when the first one fails."""

    def __init__(self, start: Position, end: Position) -> None:
        self._start, self._end = start, end
        self._bridge: DiscoveryBridge | None = None
        self._lists: Iterator[list[DiscoveryEvent]] = iter(())
        self._delivered = 0
        self._last: DiscoveryEvent | None = None

    def next_events(self, bridge: DiscoveryBridge) -> list[DiscoveryEvent] | None:
        """The next events, None after the last."""
        if bridge is not self._bridge:
            self._bridge, self._lists = bridge, self._remaining(bridge)
        for events in self._lists:
            if events:
                self._delivered += len(events)
                self._last = events[-1]
                return events
        return None

    def _remaining(self, bridge: DiscoveryBridge) -> Iterator[list[DiscoveryEvent]]:
        skip = self._delivered
        for events in bridge.read(self._start, self._end):
            known = min(skip, len(events))
            if known and known == skip and events[known - 1] != self._last:
                raise _RecordsDiffer("the log holds other records than before the connection was lost: read them again")
            skip -= known
            yield events[known:]


def checked_for_gaps(events: Iterable[DiscoveryEvent], *, fail_on_gap: bool) -> Iterator[DiscoveryEvent]:
    """The same events.

    :param fail_on_gap: raise at a gap event
    :raises DataLost: names the lost records, and what to do
    """
    for event in events:
        if event.kind is DiscoveryEventKind.GAP and fail_on_gap:
            raise DataLost(_data_lost_text(event))
        yield event


def _data_lost_text(gap: DiscoveryEvent) -> str:
    first, last = gap.gap or (0, 0)
    why = f" ({gap.info})" if gap.info else ""
    return (
        f"records {first} to {last} of {gap.origin} were gone before they were read{why}: they grew too old, were "
        "purged, or the stream was deleted. With option failOnDataLoss=false the query goes on, and the loss is a row "
        "of kind gap; or begin anew with another checkpoint. To lose nothing, let the stream keep records for longer "
        "than the query may be stopped"
    )
