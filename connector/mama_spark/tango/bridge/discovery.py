"""Discovery bridge of Tango: reads the log of a recorder; each recorded device is a source."""

from __future__ import annotations

from collections.abc import Iterator

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.record_log import RecordLog, Records

from ...discovery.recorded_discovery import RecordedDiscovery
from ..log.device_states import RecordedDevice
from ..log.records import (
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
from ..log.recovery import WRITERS, writer_states
from ..topics import NO_DATABASE, SCHEME, BadEventTopic, read_topic

#: STATE_TOPICS: records of device states. TOPICS: all records that discovery reads, those about recorders included.
STATE_TOPICS = "*.*.*.*.*.*.heartbeat"
TOPICS = (
    STATE_TOPICS, *(f"*.*.*.*.*.*.{event}" for event in ("attr_conf", "intr_change", "gap", "restart")), WRITERS
)  # fmt: skip


def source_key(device: RecordedDevice) -> SourceKey:
    """Key of the source that stands for a device: its full name."""
    return SourceKey(f"{SCHEME}{device.tango_host}/{device.name}{'' if device.dbase else NO_DATABASE}", None)


class RecordedDevices(RecordedDiscovery):
    """The devices of a Tango recorder's log."""

    topics = TOPICS
    announced_by = "devices are announced by the recorder of the log (mama record)"

    def events(self, origin: str, records: Records) -> Iterator[DiscoveryEvent]:
        return _events(origin, records)

    def sources(self, log: RecordLog, first: int, last: int) -> dict[SourceKey, DiscoveryEvent]:
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
        return found


def _is_later(event: DiscoveryEvent, before: DiscoveryEvent | None) -> bool:
    return before is None or (before.sequence or 0) < (event.sequence or 0)


def _from_state(origin: str, device: RecordedDevice, kind: RecordKind, sequence: int) -> DiscoveryEvent:
    topic = device_topic(*device)
    payload = encode(RecordHeads(kind, 0), RecordFrames([topic.encode()], [b"\1"], [b""], [b""]))[0].as_py()
    what, source = DiscoveryEventKind.RECORD, source_key(device)
    return DiscoveryEvent(what, 0, origin, sequence, source, payload, record_topic(topic), "as last noted")


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
