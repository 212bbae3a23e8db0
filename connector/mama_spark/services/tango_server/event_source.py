"""TangoEventSource: a Tango device server in Python that sends events to any Tango client, without cppTango (RFC 12).

    pressure = Attribute("pressure", change=Criteria(abs_change=0.5), archive=Criteria(period=60_000))
    lab = Device("lab/gauge/1", [pressure])
    with TangoEventSource([lab], port=10_123) as source:
        print(source.address("lab/gauge/1"))          # tango://host:10123/lab/gauge/1#dbase=no
        source.set("lab/gauge/1", "pressure", 1.5)     # sends the events that the criteria ask for
        source.push_change_event("lab/gauge/1", "pressure", 1.6)

It is a device server without a database, as far as events need one: clients find it by its address. Pushing never
blocks (TG-44, TG-45): the sockets drop what exceeds the high-water mark of a client, and the source does not notice.
Clients see the loss by the counters, unless it was the last event.

All methods may be called from any thread. Times are nanoseconds since the epoch; None: now. The sockets and threads are
in :mod:`~mama_spark.services.tango_server.event_server`.
"""

from __future__ import annotations

import math
import socket
import time as _clock
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from mama_spark.errors import ConfigError
from mama_spark.tango.errors import refusal
from mama_spark.tango.giop.cdr import CdrReader
from mama_spark.tango.idl.negotiation import EndpointPair
from mama_spark.tango.idl.values import read_value
from mama_spark.tango.topics import BadEventTopic, event_topic
from mama_spark.tango.types import (
    AttributeConfig,
    DataReady,
    DevError,
    DevState,
    EventType,
    PipeBlob,
    PipeData,
    Quality,
)

from .attribute_readings import AttributeReading
from .attribute_state import AttributeState, DeviceState
from .device import Attribute, Criteria, Device
from .event_server import EventServer
from .event_supplier import EXPIRY, HEARTBEAT, EventSupplier
from .value_batches import ValueGroup, group_values

__all__ = ["Attribute", "Criteria", "Device", "TangoEventSource"]

_CHUNK = 512  #: events that are sent while the lock is held


class TangoEventSource:
    """See the module.

    :param devices: to begin with
    :param host: address to listen at, for calls and for events
    :param port: of calls; as ``heartbeat_port`` and ``event_port``: 0 = the system chooses
    :param hwm: events that may wait for one client; it is asked to use the same high-water mark
    :param server: ``exe/instance``; the admin device is ``dserver/<server>``
    :param host_name: in topics and addresses; None: the name of this machine
    :param advertise: where clients connect for events, instead of the address that they called: hosts, or pairs of
        endpoints; the first one, then alternates (TG-33)
    :param little: byte order of events
    :param expiry: seconds after which a subscription that was not confirmed ends
    :param heartbeat_period: seconds
    :raises ConfigError: a name, an endpoint or a period is invalid
    """

    def __init__(
        self,
        devices: Iterable[Device] = (),
        host: str = "0.0.0.0",
        port: int = 0,
        heartbeat_port: int = 0,
        event_port: int = 0,
        hwm: int = 1000,
        *,
        server: str = "mama/source",
        host_name: str | None = None,
        advertise: Sequence[str | EndpointPair] = (),
        little: bool = True,
        expiry: float = EXPIRY,
        heartbeat_period: float = HEARTBEAT,
    ) -> None:
        if not (0 < heartbeat_period < math.inf and expiry > 0):
            raise ConfigError(
                f"heartbeats every {heartbeat_period:g} s, expiry {expiry:g} s: both must be above 0, the first finite"
            )
        self._host_name = (host_name or socket.gethostname()).lower()
        self._supplier = EventSupplier(server, little=little, expiry=expiry, heartbeat_period=heartbeat_period)
        ports = (port, heartbeat_port, event_port)
        self._server = EventServer(self._supplier, host, ports, hwm, self._host_name, advertise)
        self._lock = self._server.lock
        _check_names(f"{self._host_name}:1", self._supplier.admin)
        self._attributes: dict[tuple[str, str], AttributeState] = {}  # by names as given, a cache
        for device in devices:
            self.add_device(device)

    def __repr__(self) -> str:
        where = f"at {self._supplier.tango_host}" if self.running else "closed"
        return f"<TangoEventSource {where}, {len(self._supplier.devices)} devices, {self.sent} events sent>"

    # --- start and stop --------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen. May be called again after :meth:`close`; counters then start again, values stay.

        :raises Unavailable: an address or a port cannot be bound
        """
        self._server.start()
        return self

    def close(self) -> None:
        """Stop listening; clients notice by the missing heartbeats. May be called twice."""
        self._server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._server.running

    @property
    def port(self) -> int:
        """Of calls; 0 while it is closed."""
        return self._server.port

    @property
    def sent(self) -> int:
        """Messages that were passed to the event socket, duplicates included."""
        return self._server.sent

    @property
    def admin(self) -> str:
        """Name of the admin device."""
        return self._supplier.admin

    def address(self, device: str) -> str:
        """Full name of a device, for clients."""
        return f"tango://{self._server.address}/{device}#dbase=no"

    def endpoints(self, local: str = "127.0.0.1") -> tuple[EndpointPair, ...]:
        """Where clients connect for heartbeats and events (TG-08, TG-33).

        :param local: this end of the connection over which a client called
        """
        return self._server.endpoints(local)

    # --- devices and attributes ------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        with self._lock:
            return tuple(self._supplier.devices)

    def attributes(self, device: str) -> tuple[Attribute, ...]:
        """Declarations of a device's attributes, State and Status at the end.

        :raises DevFailed: API_DeviceNotFound
        """
        with self._lock:
            return tuple(state.attribute for state in self._supplier.device(device).attributes.values())

    def subscribed(self, device: str, attribute: str | None, event: EventType = EventType.CHANGE) -> bool:
        """Whether these events have subscriptions now. ``attribute`` None: changes of the interface."""
        with self._lock:
            if attribute is None:
                channel = self._supplier.device(device).channel
                return channel is not None and channel.is_subscribed
            return self._supplier.attribute(device, attribute).active_channel(event) is not None

    def listeners(self) -> dict[tuple[str, str, EventType], int]:
        """Device, attribute and event -> connections that receive it from now on. A client becomes one some
        milliseconds after :meth:`subscribed` reports it, when its subscription has reached the event socket."""
        with self._lock:
            subscribers = self._server.subscribers()
            found = {
                (state.device, state.attribute.key, channel.event): sum(
                    subscribers[topic.encode()] for topic in channel.topics
                )
                for device in self._supplier.devices.values()
                for state in device.attributes.values()
                for channel in state.channels.values()
                if channel.is_subscribed
            }
        return {key: number for key, number in found.items() if number}

    def add_device(self, device: Device) -> None:
        """Add a device.

        :raises ConfigError: there is one of this name, or a name is not allowed in topics
        """
        key = device.name.lower()
        for name in (None, *(attribute.name for attribute in device.attributes)):
            _check_names(f"{self._host_name}:1", key, name)
        with self._lock:
            if key in self._supplier.devices or key == self._supplier.admin:
                raise ConfigError(f"there is a device {key} already")
            self._supplier.devices[key] = DeviceState(device, _clock.time_ns())

    def add_attributes(self, device: str, attributes: Iterable[Attribute]) -> None:
        """Add attributes to a device; clients get one interface change.

        :raises DevFailed: API_DeviceNotFound
        :raises ConfigError: there is one of this name
        """
        with self._lock:
            found, new = self._supplier.device(device), list(attributes)
            for attribute in new:
                _check_names(f"{self._host_name}:1", found.key, attribute.name)
                if attribute.key in found.attributes or sum(attribute.key == other.key for other in new) > 1:
                    raise ConfigError(f"{device} has an attribute {attribute.name} already")
            found.add_attributes(new, _clock.time_ns())
            self._send_interface(found)

    def remove_attributes(self, device: str, names: Iterable[str]) -> None:
        """Remove attributes of a device; clients get one interface change. State and Status cannot be removed.

        :raises DevFailed: there is no such device or attribute
        """
        with self._lock:
            found = self._supplier.device(device)
            removed = [self._supplier.attribute(device, name).attribute for name in names]
            for attribute in removed:
                if attribute.key in ("state", "status"):
                    raise refusal("API_NotSupported", f"{attribute.name} cannot be removed", "remove_attributes")
                found.attributes.pop(attribute.key, None)
            self._attributes.clear()
            self._send_interface(found)

    def _send_interface(self, device: DeviceState, started: bool = False) -> int:
        return self._server.send(self._supplier.push_data(device.channel, device.interface(started)))

    def configure(self, device: str, attribute: str, **changes: Any) -> AttributeConfig:
        """Change an attribute's configuration (fields of ``AttributeConfig`` except name, type and format; event
        criteria do not change); clients get an attr_conf event.

        :raises DevFailed: there is no such attribute
        """
        fixed = {"name", "data_type", "data_format", "writable"} & set(changes)
        if fixed:
            raise ConfigError(f"{', '.join(sorted(fixed))} of an attribute cannot be changed")
        with self._lock:
            state = self._supplier.attribute(device, attribute)
            state.config = replace(state.config, **changes)
            self._push_config(state)
            return state.config

    def _push_config(self, state: AttributeState) -> int:
        return self._server.send(self._supplier.push_data(state.active_channel(EventType.ATTR_CONF), state.config))

    # --- values and events -----------------------------------------------------------------------------------

    def set(
        self, device: str, attribute: str, value: Any = None, *, time: int | None = None,
        quality: Quality = Quality.VALID, written: Any = None, errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Set the value of an attribute, or errors instead, and send the change, archive and alarm events that its
        criteria ask for. Returns the number of messages sent.

        :param value: a number, text, array (images: two dimensions), ``Encoded`` or octets, ``DevState``
        :param written: set value of a settable attribute
        :raises DevFailed: there is no such attribute
        :raises CdrError: the value is not of its type
        """
        state = self._attributes.get((device, attribute)) or self._attribute(device, attribute)
        reading = _reading(state, value, time, quality, written, errors)
        with self._lock:
            return self._server.send(self._supplier.detect_and_push(state, reading, _clock.monotonic()))

    def push_change_event(
        self, device: str, attribute: str, value: Any = None, *, time: int | None = None,
        quality: Quality = Quality.VALID, written: Any = None, errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Send a change event, regardless of the criteria unless they ``detect``; parameters as of :meth:`set`. Also
        sends an alarm event if the quality asks for it."""
        return self._push(EventType.CHANGE, device, attribute, value, time, quality, written, errors)

    def push_archive_event(
        self, device: str, attribute: str, value: Any = None, *, time: int | None = None,
        quality: Quality = Quality.VALID, written: Any = None, errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """As :meth:`push_change_event`."""
        return self._push(EventType.ARCHIVE, device, attribute, value, time, quality, written, errors)

    def push_alarm_event(
        self, device: str, attribute: str, value: Any = None, *, time: int | None = None,
        quality: Quality = Quality.VALID, written: Any = None, errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Send an alarm event."""
        return self._push(EventType.ALARM, device, attribute, value, time, quality, written, errors)

    def push_user_event(
        self, device: str, attribute: str, value: Any = None, *, time: int | None = None,
        quality: Quality = Quality.VALID, written: Any = None, errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Send a user event."""
        return self._push(EventType.USER, device, attribute, value, time, quality, written, errors)

    def push_event(self, event: EventType, device: str, attribute: str, value: Any = None, **more: Any) -> int:
        """Send an event of a type that carries a value; ``more`` as of :meth:`set`.

        :raises ConfigError: another type
        """
        if not event.carries_value or event is EventType.QUALITY:
            raise ConfigError(f"{event.wire_name} events have a method of their own, or none")
        arguments = {"time": None, "quality": Quality.VALID, "written": None, "errors": (), **more}
        return self._push(event, device, attribute, value, **arguments)

    def _push(
        self, event: EventType, device: str, attribute: str, value: Any, time: int | None, quality: Quality,
        written: Any, errors: Sequence[DevError],
    ) -> int:  # fmt: skip
        state = self._attributes.get((device, attribute)) or self._attribute(device, attribute)
        reading = _reading(state, value, time, quality, written, errors)
        with self._lock:
            messages = self._supplier.push(state, event, reading, _clock.monotonic())
            return self._server.send(messages) if messages else 0

    def _attribute(self, device: str, attribute: str) -> AttributeState:
        with self._lock:
            found = self._attributes[device, attribute] = self._supplier.attribute(device, attribute)
        return found

    def push_data_ready_event(self, device: str, attribute: str, counter: int) -> int:
        """Send a data_ready event (TG-15); the counter is the caller's own."""
        state = self._attributes.get((device, attribute)) or self._attribute(device, attribute)
        data = DataReady(state.attribute.name, int(state.attribute.data_type), counter)
        with self._lock:
            channel = state.active_channel(EventType.DATA_READY)
            return self._server.send(self._supplier.push_data(channel, data))

    def push_attr_conf_event(self, device: str, attribute: str) -> int:
        """Send an attribute's configuration again."""
        state = self._attributes.get((device, attribute)) or self._attribute(device, attribute)
        with self._lock:
            return self._push_config(state)

    def push_interface_event(self, device: str, started: bool = False) -> int:
        """Send the commands and attributes of a device (TG-16)."""
        with self._lock:
            return self._send_interface(self._supplier.device(device), started)

    def push_pipe_event(
        self, device: str, pipe: str, blob: PipeBlob | None = None, *, time: int | None = None,
        errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Send the value of a pipe, or errors (TG-14). The first push creates the pipe."""
        now = _clock.time_ns() if time is None else time
        with self._lock:
            pipes = self._supplier.device(device).pipes
            channel, last = pipes.get(pipe.lower()) or (self._supplier.pipe_channel(), None)
            if errors or blob is None:
                pipes[pipe.lower()] = channel, last
                return self._server.send(self._supplier.push_errors(channel, errors))
            data = PipeData(pipe, now, blob)
            pipes[pipe.lower()] = channel, data
            return self._server.send(self._supplier.push_data(channel, data))

    def set_state(self, device: str, state: DevState, status: str | None = None) -> int:
        """Set State and Status of a device, and send their events."""
        text = f"The device is in {state.name} state." if status is None else status
        return self.set(device, "State", state) + self.set(device, "Status", text)

    # --- many at once ----------------------------------------------------------------------------------------

    def push_batch(self, columns: pa.Table | pa.RecordBatch | Mapping[str, Any], event: EventType | None = None) -> int:
        """Push the rows of a table: columns ``device``, ``attribute``, ``value``, and optionally ``quality`` (names or
        numbers), ``time`` (timestamp, or integer nanoseconds), ``written``, ``event`` (names as in topics). Rows of one
        attribute and event keep their order. Returns the number of messages sent.

        :param event: type of all rows, if there is no such column; None: change
        :raises ConfigError: a column is missing or unknown, or has a wrong type
        :raises DevFailed: there is no such attribute
        :raises CdrError: a value is not of its attribute's type; groups before it have been sent
        """
        sent = 0
        for group in group_values(columns, event or EventType.CHANGE, _clock.time_ns()):
            state = self._attributes.get((group.device, group.attribute)) or self._attribute(
                group.device, group.attribute
            )
            sent += self._push_group(state, group)
        return sent

    def _push_group(self, state: AttributeState, group: ValueGroup) -> int:
        sent = 0
        readings = group.readings(state.readings)
        for at in range(0, len(readings), _CHUNK):
            with self._lock:
                now = _clock.monotonic()
                for reading in readings[at : at + _CHUNK]:
                    messages = self._supplier.push(state, group.event, reading, now)
                    if messages:
                        sent += self._server.send(messages)
        return sent

    def push_data(
        self, device: str, attribute: str, event: EventType, datas: Sequence[bytes], *, little: bool = True,
        is_except: bool = False,
    ) -> int:  # fmt: skip
        """Push events whose fourth frames are already encoded (with the magic, in the newest form). Of values, the last
        one becomes the attribute's value. They are converted for clients of older IDL versions.

        :raises DevFailed: there is no such attribute
        :raises CdrError: the last one is no value
        """
        state = self._attributes.get((device, attribute)) or self._attribute(device, attribute)
        last: AttributeReading | None = None
        if datas and event.carries_value and not is_except:
            frame = datas[-1]
            reader = CdrReader(frame, little, 4, 4)
            last = AttributeReading.of(read_value(reader))
            reader.finish()
        sent = 0
        for at in range(0, len(datas), _CHUNK):
            with self._lock:
                if last is not None:
                    state.reading = last
                for data in datas[at : at + _CHUNK]:
                    sent += self._server.send(self._supplier.push_frame(state, event, data, is_except, little))
        return sent


def _reading(
    state: AttributeState, value: Any, time: int | None, quality: Quality, written: Any, errors: Sequence[DevError]
) -> AttributeReading:
    when = _clock.time_ns() if time is None else time
    return AttributeReading.failed(errors, when) if errors else state.readings.make(value, when, quality, written)


def _check_names(tango_host: str, device: str, attribute: str | None = None) -> None:
    """:raises ConfigError: a name is not allowed in topics"""
    event = EventType.INTERFACE_CHANGE if attribute is None else EventType.CHANGE
    try:
        event_topic(tango_host, device, attribute, event, dbase=False)
    except BadEventTopic as error:
        raise ConfigError(str(error)) from None
