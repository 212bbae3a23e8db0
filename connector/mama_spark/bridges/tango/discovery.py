"""Discovery bridge of Tango: reads the log of a recorder; each recorded device is a source.

The log is append-only, so the records up to a sequence give the image at that sequence, which can be read again as long
as they exist. A position is the next sequence and the identity of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mama_spark.bridge import DiscoveryEvent, DiscoveryEventKind, Position, SourceKey
from mama_spark.errors import ConfigError
from mama_spark.record_log import Bounds, Continuity, RecordLog, RecordLogBridge, Records, continuity
from mama_spark.tango.log.device_states import RecordedDevice
from mama_spark.tango.log.records import (
    DEVICE_STATES,
    DecodedRecords,
    RecordFrames,
    RecordHeads,
    RecordKind,
    decode,
    device_topic,
    encode,
    record_topic,
)
from mama_spark.tango.log.recovery import WRITERS, writer_states
from mama_spark.tango.topics import NO_DATABASE, SCHEME, BadEventTopic, read_topic

#: STATE_TOPICS: records of device states. TOPICS: all records that discovery reads, those about recorders included.
STATE_TOPICS = "*.*.*.*.*.*.heartbeat"
TOPICS = (
    STATE_TOPICS, *(f"*.*.*.*.*.*.{event}" for event in ("attr_conf", "intr_change", "gap", "restart")), WRITERS
)  # fmt: skip
_RECREATED = "the log was deleted and created again"


def source_key(device: RecordedDevice) -> SourceKey:
    """Key of the source that stands for a device: its full name."""
    return SourceKey(f"{SCHEME}{device.tango_host}/{device.name}{'' if device.dbase else NO_DATABASE}", None)


class RecordedDiscovery:
    """A :class:`~mama_spark.bridge.DiscoveryBridge` for readers. Recorders announce the devices.

    :param bridge: bridge of the log, not open
    :param name: name of the log; None: the only one
    """

    def __init__(self, bridge: RecordLogBridge, name: str | None) -> None:
        self._bridge, self._name = bridge, name

    def open(self) -> None:
        self._bridge.open()

    def close(self) -> None:
        self._bridge.close()

    # --- announcing: not supported ---

    def create_streams(self) -> None:
        """Do nothing: there are no streams to create."""

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """Not supported.

        :raises ConfigError: always, since recorders announce devices
        """
        raise ConfigError("devices are announced by the recorder of the log (mama record)")

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
        for records in log.read(after, last, TOPICS):
            yield list(_events(log.name, records))

    def _log(self) -> RecordLog:
        name = self._name
        if name is None:
            names = self._bridge.names(())
            if len(names) != 1:
                raise ConfigError(f"option stream must name one log; there are {', '.join(names) or 'none'}")
            name = names[0]
        return self._bridge.log(name)

    def _image(self, log: RecordLog, first: int, last: int) -> list[DiscoveryEvent]:
        """Last state of each device, from the newest state of each recorder and the records after it."""
        found: dict[SourceKey, DiscoveryEvent] = {}
        states = writer_states(log, first, last)
        for writer in sorted(states.values(), key=lambda one: one.last):
            for host, name, dbase, kind in writer.state["devices"]:
                device = RecordedDevice(host, name, bool(dbase))
                event = _from_state(log.name, device, RecordKind[kind], writer.last)
                if event.source is not None:
                    found[event.source] = event
        going_on = [one.last for one in states.values() if not one.stopped] or [one.last for one in states.values()]
        for records in log.read(min(going_on, default=first - 1), last, (STATE_TOPICS,)):
            for event in _events(log.name, records):
                if event.source is not None and _is_later(event, found.get(event.source)):
                    found[event.source] = event
        at_time = max((event.at for event in found.values()), default=0)
        return [*found.values(), DiscoveryEvent(DiscoveryEventKind.IMAGE_END, at_time, log.name, last)]


def _recreated(position: Position, bounds: Bounds) -> bool:
    return continuity(position["next"], position["identity"], bounds) is Continuity.RECREATED


def _is_later(event: DiscoveryEvent, before: DiscoveryEvent | None) -> bool:
    return before is None or (before.sequence or 0) < (event.sequence or 0)


def _lost(log: RecordLog, first: int, last: int, why: str) -> DiscoveryEvent:
    return DiscoveryEvent(DiscoveryEventKind.GAP, 0, log.name, gap=(first, last), info=why)


def _from_state(origin: str, device: RecordedDevice, kind: RecordKind, sequence: int) -> DiscoveryEvent:
    """Discovery event of a device's state in a STATE record."""
    topic = device_topic(*device)
    payload = encode(RecordHeads(kind, 0), RecordFrames.of([(topic.encode(), b"\1", b"", b"")]))[0].as_py()
    return DiscoveryEvent(
        DiscoveryEventKind.RECORD,
        0,
        origin,
        sequence,
        source_key(device),
        payload,
        record_topic(topic),
        "as last noted",
    )


def _events(origin: str, records: Records) -> Iterator[DiscoveryEvent]:
    recorded = decode(records.payloads)
    topics = records.topics.to_pylist()
    payloads = records.payloads.to_pylist()
    for row, kind in enumerate(recorded.kind.tolist()):
        if kind == RecordKind.STATE:
            continue
        what = DiscoveryEventKind.RECORD if kind in DEVICE_STATES else DiscoveryEventKind.EVENT
        at, sequence = int(records.times[row]), int(records.sequences[row])
        yield DiscoveryEvent(what, at, origin, sequence, _source(recorded, row), payloads[row], topics[row])


def _source(recorded: DecodedRecords, row: int) -> SourceKey | None:
    try:
        topic = read_topic(recorded.frames.topics[row])
    except BadEventTopic:
        return None
    return source_key(RecordedDevice(topic.tango_host, topic.device, topic.dbase))
