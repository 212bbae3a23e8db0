"""Converts records of Tango devices, from the log of a recorder, to rows of ``mamadiscovery``. Pure.

Devices are sources; configurations of attributes, changes of interfaces, missing events and restarts are rows of the
kinds ``attr_conf``, ``intr_change``, ``gap`` and ``restart``. ``symbol`` is the attribute, ``topic`` Tango's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind

from ...mama.discovery.discovery_rows import BAD_RECORD, GAP, RESTART, SOURCE, DiscoveryRow, recorder_row, shown_state
from ..events.event_codec import BadEvent, Event
from ..events.event_codec import decode as decode_event
from ..log.records import BadEventRecord, DecodedRecords, GapCause, RecordKind, decode, errors_of
from ..topics import BadEventTopic, Topic, read_topic
from ..types import AttributeConfig, DevError, EventType, InterfaceChange

ATTR_CONF, INTR_CHANGE, SERVER = "attr_conf", "intr_change", "server"
_SOURCE_STATES = {
    RecordKind.ONLINE: shown_state(None),
    RecordKind.SUSPECT: shown_state(DiscoveryEventKind.SUSPECT),
    RecordKind.OFFLINE: shown_state(DiscoveryEventKind.OFFLINE),
}
_CAUSES = {
    GapCause.NONE: "",
    GapCause.WAY: "on the way",
    GapCause.AWAY: "no recorder ran",
    GapCause.BUFFER: "the recorder could keep no more while the log was away",
    GapCause.REFUSED: "the log refused their records",
}


def discovery_row(change: DiscoveryEvent) -> tuple[DiscoveryRow, int]:
    """The row of a recorded event, and when the recorder received it: microseconds since the epoch, 0 where it does not
    say."""
    recorded = decode(pa.array([change.payload], pa.binary()))
    try:
        if recorded.bad:
            raise recorded.bad[0]
        row = _ROW_MAKERS[RecordKind(int(recorded.kind[0]))](recorded)
    except (BadEventRecord, BadEvent, BadEventTopic) as error:
        row = DiscoveryRow(SOURCE if change.kind is DiscoveryEventKind.RECORD else GAP, BAD_RECORD, info=str(error))
    info = "; ".join(text for text in (change.info, row.info) if text) or None
    return row._replace(info=info), int(recorded.received[0]) // 1000


def _topic(recorded: DecodedRecords) -> Topic:
    return read_topic(recorded.frames.topics[0])


def _source_row(recorded: DecodedRecords) -> DiscoveryRow:
    event, state, data_state = _SOURCE_STATES[RecordKind(int(recorded.kind[0]))]
    return DiscoveryRow(
        SOURCE, event, source_state=state, source_data_state=data_state, info=_error_text(errors_of(recorded, 0))
    )


def _error_text(errors: tuple[DevError, ...]) -> str | None:
    return "; ".join(f"{e.reason}: {e.desc}" for e in errors) or None


def _gap(recorded: DecodedRecords) -> DiscoveryRow:
    topic, count = _topic(recorded), int(recorded.count[0])
    cause = _CAUSES[GapCause(int(recorded.cause[0]))]
    many = "nobody knows how many events" if count < 0 else f"{count} event{'' if count == 1 else 's'}"
    return _with_topic(topic, DiscoveryRow(GAP, GAP, gap_from=int(recorded.first[0]), gap_to=int(recorded.last[0]),
                          info=f"{many} missing: {cause}"))  # fmt: skip


def _restart(recorded: DecodedRecords) -> DiscoveryRow:
    topic = _topic(recorded)
    first, last = int(recorded.first[0]), int(recorded.last[0])
    return _with_topic(topic, DiscoveryRow(RESTART, SERVER, gap_from=first, gap_to=last,
                          info=f"counted anew: after {first} came {last}"))  # fmt: skip


def _with_topic(topic: Topic, row: DiscoveryRow) -> DiscoveryRow:
    return row._replace(topic=str(topic), symbol=topic.attribute)


def _event(recorded: DecodedRecords) -> DiscoveryRow:
    frames = [column[0] for column in recorded.frames.columns()]
    event = decode_event(frames)
    topic = event.topic
    kind = INTR_CHANGE if topic.event is EventType.INTERFACE_CHANGE else ATTR_CONF
    row = _with_topic(topic, DiscoveryRow(kind, kind))
    if not isinstance(event, Event):
        return row
    if event.errors:
        return row._replace(info=_error_text(event.errors))
    if isinstance(event.data, InterfaceChange):
        return row._replace(capabilities=_interface(event.data))
    return row._replace(capabilities=_flat_fields(event.data) if isinstance(event.data, AttributeConfig) else None)


def _interface(change: InterfaceChange) -> dict[str, str]:
    return {
        "dev_started": str(change.dev_started).lower(),
        "attributes": ",".join(config.name for config in change.atts),
        "commands": ",".join(command.cmd_name for command in change.cmds),
    }


def _flat_fields(config: AttributeConfig) -> dict[str, str]:
    """The fields by name, those of inner structures as ``arch_event.period``."""
    found: dict[str, str] = {}

    def add(name: str, value: Any) -> None:
        if dataclasses.is_dataclass(value):
            for f in dataclasses.fields(value):
                add(f"{name}.{f.name}" if name else f.name, getattr(value, f.name))
        elif isinstance(value, tuple):
            found[name] = ",".join(value)
        else:
            found[name] = str(getattr(value, "name", value))

    add("", config)
    return found


_ROW_MAKERS: dict[RecordKind, Callable[[DecodedRecords], DiscoveryRow]] = {
    **dict.fromkeys(_SOURCE_STATES, _source_row),
    RecordKind.GAP: _gap,
    RecordKind.RESTART: _restart,
    RecordKind.STARTED: lambda _: recorder_row(True),
    RecordKind.STOPPED: lambda _: recorder_row(False),
    **dict.fromkeys(
        (
            RecordKind.EVENT,
            RecordKind.INITIAL,
            RecordKind.RESUBSCRIBED,
            RecordKind.CHECKED,
            RecordKind.PUSH,
            RecordKind.ERROR,
        ),
        _event,
    ),
}
