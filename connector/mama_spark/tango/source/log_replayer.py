"""Log replayer: pushes the values in records of a log through an event source, and declares devices and attributes.
Pure.

Each record is pushed as a change, an archive and a user event. If a rule for its attribute has criteria, these select
the events as in a device server (:mod:`mama_spark.tango.source.attribute_state`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.contracts.record_log import Records
from mama_spark.options.declare import option
from mama_spark.options.tables import parse_table
from mama_spark.options.times import milliseconds
from mama_spark.options.values import nonempty_text, real_number, string

from ..errors import DevFailed
from ..events.batch_decoder import BatchDecoder
from ..events.event_codec import Event
from ..giop.cdr import CdrError
from ..log.records import RecordKind, decode
from ..topics import Topic, read_topic
from ..types import AttributeValue, DataType, EventType, Format, Quality, ValueKind
from .device import Attribute, Criteria, Device

if TYPE_CHECKING:
    from mama_spark.tango.source.event_source import TangoEventSource

EVENTS = (EventType.CHANGE, EventType.ARCHIVE, EventType.USER)
_GROUP = "attribute"
_VALUE_TOPIC = f".{EventType.CHANGE.wire_name}"  #: end of the topics of records with values
_STATE_AND_STATUS = {"state": DataType.STATE, "status": DataType.STRING}


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule: criteria and properties of the attributes that a pattern matches; a table ``[[attribute]]`` of a
    configuration file. Periods are in milliseconds, as in Tango."""

    pattern: str = option(
        "text", nonempty_text, "", _GROUP,
        "`domain/family/member/attribute`, in any case; `*` stands for anything.", shown="needed",
    )  # fmt: skip
    abs_change: float | None = option(
        "number", real_number, None, _GROUP, "Least difference to the last change event.", shown="any change"
    )
    rel_change: float | None = option("number", real_number, None, _GROUP, "Likewise, in percent.", shown="any change")
    archive_abs_change: float | None = option(
        "number", real_number, None, _GROUP, "Least difference to the last archive event.", shown="any change"
    )
    archive_rel_change: float | None = option(
        "number", real_number, None, _GROUP, "Likewise, in percent.", shown="any change"
    )
    archive_period: int | None = option(
        "duration", milliseconds, None, _GROUP, "Longest time between archive events.", shown="none"
    )
    period: int | None = option("duration", milliseconds, None, _GROUP, "Time between periodic events.", shown="none")
    label: str = option("text", string, "", _GROUP, "Shown to clients.")
    description: str = option("text", string, "", _GROUP, "Shown to clients.")
    unit: str = option("text", string, "", _GROUP, "Shown to clients.")
    display_format: str = option("text", string, "", _GROUP, "Shown to clients: `%6.2f`.")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Rule:
        """Make a rule from its table.

        :raises ConfigError: a key is unknown or missing, or a value is invalid
        """
        rule = cls(**parse_table(cls, table, "[[attribute]]", required=("pattern",)))
        rule.attribute("check", DataType.DOUBLE, Format.SCALAR)
        return rule

    def matches(self, key: str) -> bool:
        """Whether the pattern matches an attribute, ``domain/family/member/attribute`` in lower case."""
        return fnmatchcase(key, self.pattern.lower())

    def attribute(self, name: str, data_type: DataType, format: Format) -> Attribute:
        change = Criteria(self.abs_change, self.rel_change)
        archive = Criteria(self.archive_abs_change, self.archive_rel_change, self.archive_period)
        return Attribute(
            name, data_type, format, change=_detecting(change), archive=_detecting(archive), period=self.period,
            label=self.label, description=self.description, unit=self.unit, display_format=self.display_format,
        )  # fmt: skip


def _detecting(criteria: Criteria) -> Criteria:
    return criteria if criteria.empty else replace(criteria, detect=True)


@dataclass
class ReplayCounts:
    """Totals since the replayer was made.

    :ivar skipped: records of other sources or of other kinds; those that a recorder wrote are also ``recorded``
    :ivar bad: records that cannot be decoded, or with values that the attribute does not accept
    :ivar reasons: errors of the first bad records
    """

    records: int = 0
    skipped: int = 0
    recorded: int = 0
    bad: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Value:
    topic: Topic
    name: str
    data_type: DataType
    format: Format
    value: Any
    quality: Quality
    time: int


class LogReplayer:
    """Replays records through one event source.

    :param rules: rules of attributes; the first rule that matches an attribute applies
    :param name: name of the source; records of other sources are skipped; None: replay all
    :ivar last: topic -> sequence of the newest record that :meth:`remember` got
    """

    _MAX_REASONS = 20

    def __init__(self, source: TangoEventSource, rules: Sequence[Rule] = (), name: str | None = None) -> None:
        self._source, self._rules = source, tuple(rules)
        self._name = None if name is None else name.lower()
        self._decoder = BatchDecoder()
        self._declared: dict[tuple[str, str], tuple[DataType, Format]] = {}
        self._devices = set(source.devices)
        self.last: dict[str, int] = {}
        self.counts = ReplayCounts()

    @property
    def attributes(self) -> list[tuple[str, str]]:
        """Device and name of each declared attribute."""
        return list(self._declared)

    def remember(self, records: Records) -> None:
        """Remember the newest record of each topic, but do not replay it."""
        topics = records.topics.to_pylist()
        rows = zip(topics, records.sequences.tolist(), strict=True)
        self.last.update((topic, sequence) for topic, sequence in rows if topic.endswith(_VALUE_TOPIC))

    def replay(self, records: Records) -> Counter[tuple[str, str, EventType]]:
        """Declare new attributes, and push the values of these records, in order; returns the number of pushed events
        by device, name of the attribute in topics, and event type."""
        events: dict[tuple[str, str], list[EventType]] = {}
        pushed: Counter[tuple[str, str, EventType]] = Counter()
        for row, value in self._values(records):
            try:
                self._declare(value)
                key = value.topic.device, value.name
                if key not in events:
                    events[key] = self._events(*key)
                for event in events[key]:
                    self._source.push_event(
                        event, value.topic.device, value.name, value.value, time=value.time, quality=value.quality
                    )
                    pushed[value.topic.device, value.name.lower(), event] += 1
                self.counts.records += 1
            except (CdrError, DevFailed, ConfigError) as e:
                self._bad(int(records.sequences[row]), e)
        return pushed

    def _events(self, device: str, attribute: str) -> list[EventType]:
        """Change events are always pushed, since pushing also sets the value; others if they have subscriptions."""
        return [e for e in EVENTS if e is EventType.CHANGE or self._source.subscribed(device, attribute, e)]

    def _bad(self, sequence: int, error: MamaError) -> None:
        self.counts.bad += 1
        if len(self.counts.reasons) < self._MAX_REASONS:
            self.counts.reasons.append(f"record {sequence}: {error}")

    def _values(self, records: Records) -> Iterator[tuple[int, _Value]]:
        found = decode(records.payloads)
        for row, error in sorted(found.bad.items()):
            self._bad(int(records.sequences[row]), error)
        rows = np.flatnonzero(found.kind == RecordKind.PUSH)
        recorded = len(found) - len(found.bad) - len(rows)
        self.counts.skipped += recorded
        self.counts.recorded += recorded
        frames = [[column[row] for row in rows.tolist()] for column in found.frames.columns()]
        events = self._decoder.decode(*frames)
        values: dict[int, AttributeValue | tuple[str, ValueKind, Any]] = {}
        for group in events.scalars:
            names = [name.decode("latin-1") for name in group.names.tolist()]
            for at, name, number in zip(group.rows.tolist(), names, group.read.tolist(), strict=True):
                values[at] = (name, group.kind, number)
        for at, event in events.others.items():
            if isinstance(event, Event) and isinstance(event.data, AttributeValue):
                values[at] = event.data
        times = np.where(events.time == 0, records.times[rows] * 1000, events.time).tolist()
        for at, row in enumerate(rows.tolist()):
            if at not in values:
                self._bad(int(records.sequences[row]), events.bad.get(at) or MamaError("the record contains no value"))
                continue
            topic = read_topic(frames[0][at])
            if self._name is not None and topic.tango_host != self._name:
                self.counts.skipped += 1
                continue
            yield row, self._value(topic, values[at], events, at, times[at])

    def _value(self, topic: Topic, found: Any, events: Any, at: int, time: int) -> _Value:
        quality, data_type = Quality(int(events.quality[at])), DataType(int(events.data_type[at]))
        if isinstance(found, AttributeValue):
            return _Value(topic, found.name, data_type, found.format, _python(found), quality, time)
        name, _, number = found
        return _Value(topic, name, data_type, Format.SCALAR, number, quality, time)

    def _declare(self, value: _Value) -> None:
        device, key = value.topic.device, value.name.lower()
        declared = (value.data_type, value.format)
        before = self._declared.get((device, key))
        if before == declared:
            return
        if device not in self._devices:
            self._source.add_device(Device(device))
            self._devices.add(device)
        if key in _STATE_AND_STATUS:  # attributes that every device has
            if declared != (_STATE_AND_STATUS[key], Format.SCALAR):
                raise ConfigError(f"{device}/{value.name} is {_STATE_AND_STATUS[key].name}, not {value.data_type.name}")
        else:
            rule = next((r for r in self._rules if r.matches(f"{device}/{key}")), Rule("*"))
            attribute = rule.attribute(value.name, *declared)
            self._source.add_attributes(device, [attribute], replace=before is not None)
        self._declared[device, key] = declared


def _python(value: AttributeValue) -> Any:
    """The value in the form of :meth:`TangoEventSource.push_event`; None: there is none."""
    read = value.read
    if value.format is Format.SCALAR:
        return read[0] if isinstance(read, tuple | np.ndarray) and len(read) else read
    if value.format is not Format.IMAGE or read is None:
        return read
    x, y = value.r_dim
    if isinstance(read, np.ndarray):
        return read.reshape(y, x)
    return [list(read)[row * x : row * x + x] for row in range(y)]  # type: ignore[arg-type]
