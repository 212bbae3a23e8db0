"""Discovery that reads the log of a recorder, whatever it records.

The log is append-only, so the records up to a sequence give the image at that sequence, which can be read again as long
as they exist. A position is the next sequence and the identity of the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, Position, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Bounds, Continuity, RecordLog, RecordLogBridge, Records, continuity

_RECREATED = "the log was deleted and created again, or restored from an older copy"


class RecordedDiscovery(ABC):
    """A :class:`~mama_spark.contracts.bridge.DiscoveryBridge` for readers; recorders announce the sources.

    :param bridge: bridge of the log, not open
    :param name: name of the log; None: the only one
    :cvar topics: of the records that discovery reads
    :cvar announced_by: a sentence for who tries to announce
    """

    topics: ClassVar[tuple[str, ...]]
    announced_by: ClassVar[str] = "sources are announced by the recorder of the log (mama record)"

    def __init__(self, bridge: RecordLogBridge, name: str | None) -> None:
        self._bridge, self._name = bridge, name

    def open(self) -> None:
        self._bridge.open()

    def close(self) -> None:
        self._bridge.close()

    # --- announcing: not supported ---

    def create_streams(self) -> None:  # noqa: B027
        """Do nothing: there are no streams to create."""

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """Not supported.

        :raises ConfigError: always, since recorders announce the sources
        """
        raise ConfigError(self.announced_by)

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """Not supported; see :meth:`announce`."""
        self.announce(source, record, 0.0)

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """Not supported; see :meth:`announce`."""
        self.announce(source, b"", 0.0)

    # --- reading ---

    def image(self) -> list[DiscoveryEvent]:
        log = self._log()
        bounds = log.bounds()
        return self._image(log, bounds.first, bounds.last)

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        if where == "image":
            return {"begin": "image"}
        bounds = self._log().bounds()
        if isinstance(where, str):
            first = bounds.first if where == "earliest" else bounds.last + 1
        else:
            named = dict(where)
            name = self._log().name
            if list(named) != [name]:
                raise ConfigError(f"option startingOffsets names {', '.join(named)}, but the log is {name}")
            first = {-2: bounds.first, -1: bounds.last + 1}.get(named[name], named[name])
        return {"next": first, "identity": bounds.identity}

    def latest_offset(self, start: Position, limit: int | None = None, until: Position | None = None) -> Position:
        bounds = self._log().bounds()
        if "begin" in start:
            return {"next": bounds.last + 1, "identity": bounds.identity}
        recreated = _recreated(start, bounds)
        first = bounds.first if recreated else start["next"]
        last = bounds.last if limit is None else min(bounds.last, first + limit - 1)
        if until is not None and not _recreated(until, bounds):
            last = min(last, until["next"] - 1)
        if not recreated and last < first:
            return start
        return {"next": last + 1, "identity": bounds.identity}

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        log = self._log()
        bounds = log.bounds()
        last = end["next"] - 1
        if _recreated(end, bounds):
            yield [_lost(log, int(start.get("next", 1)), last, _RECREATED)]
            return
        if "begin" in start:
            yield self._image(log, bounds.first, last)
            return
        after = start["next"] - 1
        if _recreated(start, bounds):
            yield [_lost(log, start["next"], start["next"], _RECREATED)]
            after = bounds.first - 1
        gaps = [_lost(log, a, b, "deleted before they were read") for a, b in log.missing(after, last)]
        if gaps:
            yield gaps
        for records in log.read(after, last, self.topics):
            yield list(self.events(log.name, records))

    def _log(self) -> RecordLog:
        name = self._name
        if name is None:
            names = self._bridge.names(())
            if len(names) != 1:
                raise ConfigError(f"option stream must name one log; there are {', '.join(names) or 'none'}")
            name = names[0]
        return self._bridge.log(name)

    def _image(self, log: RecordLog, first: int, last: int) -> list[DiscoveryEvent]:
        found = self.sources(log, first, last)
        at_time = max((event.at for event in found.values()), default=0)
        return [*found.values(), DiscoveryEvent(DiscoveryEventKind.IMAGE_END, at_time, log.name, last)]

    # --- what the records say ---

    @abstractmethod
    def events(self, origin: str, records: Records) -> Iterator[DiscoveryEvent]:
        """The events of records of :attr:`topics`, in order."""

    @abstractmethod
    def sources(self, log: RecordLog, first: int, last: int) -> dict[SourceKey, DiscoveryEvent]:
        """The last state of each source, from the records of these sequences."""


def _recreated(position: Position, bounds: Bounds) -> bool:
    state = continuity(position["next"], position["identity"], bounds)
    return state in (Continuity.RECREATED, Continuity.SHORTER)


def _lost(log: RecordLog, first: int, last: int, why: str) -> DiscoveryEvent:
    return DiscoveryEvent(DiscoveryEventKind.GAP, 0, log.name, gap=(first, last), info=why)
