"""Discovery that reads the log of a recorder, whatever it records.

The log is append-only, so the records up to a sequence give the image at that sequence, which can be read again as long
as they exist. A position is the next sequence and the identity of the log.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Bounds, RecordLog, RecordLogBridge, Records

from .log_discovery import LogDiscovery, LogOffset, Present, same_log


class RecordedDiscovery(LogDiscovery):
    """A :class:`~mama_spark.contracts.bridge.DiscoveryBridge` for readers, with image, offsets and reading; recorders
    announce the sources. Override :meth:`announce`, :meth:`withdraw` and :meth:`publish_events` to announce, too;
    ``log`` is the open log.

    :param bridge: bridge of the log, not open
    :param name: name of the log; None: the only one
    :cvar topics: topics of the records that discovery reads
    :cvar announced_by: the error of a program that tries to announce
    """

    where = "a recorder's log"
    identity = "identity"
    recreated = "the log was deleted and created again, or restored from an older copy"
    topics: ClassVar[tuple[str, ...]]
    announced_by: ClassVar[str] = "sources are announced by the recorder of the log (mama record)"

    def __init__(self, bridge: RecordLogBridge, name: str | None) -> None:
        self._bridge, self._name = bridge, name

    def open(self) -> None:
        self._bridge.open()

    def close(self) -> None:
        self._bridge.close()

    def create_streams(self) -> None:
        """There are no streams to create."""

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """Refuse to announce: recorders announce the sources.

        :raises ConfigError: always
        """
        raise ConfigError(self.announced_by)

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        self.announce(source, record, 0.0)

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        self.announce(source, b"", 0.0)

    @cached_property
    def _log_name(self) -> str:
        if self._name is not None:
            return self._name
        names = self._bridge.names(())
        if len(names) != 1:
            raise ConfigError(f"option stream must name one log; there are {', '.join(names) or 'none'}")
        return names[0]

    @property
    def log(self) -> RecordLog:
        return self._bridge.log(self._log_name)

    def _bounds(self, read: LogOffset | None = None) -> Bounds:
        return self.log.bounds() if read is None else self.log.bounds_with(read.next - 1, read.log)

    def _now(self) -> int:
        return 0  # the records have the time of their recorder

    def _present(self) -> Present:
        bounds = self._bounds()
        return Present(bounds.identity, bounds.last, self._image(bounds.first, bounds.last))

    def _image(self, first: int, last: int) -> list[DiscoveryEvent]:
        found = self.sources(self.log, first, last)
        at_time = max((event.at for event in found.values()), default=0)
        return [*found.values(), DiscoveryEvent(DiscoveryEventKind.IMAGE_END, at_time, self._log_name, last)]

    def _begin(self, bounds: Bounds, goal: LogOffset | None) -> LogOffset:
        """The offset, without a saved image: the records up to it give the image."""
        same = goal is not None and goal.log == bounds.identity
        return LogOffset(bounds.identity, goal.next if goal is not None and same else bounds.last + 1)

    def _begin_again(self, bounds: Bounds, goal: LogOffset | None) -> LogOffset:
        return LogOffset(bounds.identity, bounds.first)

    def _image_at(self, end: LogOffset) -> list[DiscoveryEvent]:
        bounds = self._bounds(end)
        if not same_log(end, bounds):
            return [self._gap(1, end.next - 1, self.recreated)]
        return self._image(bounds.first, end.next - 1)

    def _events(self, identity: str, first: int, last: int) -> Iterator[list[DiscoveryEvent]]:
        end = LogOffset(identity, last + 1)
        if not same_log(end, self._bounds(end)):
            yield [self._gap(first, last, self.recreated)]
            return
        log, after = self.log, first - 1
        known = log.missing(after, last)
        told = [self._gap(a, b, "deleted before they were read") for a, b in known]
        for records in log.read(after, last, self.topics):
            lost = self._overtaken(log, after, int(records.sequences[0]), known)  # before the consumer takes its time
            yield told
            told, after = [*lost, *self.events(self._log_name, records)], int(records.sequences[-1])
        yield [*told, *self._overtaken(log, after, last + 1, known)]

    def _overtaken(self, log: RecordLog, after: int, until: int, known: list[tuple[int, int]]) -> list[DiscoveryEvent]:
        """A gap for the records behind what was read, and before ``until``, that the log has removed by now: nobody can
        tell whether they were on our topics. Not for missing ones that are ``known``, nor for those that are removed
        between the records of one block while it comes."""
        after = max([after, *(b for a, b in known if a <= after + 1)])
        if until <= after + 1:
            return []
        end = min(log.bounds().first, until) - 1
        return [self._gap(after + 1, end, "deleted while they were read")] if end > after else []

    @abstractmethod
    def events(self, origin: str, records: Records) -> Iterator[DiscoveryEvent]:
        """The events of records of :attr:`topics`, in order."""

    @abstractmethod
    def sources(self, log: RecordLog, first: int, last: int) -> dict[SourceKey, DiscoveryEvent]:
        """The last state of each source, from the records of these sequences."""
