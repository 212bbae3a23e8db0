"""One attribute of an event source as it runs: its last value, and a channel for each type of event. Pure.

Counters are those of the reference: one for each attribute and event type, 1 at the first subscription, one more for
each event, shared by all subscribers and by all forms of data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from mama_spark.tango.events.events import Data, read_data, write_data, write_except
from mama_spark.tango.events.frame_layout import ScalarEncoder
from mama_spark.tango.events.frames import BIG, LITTLE, MAGIC, usual_call
from mama_spark.tango.giop.cdr import CdrError, CdrWriter
from mama_spark.tango.idl.values import write_value
from mama_spark.tango.topics import IDL, Topic
from mama_spark.tango.types import (
    DTYPES,
    AttributeConfig,
    DataType,
    DevError,
    DevState,
    EventType,
    Format,
    InterfaceChange,
    PipeData,
)

from .commands import DEVICE_COMMANDS
from .criteria import AlarmFilter, ChangeFilter
from .device import Attribute, Criteria, Device
from .readings import AttributeReading, Readings

Frames = list[bytes]
_WRAP = 2**32


class EventChannel:
    """The events of one type, of one attribute, pipe or interface, while somebody wants them.

    :ivar ctr: of the next event
    :ivar forms: form of the data (IDL 5, 4, 3) -> when it was last confirmed
    """

    __slots__ = ("_encoders", "_little", "_topics", "attribute", "ctr", "event", "forms")

    def __init__(self, event: EventType, attribute: Attribute | None, little: bool) -> None:
        self.event, self.attribute, self._little = event, attribute, little
        self.ctr = 1
        self.forms: dict[int, float] = {}
        self._topics: dict[int, Topic] = {}
        self._encoders: dict[int, ScalarEncoder] = {}

    def __repr__(self) -> str:
        return f"<EventChannel {self.event.wire_name}, {len(self.forms)} forms, next is {self.ctr}>"

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Where its events went, since it was first subscribed to."""
        return tuple(self._topics.values())

    def subscribe(self, form: int, topic: Topic, now: float) -> None:
        """Somebody wants this form, or still does."""
        self.forms[form] = now
        self._topics[form] = topic
        attribute = self.attribute
        if attribute is None or not self.event.carries_value or form == 3:
            return
        if attribute.kind in DTYPES and attribute.format is Format.SCALAR:
            data_type, settable = attribute.data_type, attribute.settable
            self._encoders[form] = ScalarEncoder(topic, attribute.name, data_type, settable, self._little)

    def expire(self, before: float) -> None:
        """Forms that nobody confirmed since are sent no more."""
        for form in [form for form, seen in self.forms.items() if seen <= before]:
            del self.forms[form]

    def of_reading(self, reading: AttributeReading) -> list[Frames]:
        """An event with a value, or with errors; one message for each form."""
        numbers = reading.numbers
        if numbers is None or reading.errors or len(self._encoders) < len(self.forms):
            if reading.errors:
                return self.of_errors(reading.errors)
            assert self.attribute is not None
            return self.of_data(reading.value(self.attribute))
        ctr = self._next()
        return [self._encoders[form].frames(ctr, reading.time, reading.quality, *numbers) for form in self.forms]

    def of_data(self, data: Data) -> list[Frames]:
        """An event with data."""
        made = [(form, self._write(form, data, self._little)) for form in self.forms]
        return self._frames(made, False, self._little)

    def of_errors(self, errors: Sequence[DevError]) -> list[Frames]:
        """An event with errors."""
        frame = write_except(errors, self._little)
        return self._frames([(form, frame) for form in self.forms], True, self._little)

    def of_frame(self, frame: bytes, is_except: bool, little: bool) -> list[Frames]:
        """An event whose fourth frame somebody else made, in the newest form: that one is sent as it is. Older forms
        are made of it; those that cannot be are not sent, and their clients see a gap."""
        made = []
        for form in self.forms:
            with contextlib.suppress(CdrError):
                made.append((form, frame if form == 5 or is_except else self._older(form, frame, little)))
        return self._frames(made, is_except, little)

    def _frames(self, made: list[tuple[int, bytes]], is_except: bool, little: bool) -> list[Frames]:
        order, call = LITTLE if little else BIG, usual_call(self._next(), is_except, little)
        return [[self._topics[form].encode(), order, call, frame] for form, frame in made]

    def _older(self, form: int, frame: bytes, little: bool) -> bytes:
        """:raises CdrError: it holds no data, or what the form has not"""
        return self._write(form, read_data(replace(self._topics[form], idl=IDL), frame, little), little)

    def _write(self, form: int, data: Data, little: bool) -> bytes:
        if form == 3 and self.event.carries_value:
            writer = CdrWriter(little, MAGIC, len(MAGIC))
            write_value(writer, data, 3)  # type: ignore[arg-type]
            return writer.getvalue()
        return write_data(self._topics[form], data, little)

    def _next(self) -> int:
        ctr = self.ctr
        self.ctr = (ctr + 1) % _WRAP
        return ctr


class AttributeState:
    """One attribute of one device: its declaration, its last value, its channels."""

    __slots__ = ("alarm", "attribute", "channels", "config", "device", "filters", "reading", "readings")

    def __init__(self, device: str, attribute: Attribute, reading: AttributeReading) -> None:
        self.device, self.attribute, self.reading = device, attribute, reading
        self.readings = Readings(attribute)
        self.config: AttributeConfig = attribute.config()
        self.channels: dict[EventType, EventChannel] = {}
        self.alarm = AlarmFilter()
        self.filters = {
            event: ChangeFilter(attribute, criteria)
            for event, criteria in ((EventType.CHANGE, attribute.change), (EventType.ARCHIVE, attribute.archive))
            if criteria is not None
        }

    def __repr__(self) -> str:
        return f"<AttributeState {self.device}/{self.attribute.key}, {len(self.channels)} channels>"

    def criteria(self, event: EventType) -> Criteria | None:
        """Of events that have some."""
        return self.attribute.change if event is EventType.CHANGE else self.attribute.archive

    def refuses(self, event: EventType) -> str | None:
        """Why nobody may subscribe to these events: a reason of Tango's, or None."""
        attribute = self.attribute
        if event in self.filters:
            criteria = self.criteria(event)
            assert criteria is not None
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

    def live(self, event: EventType) -> EventChannel | None:
        """The channel, if somebody wants its events."""
        channel = self.channels.get(event)
        return channel if channel is not None and channel.forms else None


class DeviceState:
    """One device as it runs."""

    __slots__ = ("channel", "device", "key", "pipes", "slots")

    def __init__(self, device: Device, time: int) -> None:
        self.device, self.key = device, device.name.lower()
        self.slots = {
            attribute.key: AttributeState(self.key, attribute, AttributeReading.invalid(time))
            for attribute in device.attributes
        }
        for attribute, content in ((_STATE, DevState.ON), (_STATUS, "The device is in ON state.")):
            slot = AttributeState(self.key, attribute, AttributeReading.invalid(time))
            slot.reading = slot.readings.make(content, time)
            self.slots[attribute.key] = slot
        self.channel: EventChannel | None = None  # of interface changes
        self.pipes: dict[str, tuple[EventChannel, PipeData | None]] = {}

    def interface(self, started: bool) -> InterfaceChange:
        """What the device has."""
        return InterfaceChange(started, DEVICE_COMMANDS, tuple(slot.config for slot in self.slots.values()))


_STATE = Attribute("State", DataType.STATE)
_STATUS = Attribute("Status", DataType.STRING)
