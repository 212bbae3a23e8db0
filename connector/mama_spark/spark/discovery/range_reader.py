"""What a task of ``mamadiscovery`` reads between two positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mama_spark.bridge import DiscoveryBridge, DiscoveryEvent, DiscoveryEventKind, Position
from mama_spark.bridges.reconnecting import ReconnectingBridge
from mama_spark.errors import DataLost, MamaError


class _RecordsDiffer(MamaError):
    """The log tells something else than before: records went away while they were read."""


def replayed(
    reach: ReconnectingBridge[DiscoveryBridge], start: Position, end: Position
) -> Iterator[list[DiscoveryEvent]]:
    """What lies between two positions, in order, also through an outage: what was told is not told again.

    :raises MamaError: the outage lasts too long, or the log does not tell the same any more
    """
    replay = _Replay(start, end)
    while (changes := reach.call(replay.more)) is not None:
        yield changes


class _Replay:
    """One pass, continued on another bridge when the first one breaks."""

    def __init__(self, start: Position, end: Position) -> None:
        self._start, self._end = start, end
        self._bridge: DiscoveryBridge | None = None
        self._lists: Iterator[list[DiscoveryEvent]] = iter(())
        self._told = 0
        self._last: DiscoveryEvent | None = None

    def more(self, bridge: DiscoveryBridge) -> list[DiscoveryEvent] | None:
        """The next changes, None after the last."""
        if bridge is not self._bridge:
            self._bridge, self._lists = bridge, self._untold(bridge)
        for changes in self._lists:
            if changes:
                self._told += len(changes)
                self._last = changes[-1]
                return changes
        return None

    def _untold(self, bridge: DiscoveryBridge) -> Iterator[list[DiscoveryEvent]]:
        skip = self._told
        for changes in bridge.read(self._start, self._end):
            known = min(skip, len(changes))
            if known and known == skip and changes[known - 1] != self._last:
                raise _RecordsDiffer(
                    "what was read before the connection broke is not what is there now: read it again"
                )
            skip -= known
            yield changes[known:]


def wanted(changes: Iterable[DiscoveryEvent], *, fail_on_gap: bool) -> Iterator[DiscoveryEvent]:
    """What becomes rows.

    :param fail_on_gap: a loss is an error, not a row
    :raises DataLost: says what was lost, and the ways out
    """
    for change in changes:
        if change.kind is DiscoveryEventKind.GAP and fail_on_gap:
            raise DataLost(_loss(change))
        yield change


def _loss(gap: DiscoveryEvent) -> str:
    first, last = gap.gap or (0, 0)
    why = f" ({gap.info})" if gap.info else ""
    return (
        f"records {first} to {last} of {gap.origin} were gone before they were read{why}: they grew too old, were "
        "purged, or the stream was deleted. With option failOnDataLoss=false the query goes on, and the loss is a row "
        "of kind gap; or begin anew with another checkpoint. To lose nothing, let the stream keep records for longer "
        "than a query rests"
    )
