"""TangoEventSource: a Tango device server in Python that sends events to any Tango client, without cppTango (RFC 12).

    pressure = Attribute("pressure", change=Criteria(abs_change=0.5), archive=Criteria(period=60_000))
    lab = Device("lab/gauge/1", [pressure])
    with TangoEventSource([lab], SourceSettings(port=10_123)) as source:
        print(source.address("lab/gauge/1"))          # tango://host:10123/lab/gauge/1#dbase=no
        source.set("lab/gauge/1", "pressure", 1.5)     # sends the events that the criteria ask for
        source.push_change_event("lab/gauge/1", "pressure", 1.6)

It is a device server without a database: clients find it by its address. Pushing never blocks (TG-44, TG-45): the
sockets silently drop events above the high-water mark of a client. The client sees the loss in the counters, unless the
last event was lost.

Methods may be called in any thread. Times are nanoseconds since the epoch; None: now. The sockets and threads are in
:mod:`~mama_spark.tango.source.event_server`.
"""

from __future__ import annotations

import time as _clock
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mama_spark.contracts.errors import ConfigError

from ..errors import refusal
from ..events.event_codec import write_except
from ..giop.ior import Address, Reference
from ..idl.calls import device_type
from ..topics import IDL, BadEventTopic, event_topic
from ..types import DataReady, DevError, EventType, PipeBlob, PipeData, Quality
from .attribute_readings import AttributeReading
from .attribute_state import FIXED, AttributeState, DeviceState
from .device import Attribute, Criteria, Device
from .event_channel import EventChannel
from .event_server import EventServer
from .event_supplier import SourceSettings

__all__ = ["Attribute", "Criteria", "Device", "SourceSettings", "TangoEventSource"]

_DEFAULTS = SourceSettings()


class TangoEventSource(EventServer):
    """Device server that sends events; see the module.

    :param devices: first devices
    :ivar settings: its :class:`~mama_spark.tango.source.event_supplier.SourceSettings`
    :ivar admin: name of the admin device
    :raises ConfigError: a name or an endpoint is invalid
    """

    def __init__(self, devices: Iterable[Device] = (), settings: SourceSettings = _DEFAULTS) -> None:
        super().__init__(settings)
        self.admin = self._supplier.admin
        _check_names(f"{self.host_name}:1", self.admin)
        self._attributes: dict[tuple[str, str], AttributeState] = {}  # by names as given, a cache
        for device in devices:
            self.add_device(device)

    def address(self, device: str) -> str:
        """Full name of a device, for clients."""
        if self.settings.database is not None:
            return f"tango://{self.settings.named_database}/{device}"
        return f"tango://{self._address}/{device}#dbase=no"

    def reference(self, device: str) -> Reference:
        """Reference to a device or the admin device, for a database. The source must run."""
        host, _, port = self._address.rpartition(":")
        return Reference((Address(host, int(port)),), device.lower().encode("latin-1"), device_type(IDL))

    def device_class(self, device: str) -> str:
        """Class of a device."""
        with self._lock:
            return self._supplier.device(device).declaration.dev_class

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        with self._lock:
            return tuple(self._supplier.devices)

    def attributes(self, device: str) -> tuple[Attribute, ...]:
        """Declarations of a device's attributes; State and Status are the last ones.

        :raises DevFailed: API_DeviceNotFound: there is no such device
        """
        with self._lock:
            return tuple(state.attribute for state in self._supplier.device(device).attributes.values())

    def subscribed(self, device: str, attribute: str | None, event: EventType = EventType.CHANGE) -> bool:
        """Whether these events have subscriptions now.

        :param attribute: name of an attribute; None: interface changes
        :raises DevFailed: there is no such device or attribute
        """
        with self._lock:
            if attribute is None:
                channel = self._supplier.device(device).channel
                return channel is not None and channel.is_subscribed
            return self._supplier.attribute(device, attribute).active_channel(event) is not None

    def listeners(self) -> dict[tuple[str, str, EventType], int]:
        """Device, attribute and event type -> number of ZeroMQ connections that receive these events. A connection
        counts when its subscription message has reached the event socket, some milliseconds after :meth:`subscribed` is
        True."""
        with self._lock:
            subscribers = self.subscribers()
            found = {
                key: sum(subscribers.get(topic.encode(), 0) for topic in channel.topics)
                for key, channel in self._subscribed_channels()
            }
        return {key: number for key, number in found.items() if number}

    def clients(self) -> dict[tuple[str, str, EventType], frozenset[str]]:
        """Device, attribute and event type -> clients that negotiated or confirmed a subscription within the expiry:
        the address of each, and what its library says about itself (ClntIdent)."""
        with self._lock:
            return {key: frozenset(channel.clients) for key, channel in self._subscribed_channels()}

    def _subscribed_channels(self) -> Iterator[tuple[tuple[str, str, EventType], EventChannel]]:
        for device in self._supplier.devices.values():
            for state in device.attributes.values():
                for channel in state.channels.values():
                    if channel.is_subscribed:
                        yield (state.device, state.attribute.key, channel.event), channel

    def add_device(self, device: Device) -> None:
        """Add a device.

        :raises ConfigError: a device with this name exists, or a name is not allowed in topics
        """
        key = device.name.lower()
        for name in (None, *(attribute.name for attribute in device.attributes)):
            _check_names(f"{self.host_name}:1", key, name)
        with self._lock:
            if key in self._supplier.devices or key == self._supplier.admin:
                raise ConfigError(f"the device {key} exists already")
            # Time of day: stamps events.
            self._supplier.devices[key] = DeviceState(device, _clock.time_ns())

    def add_attributes(self, device: str, attributes: Iterable[Attribute], *, replace: bool = False) -> None:
        """Add attributes to a device; clients get one interface change. Subscriptions to an attribute that was removed
        or is replaced go on: clients get its configuration, and an error where it does not send their events any more.

        :param replace: attributes that exist are declared anew, and have no value then; State and Status cannot
        :raises DevFailed: API_DeviceNotFound: there is no such device
        :raises ConfigError: an attribute with this name exists, or a name is not allowed in topics
        """
        with self._lock:
            found, new = self._supplier.device(device), list(attributes)
            for attribute in new:
                _check_names(f"{self.host_name}:1", found.key, attribute.name)
                there = attribute.key in found.attributes and not (replace and attribute.key not in FIXED)
                if there or sum(attribute.key == other.key for other in new) > 1:
                    raise ConfigError(f"{device} has an attribute {attribute.name} already")
            self._attributes.clear()
            self.send(self._supplier.add_attributes(found, new, _clock.time_ns(), _clock.monotonic()))

    def remove_attributes(self, device: str, names: Iterable[str]) -> None:
        """Remove attributes of a device; clients get one interface change. Their subscriptions wait for attributes of
        the same names until they expire.

        :raises DevFailed: there is no such device or attribute, or it is State or Status
        """
        with self._lock:
            found = self._supplier.device(device)
            removed = [self._supplier.attribute(device, name).attribute for name in names]
            for attribute in removed:
                if attribute.key in FIXED:
                    raise refusal("API_NotSupported", f"{attribute.name} cannot be removed", "remove_attributes")
                if attribute.key in found.attributes:
                    found.remove_attribute(attribute.key)
            self._attributes.clear()
            self._send_interface(found)

    def _send_interface(self, device: DeviceState, started: bool = False) -> int:
        return self.send(self._supplier.push_data(device.channel, device.interface(started)))

    def set(
        self, device: str, attribute: str, value: Any = None, *, time: int | None = None,
        quality: Quality = Quality.VALID, written: Any = None, errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Set the value of an attribute, or errors, and send the change, archive and alarm events that its criteria
        select. Returns the number of messages.

        :param value: a number, text, array of shape (x,) or (y, x), ``Encoded``, bytes, or ``DevState``
        :param written: set value of a settable attribute
        :param errors: errors instead of a value
        :raises DevFailed: there is no such attribute
        :raises CdrError: the value is not of the attribute's type
        """
        with self._lock:
            state = self._attribute(device, attribute)
            reading = _reading(state, value, time, quality, written, errors)
            return self.send(self._supplier.detect_and_push(state, reading, _clock.monotonic()))

    def push_event(
        self, event: EventType, device: str, attribute: str, value: Any = None, *, time: int | None = None,
        quality: Quality = Quality.VALID, written: Any = None, errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Send an event of a type that carries a value. Criteria apply only if they have ``detect``. A change event is
        followed by an alarm event if the quality changed accordingly. Other parameters, result and errors as
        :meth:`set`.

        :raises ConfigError: events of this type carry no value
        """
        if not event.carries_value or event is EventType.QUALITY:
            raise ConfigError(f"{event.wire_name} events carry no value; use another push method")
        with self._lock:
            state = self._attribute(device, attribute)
            reading = _reading(state, value, time, quality, written, errors)
            messages = self._supplier.push(state, event, reading, _clock.monotonic())
            return self.send(messages) if messages else 0

    def push_change_event(self, device: str, attribute: str, value: Any = None, **more: Any) -> int:
        """:meth:`push_event` of a change event."""
        return self.push_event(EventType.CHANGE, device, attribute, value, **more)

    def _attribute(self, device: str, attribute: str) -> AttributeState:
        """The caller holds the lock."""
        found = self._attributes.get((device, attribute))
        if found is None:
            found = self._attributes[device, attribute] = self._supplier.attribute(device, attribute)
        return found

    def push_data_ready_event(self, device: str, attribute: str, counter: int) -> int:
        """Send a data_ready event (TG-15); the caller defines the ``counter`` in its data."""
        with self._lock:
            state = self._attribute(device, attribute)
            data = DataReady(state.attribute.name, int(state.attribute.data_type), counter)
            channel = state.active_channel(EventType.DATA_READY)
            return self.send(self._supplier.push_data(channel, data))

    def push_interface_event(self, device: str, started: bool = False) -> int:
        """Send an interface change with the commands and attributes of a device (TG-16)."""
        with self._lock:
            return self._send_interface(self._supplier.device(device), started)

    def push_pipe_event(
        self, device: str, pipe: str, blob: PipeBlob | None = None, *, time: int | None = None,
        errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Send a pipe event with a value or errors (TG-14). The first push creates the pipe."""
        now = _clock.time_ns() if time is None else time
        with self._lock:
            pipes = self._supplier.device(device).pipes
            channel, last = pipes.get(pipe.lower()) or (EventChannel(EventType.PIPE, None), None)
            if errors or blob is None:
                pipes[pipe.lower()] = channel, last
                return self.send(self._supplier.push_errors(channel, errors))
            data = PipeData(pipe, now, blob)
            pipes[pipe.lower()] = channel, data
            return self.send(self._supplier.push_data(channel, data))


def _reading(
    state: AttributeState, value: Any, time: int | None, quality: Quality, written: Any, errors: Sequence[DevError]
) -> AttributeReading:
    when = _clock.time_ns() if time is None else time
    if errors:
        write_except(errors)  # refuse here, not when a client reads them
        return AttributeReading.failed(errors, when)
    return state.readings.make(value, when, quality, written)


def _check_names(tango_host: str, device: str, attribute: str | None = None) -> None:
    """Check that topics may hold these names.

    :raises ConfigError: a name is not allowed in topics
    """
    event = EventType.INTERFACE_CHANGE if attribute is None else EventType.CHANGE
    try:
        event_topic(tango_host, device, attribute, event, dbase=False)
    except BadEventTopic as error:
        raise ConfigError(str(error)) from None
