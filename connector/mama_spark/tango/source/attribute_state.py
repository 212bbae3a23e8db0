"""Run-time state of devices and their attributes: last values, configurations, event channels. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mama_spark.tango.types import (
    AttributeConfig,
    CommandInfo,
    DataType,
    DevState,
    EventType,
    InterfaceChange,
    PipeData,
)

from .attribute_readings import AttributeReading, ReadingFactory
from .device import Attribute, Device
from .event_channel import EventChannel
from .event_filters import AlarmFilter, ChangeFilter

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

    :ivar attribute: its declaration
    :ivar reading: its last value
    :param channels: of an attribute of this name that was here before
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

    def __repr__(self) -> str:
        return f"<AttributeState {self.device}/{self.attribute.key}, {len(self.channels)} channels>"

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
        """The channel of an event type if it has subscriptions, else None."""
        channel = self.channels.get(event)
        return channel if channel is not None and channel.confirmed else None


class DeviceState:
    """One device at run time.

    :ivar declaration: its declaration
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
        """Remove an attribute by its name in topics."""
        state = self.attributes.pop(key)
        self.removed[key], state.channels = state.channels, {}
        self.forget_removed()

    def forget_removed(self) -> None:
        """Forget the event channels of removed attributes whose subscriptions have ended."""
        self.removed = {
            key: found for key, found in self.removed.items() if any(c.is_subscribed for c in found.values())
        }

    def interface(self, started: bool) -> InterfaceChange:
        """Data of an interface change (TG-16): the commands and attributes of the device.

        :param started: the device was started
        """
        configs = tuple(state.config for state in self.attributes.values())
        return InterfaceChange(started, DEVICE_COMMANDS, configs)
