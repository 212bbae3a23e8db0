"""Run-time state of devices and their attributes: last values, configurations, event channels, and the filters that
select the values to send as events by the event criteria (TG-06). Pure.

Filters detect events as cppTango does. A new value is compared with the last *sent* value, not with the last set value:

=============================== ==========================================================================
last sent value, new value      sent
=============================== ==========================================================================
none was sent yet               yes
quality differs                 yes
both INVALID                    no
an error, then a value          yes
a value, then an error          yes
two errors                      if they differ
dimensions differ               yes
numbers                         if they have changed (:mod:`mama_spark.tango.value_changes`)
text, states, booleans, enums   if they differ
=============================== ==========================================================================

Archive events may also have a period, after which the value is sent in any case. Alarm events depend only on the
quality.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ..types import (
    AttributeConfig,
    CommandInfo,
    Content,
    DataType,
    DevState,
    EventType,
    InterfaceChange,
    PipeData,
    Quality,
    same_content,
)
from ..value_changes import has_changed
from .attribute_readings import AttributeReading, ReadingFactory
from .device import Attribute, Criteria, Device
from .event_channel import EventChannel, Frames

_ALARMS = frozenset((Quality.ALARM, Quality.WARNING))


class ChangeFilter:
    """Filter of the change or archive events of one attribute. Times are seconds of a monotonic clock; ``due``: end of
    the period, None: there is no period, or no value was sent yet."""

    __slots__ = ("_attribute", "_last", "_limits", "criteria", "due")

    def __init__(self, attribute: Attribute, criteria: Criteria) -> None:
        self._attribute, self.criteria = attribute, criteria
        self._limits = (criteria.absolute, criteria.relative) if attribute.numeric else (None, None)
        self._last: AttributeReading | None = None
        self.due: float | None = None

    def accepts(self, reading: AttributeReading, now: float) -> bool:
        """Whether to send this value; if so, the caller then calls :meth:`was_sent`."""
        last = self._last
        if last is None or reading.quality is not last.quality or bool(reading.errors) is not bool(last.errors):
            return True
        if reading.errors:
            return reading.errors != last.errors
        if self.due is not None and now >= self.due:
            return True
        if reading.empty:
            return False
        if reading.r_dim != last.r_dim or reading.w_dim != last.w_dim:
            return True
        kind = self._attribute.kind
        return self._differs(last.content(kind), reading.content(kind))

    def was_sent(self, reading: AttributeReading, now: float) -> None:
        """Note that this value was sent; later values are compared with it."""
        self._last = reading
        self.due = None if self.criteria.period is None else now + self.criteria.period / 1000

    def _differs(self, old: Content, new: Content) -> bool:
        if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):
            return not same_content(old, new)
        return has_changed(old, new, *self._limits)


class AlarmFilter:
    """Filter of the alarm events of one attribute. It accepts values whose quality changed to, from or between ALARM
    and WARNING, and values that follow errors or the reverse."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Quality, bool] = (Quality.VALID, False)

    def accepts(self, reading: AttributeReading) -> bool:
        """Whether to send this value. The caller then calls :meth:`was_seen` in any case."""
        quality, failed = self._last
        if bool(reading.errors) is not failed:
            return True
        return reading.quality is not quality and not _ALARMS.isdisjoint((reading.quality, quality))

    def was_seen(self, reading: AttributeReading) -> None:
        """Note this value; the next one is compared with it."""
        self._last = (reading.quality, bool(reading.errors))


NO_TEXT = "Uninitialised"  #: description of an argument of a command
#: Commands of all devices, and of the admin device: CmdArgType is 0 for void, 8 for a string, 19 for a state.
STATE_COMMANDS = (
    CommandInfo("State", 0, 0, 0, 19, NO_TEXT, "Device state"),
    CommandInfo("Status", 0, 0, 0, 8, NO_TEXT, "Device status"),
)
DEVICE_COMMANDS = (CommandInfo("Init", 0, 0, 0, 0, NO_TEXT, NO_TEXT), *STATE_COMMANDS)
_STATE = Attribute("State", DataType.STATE)
_STATUS = Attribute("Status", DataType.STRING)
FIXED = (_STATE.key, _STATUS.key)  #: attributes that every device has
Channels = dict[EventType, EventChannel]


class AttributeState:
    """One attribute of one device at run time.

    :ivar reading: last value
    :param channels: channels of an attribute of this name that was here before
    :ivar channels: event channels of the event types that clients subscribed to
    """

    __slots__ = ("alarm_filter", "attribute", "channels", "config", "device", "filters", "reading", "readings")

    def __init__(self, device: str, attribute: Attribute, reading: AttributeReading, channels: Channels) -> None:
        self.device, self.attribute, self.reading = device, attribute, reading
        self.readings = ReadingFactory(attribute)
        self.config: AttributeConfig = attribute.config()
        self.channels = channels
        for channel in channels.values():
            channel.declare(attribute)
        self.alarm_filter = AlarmFilter()
        self.filters = {
            event: ChangeFilter(attribute, criteria)
            for event, criteria in ((EventType.CHANGE, attribute.change), (EventType.ARCHIVE, attribute.archive))
            if criteria is not None
        }

    def refusal_reason(self, event: EventType) -> str | None:
        """Reason in the error for subscriptions to these events; None: they are allowed."""
        attribute = self.attribute
        if event in self.filters:
            criteria = self.filters[event].criteria
            if criteria.detect and criteria.empty and attribute.numeric:
                return "API_EventPropertiesNotSet"
            return None
        if event is EventType.DATA_READY:
            return None if attribute.data_ready else "API_AttributeNotDataReadyEnabled"
        missing = {
            EventType.CHANGE: True,
            EventType.ARCHIVE: True,
            EventType.ALARM: not attribute.alarm,
            EventType.PERIODIC: attribute.period is None,
        }.get(event, False)
        return "API_AttributePollingNotStarted" if missing else None

    def active_channel(self, event: EventType) -> EventChannel | None:
        channel = self.channels.get(event)
        return channel if channel is not None and channel.confirmed else None

    def pushed(self, event: EventType, reading: AttributeReading, now: float) -> Iterator[list[Frames]]:
        """The event of this type if it has subscriptions, and the alarm event of a change."""
        channel, filter_ = self.active_channel(event), self.filters.get(event)
        if channel and (filter_ is None or not filter_.criteria.detect or filter_.accepts(reading, now)):
            if filter_ is not None:
                filter_.was_sent(reading, now)
            if event is EventType.ALARM:
                self.alarm_filter.was_seen(reading)
            yield channel.encode_reading(reading)
        if event is EventType.CHANGE and EventType.ALARM in self.channels:
            yield from self._alarm(reading)

    def detected(self, reading: AttributeReading, now: float) -> Iterator[list[Frames]]:
        """The change, archive and alarm events that the criteria select."""
        for event, filter_ in self.filters.items():
            channel = self.active_channel(event)
            if channel is not None and filter_.accepts(reading, now):
                filter_.was_sent(reading, now)
                yield channel.encode_reading(reading)
        yield from self._alarm(reading)

    def _alarm(self, reading: AttributeReading) -> Iterator[list[Frames]]:
        channel = self.active_channel(EventType.ALARM)
        if channel is not None:
            accepted = self.alarm_filter.accepts(reading)
            self.alarm_filter.was_seen(reading)
            if accepted:
                yield channel.encode_reading(reading)


class DeviceState:
    """One device at run time.

    :ivar attributes: name in topics -> state; State and Status included
    :ivar channel: event channel of interface changes; None: no client subscribed to them
    :ivar pipes: name -> event channel and last value
    :ivar removed: name of a removed attribute -> its event channels, which one of the same name takes over
    """

    __slots__ = ("attributes", "channel", "declaration", "key", "pipes", "removed")

    def __init__(self, declaration: Device, time: int) -> None:
        self.declaration, self.key = declaration, declaration.name.lower()
        self.attributes: dict[str, AttributeState] = {}
        self.removed: dict[str, Channels] = {}
        self.add_attributes((*declaration.attributes, _STATE, _STATUS), time)
        for name, content in zip(FIXED, (DevState.ON, "The device is in ON state."), strict=True):
            state = self.attributes[name]
            state.reading = state.readings.make(content, time)
        self.channel: EventChannel | None = None
        self.pipes: dict[str, tuple[EventChannel, PipeData | None]] = {}

    def add_attributes(self, attributes: Iterable[Attribute], time: int) -> list[AttributeState]:
        """Add attributes without a value, or replace those of the same name; State and Status stay at the end.
        Subscriptions to an attribute that was removed or is replaced go on."""
        fixed = {name: self.attributes.pop(name) for name in FIXED if name in self.attributes}
        added = []
        for attribute in attributes:
            if attribute.key in self.attributes:
                self.remove_attribute(attribute.key)
            channels = self.removed.pop(attribute.key, {})
            added.append(AttributeState(self.key, attribute, AttributeReading.invalid(time), channels))
            self.attributes[attribute.key] = added[-1]
        self.attributes.update(fixed)
        return added

    def remove_attribute(self, key: str) -> None:
        state = self.attributes.pop(key)
        self.removed[key], state.channels = state.channels, {}
        self.forget_removed()

    def forget_removed(self) -> None:
        """Forget the event channels of removed attributes whose subscriptions have ended."""
        self.removed = {
            key: found for key, found in self.removed.items() if any(c.is_subscribed for c in found.values())
        }

    def interface(self, started: bool) -> InterfaceChange:
        """Data of an interface change (TG-16): the commands and attributes of the device, and whether it was
        started."""
        configs = tuple(state.config for state in self.attributes.values())
        return InterfaceChange(started, DEVICE_COMMANDS, configs)
