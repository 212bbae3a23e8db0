"""A Tango event source in Python: what other Tango clients subscribe to, without cppTango (RFC 12).

    pressure = Attribute("pressure", change=Criteria(abs_change=0.5), archive=Criteria(period=60_000))
    lab = Device("lab/gauge/1", [pressure])
    with TangoEventSource([lab], port=10_123) as source:
        print(source.address("lab/gauge/1"))          # tango://host:10123/lab/gauge/1#dbase=no
        source.set("lab/gauge/1", "pressure", 1.5)     # events as far as the criteria say
        source.push_change_event("lab/gauge/1", "pressure", 1.6)

It is a device server without a database, as far as events need one: clients find it by its address. Pushing never waits
for anybody (TG-44, TG-45): events go to sockets that drop what a client's high-water mark does not hold, and a dropped
event is dropped without a word to the source. Clients see it by the counters, unless it was the last one.

All methods may be called from any thread. Times are nanoseconds since the epoch; none given: now.
"""

from __future__ import annotations

import math
import socket
import threading
import time as _clock
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import zmq

from mama_spark.errors import ConfigError, Unavailable
from mama_spark.tango.errors import refusal
from mama_spark.tango.giop import messages as giop
from mama_spark.tango.giop.cdr import CdrReader
from mama_spark.tango.idl.negotiation import EndpointPair
from mama_spark.tango.idl.values import read_value
from mama_spark.tango.topics import BadEndpoint, BadEventTopic, check_endpoint, event_topic
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

from .attribute_state import AttributeState, DeviceState, EventChannel, Frames
from .device import Attribute, Criteria, Device
from .device_servant import DeviceServant
from .dserver_servant import Caller, Identity
from .event_supplier import EXPIRY, HEARTBEAT, EventSupplier
from .giop_server import GiopServer
from .readings import AttributeReading
from .value_batches import Group, groups_of
from .zmq_publisher import ZmqPublisher

__all__ = ["Attribute", "Criteria", "Device", "TangoEventSource"]

_CHUNK = 512  #: events that are sent with the lock held
_ANY = ("0.0.0.0", "::", "*", "")


class TangoEventSource:
    """See the module.

    :param devices: what there is from the beginning
    :param host: address to listen at, for calls and for events
    :param port: of calls; with ``heartbeat_port`` and ``event_port``: 0 = the system chooses
    :param hwm: events that may wait for one client; it is told to do likewise
    :param server: ``exe/instance``; the admin device is ``dserver/<server>``
    :param host_name: what topics and addresses begin with; None: the name of this machine
    :param advertise: where clients shall connect for events, if that is not where they called: hosts, or whole pairs of
        endpoints; the first one, then alternates (TG-33)
    :param little: byte order of events
    :param expiry: seconds after which a subscription that nobody confirmed ends
    :param heartbeat_period: seconds
    :raises ConfigError: names, endpoints or times that cannot be
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
            raise ConfigError(f"heartbeats each {heartbeat_period:g} s, expiry after {expiry:g} s: that cannot be")
        self._host, self._ports, self._hwm = host, (port, heartbeat_port, event_port), hwm
        self._host_name = (host_name or socket.gethostname()).lower()
        self._advertise = tuple(advertise)
        for endpoint in (end for one in self._advertise for end in _pair_of(one, (1, 1))):
            try:
                check_endpoint(endpoint)
            except BadEndpoint as error:
                raise ConfigError(f"nothing to advertise: {error}") from None
        self._lock = threading.RLock()
        self._board = EventSupplier(server, little=little, expiry=expiry, heartbeat_period=heartbeat_period)
        _check(f"{self._host_name}:1", self._board.admin)
        self._slots: dict[tuple[str, str], AttributeState] = {}
        self._outlet: ZmqPublisher | None = None
        self._service: GiopServer | None = None
        self._machine = DeviceServant(self._board, Identity(self._host_name, hwm))
        self._event_ports = (0, 0)
        self._sent = 0
        for device in devices:
            self.add_device(device)

    def __repr__(self) -> str:
        where = f"at {self._board.tango_host}" if self.running else "closed"
        return f"<TangoEventSource {where}, {len(self._board.devices)} devices, {self._sent} events sent>"

    # --- life ------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen. After :meth:`close` it can be started again; counters then begin anew, values stay.

        :raises Unavailable: an address or a port cannot be had
        """
        if self.running:
            return self
        service: GiopServer | None = None
        try:
            host = "0.0.0.0" if self._host in _ANY else socket.gethostbyname(self._host)
            service = GiopServer(_RequestHandler(self), host, self._ports[0])
            outlet = ZmqPublisher(host, self._ports[1:], self._hwm)
        except (OSError, zmq.ZMQError) as error:
            if service is not None:
                service.stop()
            raise Unavailable(f"an event source cannot listen at {self._host} {self._ports}: {error}") from None
        with self._lock:
            self._outlet, self._service, self._event_ports = outlet, service, outlet.ports
            self._board.begin(f"{self._host_name}:{service.port}")
        service.start()
        return self

    def close(self) -> None:
        """Stop listening; clients find out by the heartbeats. Harmless when it is closed."""
        with self._lock:
            service, self._service = self._service, None
        if service is None:
            return
        service.stop()
        with self._lock:
            outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._service is not None

    @property
    def port(self) -> int:
        """Of calls; 0 while it is closed."""
        return self._service.port if self._service is not None else 0

    @property
    def sent(self) -> int:
        """Messages that were handed to the event socket, the doubled ones included."""
        return self._sent

    @property
    def admin(self) -> str:
        """Name of the admin device."""
        return self._board.admin

    def address(self, device: str) -> str:
        """Full name of a device, for clients."""
        return f"tango://{self._address_host()}:{self.port}/{device}#dbase=no"

    def _address_host(self) -> str:
        return self._host_name if self._host in _ANY else self._host

    def endpoints(self, local: str = "127.0.0.1") -> tuple[EndpointPair, ...]:
        """Where heartbeats and events come from (TG-08, TG-33).

        :param local: this end of the connection by which a client called
        """
        ports = self._event_ports
        if not self._advertise:
            host = local.removeprefix("::ffff:") if self._host in _ANY else socket.gethostbyname(self._host)
            return (_pair_of(host, ports),)
        return tuple(_pair_of(one, ports) for one in self._advertise)

    # --- what there is ---------------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        with self._lock:
            return tuple(self._board.devices)

    def attributes(self, device: str) -> tuple[Attribute, ...]:
        """Those of a device, State and Status at the end.

        :raises DevFailed: API_DeviceNotFound
        """
        with self._lock:
            return tuple(slot.attribute for slot in self._board.device(device).slots.values())

    def subscribed(self, device: str, attribute: str | None, event: EventType = EventType.CHANGE) -> bool:
        """Whether somebody wants these events now. ``attribute`` None: of the interface."""
        with self._lock:
            if attribute is None:
                channel = self._board.device(device).channel
                return channel is not None and bool(channel.forms)
            return self._board.slot(device, attribute).live(event) is not None

    def listeners(self) -> dict[tuple[str, str, EventType], int]:
        """Device, attribute and event -> connections that get it from now on. A client that subscribes becomes one some
        milliseconds after :meth:`subscribed` knows of it, when its subscription reaches the socket of events."""
        with self._lock:
            if self._outlet is None:
                return {}
            heard = self._outlet.heard()
            found = {
                (slot.device, slot.attribute.key, channel.event): sum(heard[topic.encode()] for topic in channel.topics)
                for state in self._board.devices.values()
                for slot in state.slots.values()
                for channel in slot.channels.values()
                if channel.forms
            }
        return {one: number for one, number in found.items() if number}

    def add_device(self, device: Device) -> None:
        """One more.

        :raises ConfigError: there is one of this name, or a name cannot stand in a topic
        """
        key = device.name.lower()
        for name in (None, *(attribute.name for attribute in device.attributes)):
            _check(f"{self._host_name}:1", key, name)
        with self._lock:
            if key in self._board.devices or key == self._board.admin:
                raise ConfigError(f"there is a device {key} already")
            self._board.devices[key] = DeviceState(device, _clock.time_ns())

    def add_attributes(self, device: str, attributes: Iterable[Attribute]) -> None:
        """More attributes of a device; clients get one interface change.

        :raises DevFailed: API_DeviceNotFound
        :raises ConfigError: there is one of this name
        """
        with self._lock:
            state = self._board.device(device)
            found = list(attributes)
            for attribute in found:
                _check(f"{self._host_name}:1", state.key, attribute.name)
                if attribute.key in state.slots or sum(attribute.key == other.key for other in found) > 1:
                    raise ConfigError(f"{device} has an attribute {attribute.name} already")
            fixed = {name: state.slots.pop(name) for name in ("state", "status")}
            now = _clock.time_ns()
            for attribute in found:
                state.slots[attribute.key] = AttributeState(state.key, attribute, AttributeReading.invalid(now))
            state.slots.update(fixed)
            self._interface_changed(state)

    def remove_attributes(self, device: str, names: Iterable[str]) -> None:
        """Clients get one interface change. State and Status stay.

        :raises DevFailed: there is no such device or attribute
        """
        with self._lock:
            state = self._board.device(device)
            slots = [self._board.slot(device, name) for name in names]
            for slot in slots:
                if slot.attribute.key in ("state", "status"):
                    raise refusal("API_NotSupported", f"{slot.attribute.name} cannot be removed", "remove_attributes")
                state.slots.pop(slot.attribute.key, None)
            self._slots.clear()
            self._interface_changed(state)

    def _interface_changed(self, state: DeviceState, started: bool = False) -> None:
        self._send(self._board.tell(state.channel, state.interface(started)))

    def configure(self, device: str, attribute: str, **changes: Any) -> AttributeConfig:
        """Change what an attribute's configuration says (fields of ``AttributeConfig``; not what it is, nor when events
        are sent); clients get an attr_conf event.

        :raises DevFailed: there is no such attribute
        """
        fixed = {"name", "data_type", "data_format", "writable"} & set(changes)
        if fixed:
            raise ConfigError(f"{', '.join(sorted(fixed))} of an attribute cannot be changed")
        with self._lock:
            slot = self._board.slot(device, attribute)
            slot.config = replace(slot.config, **changes)
            self._send(self._board.tell(slot.live(EventType.ATTR_CONF), slot.config))
            return slot.config

    # --- values and events -----------------------------------------------------------------------------------

    def set(
        self, device: str, attribute: str, value: Any = None, *, time: int | None = None,
        quality: Quality = Quality.VALID, written: Any = None, errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """A new value (or why there is none): change, archive and alarm events as far as the criteria of the attribute
        say. Returns the messages sent.

        :param value: a number, text, array (images: two dimensions), ``Encoded`` or octets, ``DevState``
        :param written: the set part, of settable attributes
        :raises DevFailed: there is no such attribute
        :raises CdrError: no value of its type
        """
        slot = self._slots.get((device, attribute)) or self._find(device, attribute)
        reading = _reading(slot, value, time, quality, written, errors)
        with self._lock:
            return self._send(self._board.told(slot, reading, _clock.monotonic()))

    def push_change_event(
        self, device: str, attribute: str, value: Any = None, *, time: int | None = None,
        quality: Quality = Quality.VALID, written: Any = None, errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Send a change event, whatever the criteria say unless they ``detect``; parameters as of :meth:`set`. An alarm
        event goes with it if the quality says so."""
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
        given = {"time": None, "quality": Quality.VALID, "written": None, "errors": (), **more}
        return self._push(event, device, attribute, value, **given)

    def _push(
        self, event: EventType, device: str, attribute: str, value: Any, time: int | None, quality: Quality,
        written: Any, errors: Sequence[DevError],
    ) -> int:  # fmt: skip
        slot = self._slots.get((device, attribute)) or self._find(device, attribute)
        reading = _reading(slot, value, time, quality, written, errors)
        with self._lock:
            found = self._board.push(slot, event, reading, _clock.monotonic())
            return self._send(found) if found else 0

    def _find(self, device: str, attribute: str) -> AttributeState:
        with self._lock:
            found = self._slots[device, attribute] = self._board.slot(device, attribute)
        return found

    def push_data_ready_event(self, device: str, attribute: str, counter: int) -> int:
        """Tell clients that an attribute can be read (TG-15); the counter is the caller's own."""
        slot = self._slots.get((device, attribute)) or self._find(device, attribute)
        data = DataReady(slot.attribute.name, int(slot.attribute.data_type), counter)
        with self._lock:
            return self._send(self._board.tell(slot.live(EventType.DATA_READY), data))

    def push_attr_conf_event(self, device: str, attribute: str) -> int:
        """Tell clients an attribute's configuration again."""
        slot = self._slots.get((device, attribute)) or self._find(device, attribute)
        with self._lock:
            return self._send(self._board.tell(slot.live(EventType.ATTR_CONF), slot.config))

    def push_interface_event(self, device: str, started: bool = False) -> int:
        """Tell clients what a device has (TG-16)."""
        with self._lock:
            state = self._board.device(device)
            return self._send(self._board.tell(state.channel, state.interface(started)))

    def push_pipe_event(
        self, device: str, pipe: str, blob: PipeBlob | None = None, *, time: int | None = None,
        errors: Sequence[DevError] = (),
    ) -> int:  # fmt: skip
        """Send what is in a pipe (TG-14); the pipe is there from its first push on."""
        now = _clock.time_ns() if time is None else time
        with self._lock:
            state = self._board.device(device)
            channel, last = state.pipes.get(pipe.lower()) or (
                EventChannel(EventType.PIPE, None, self._board.little),
                None,
            )
            if errors or blob is None:
                state.pipes[pipe.lower()] = channel, last
                return self._send(self._board.tell_errors(channel, errors))
            data = PipeData(pipe, now, blob)
            state.pipes[pipe.lower()] = channel, data
            return self._send(self._board.tell(channel, data))

    def set_state(self, device: str, state: DevState, status: str | None = None) -> int:
        """A device's State and Status, with their events."""
        text = f"The device is in {state.name} state." if status is None else status
        return self.set(device, "State", state) + self.set(device, "Status", text)

    # --- many at once ----------------------------------------------------------------------------------------

    def push_batch(self, columns: pa.Table | pa.RecordBatch | Mapping[str, Any], event: EventType | None = None) -> int:
        """Push the rows of a table: columns ``device``, ``attribute``, ``value``, and if wanted ``quality`` (names or
        numbers), ``time`` (timestamp, or integer nanoseconds), ``written``, ``event`` (names as in topics). Rows of one
        attribute and event keep their order. Returns the messages sent.

        :param event: of all rows, where there is no such column; None: change
        :raises ConfigError: a column is missing, or holds what it cannot
        :raises DevFailed: there is no such attribute
        :raises CdrError: no value of its type; groups before it have been sent
        """
        sent = 0
        for group in groups_of(columns, event or EventType.CHANGE, _clock.time_ns()):
            slot = self._slots.get((group.device, group.attribute)) or self._find(group.device, group.attribute)
            sent += self._push_group(slot, group)
        return sent

    def _push_group(self, slot: AttributeState, group: Group) -> int:
        sent = 0
        readings = group.readings(slot.readings)
        for at in range(0, len(readings), _CHUNK):
            with self._lock:
                now = _clock.monotonic()
                for reading in readings[at : at + _CHUNK]:
                    found = self._board.push(slot, group.event, reading, now)
                    if found:
                        sent += self._send(found)
        return sent

    def push_data(
        self, device: str, attribute: str, event: EventType, datas: Sequence[bytes], *, little: bool = True,
        is_except: bool = False,
    ) -> int:  # fmt: skip
        """Push events whose fourth frames (magic included, in the newest form) somebody else has encoded, as they are;
        of values the last one becomes the attribute's value. Older clients get them in their own form.

        :raises DevFailed: there is no such attribute
        :raises CdrError: the last one is no such value
        """
        slot = self._slots.get((device, attribute)) or self._find(device, attribute)
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
                    slot.reading = last
                for data in datas[at : at + _CHUNK]:
                    sent += self._send(self._board.push_frames(slot, event, data, is_except, little))
        return sent

    # --- with the lock held ----------------------------------------------------------------------------------

    def _send(self, messages: list[Frames]) -> int:
        outlet = self._outlet
        if outlet is None or not messages:
            return 0
        outlet.send(messages)
        self._sent += len(messages)
        return len(messages)


class _RequestHandler:
    """What the service asks of a source."""

    def __init__(self, source: TangoEventSource) -> None:
        self._source = source

    def call(self, request: giop.GiopRequest, reader: CdrReader, at: tuple[str, str]) -> giop.Body:
        source = self._source
        caller = Caller(at[0], source.endpoints(at[1]))
        with source._lock:
            return source._machine.answer(request, reader, caller, _clock.monotonic())

    def has(self, key: bytes) -> bool:
        with self._source._lock:
            return self._source._machine.has(key)

    def tick(self) -> float | None:
        source = self._source
        with source._lock:
            now = _clock.monotonic()
            for frames in source._board.beats(now):
                if source._outlet is not None:
                    source._outlet.beat(frames)
            source._send(source._board.due(now))
            wake = source._board.wake()
        return None if wake is None else wake - _clock.monotonic()


def _reading(
    slot: AttributeState, value: Any, time: int | None, quality: Quality, written: Any, errors: Sequence[DevError]
) -> AttributeReading:
    when = _clock.time_ns() if time is None else time
    return AttributeReading.failed(errors, when) if errors else slot.readings.make(value, when, quality, written)


def _pair_of(host: str | EndpointPair, ports: tuple[int, int]) -> EndpointPair:
    return EndpointPair(*(f"tcp://{host}:{port}" for port in ports)) if isinstance(host, str) else host


def _check(tango_host: str, device: str, attribute: str | None = None) -> None:
    """:raises ConfigError: these names cannot stand in a topic"""
    event = EventType.INTERFACE_CHANGE if attribute is None else EventType.CHANGE
    try:
        event_topic(tango_host, device, attribute, event, dbase=False)
    except BadEventTopic as error:
        raise ConfigError(str(error)) from None
