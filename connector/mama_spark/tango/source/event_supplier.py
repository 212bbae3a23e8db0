"""Event supplier: keeps devices with their last values and subscriptions, and decides which events are sent. Pure.

Subscriptions end when they are not confirmed in time (TG-43); then their counters stop. After a new client subscribed,
the next event is sent twice, since the first one may be sent before the subscription has reached the ZeroMQ socket.

The caller holds the lock of the source during all methods. ``now`` is seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mama_spark.contracts.errors import ConfigError

from ..errors import DevFailed, refusal
from ..events.event_codec import Data, heartbeat
from ..idl.negotiation import SUBSCRIBE, EndpointPair
from ..topics import IDL, NO_DATABASE, SCHEME, VERSIONED, Topic, event_topic, heartbeat_topics
from ..types import DevError, EventType
from .attribute_readings import AttributeReading
from .attribute_state import AttributeState, DeviceState
from .device import Attribute
from .event_channel import EventChannel, Frames

#: Default high-water mark. A burst of a log is a batch of 8192 records, up to three events each; Tango's 1000 lose most
#: of it. An event that waits takes about 0.5 kB beyond its value: 100,000 take 50 MB for a client that does not read.
HWM = 100_000
CLIENT_MEMORY = 500.0  #: seconds without a call after which a client counts as new
MAX_CLIENTS = 4096  #: most remembered clients; when all called recently, they are forgotten and count as new


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of an event source.

    :ivar host: address to listen at, for calls and for events; ``0.0.0.0``: all interfaces, which is logged
    :ivar port: port of calls; 0: the system chooses, as for the others
    :ivar hwm: high-water mark: events that may wait for one client. Clients get the same value for their sockets
    :ivar server: ``exe/instance``; the admin device is ``dserver/<server>``
    :ivar host_name: host in topics and addresses; None: the name of this machine
    :ivar advertise: hosts or pairs of endpoints that clients connect to for events, instead of the address that they
        called; the preferred one, then alternates (TG-33)
    :ivar expiry: seconds after which a subscription without confirmation ends (TG-37, TG-43)
    :ivar heartbeat_period: seconds between heartbeats (TG-36)
    :ivar database: ``host:port`` (or a list, as in ``TANGO_HOST``) of the database by which clients find the devices,
        which :class:`~mama_spark.tango.source.registration.Registration` tells about them; None: none
    :raises ConfigError: a period is invalid
    """

    host: str = "127.0.0.1"
    port: int = 0
    heartbeat_port: int = 0
    event_port: int = 0
    hwm: int = HWM
    server: str = "mama/source"
    host_name: str | None = None
    advertise: Sequence[str | EndpointPair] = ()
    expiry: float = 600.0
    heartbeat_period: float = 9.0
    database: str | None = None

    def __post_init__(self) -> None:
        if not (0 < self.heartbeat_period < math.inf and self.expiry > 0):
            raise ConfigError(
                f"heartbeats every {self.heartbeat_period:g} s, expiry {self.expiry:g} s: both must be above 0, the "
                "first finite"
            )

    @property
    def named_database(self) -> str | None:
        """The database as topics and addresses name it."""
        return None if self.database is None else self.database.split(",")[0]


class EventSupplier:
    """Event supplier; see the module.

    :ivar tango_host: ``host:port`` in topics: of the database, or of the server
    :ivar duplicate_event: send the next event twice
    :ivar duplicate_heartbeat: send the next heartbeat twice
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._database, self.server = settings.named_database, settings.server
        self.expiry, self._heartbeat_period = settings.expiry, settings.heartbeat_period
        self.admin = f"dserver/{self.server}".lower()
        self.tango_host = ""
        self.devices: dict[str, DeviceState] = {}
        self._clients: dict[str, float] = {}  # client -> time of its last call
        self._heartbeat: list[Frames] = []
        self._next_heartbeat: float | None = None  # None: no client has subscribed yet
        self._next_periodic: dict[tuple[str, str], float] = {}
        self._archived: list[AttributeState] = []  # attributes with subscriptions to archive events
        self._next_expiry: float | None = None
        self.duplicate_event = self.duplicate_heartbeat = False

    @property
    def channel(self) -> str:
        """HEARTBEAT_CHANNEL (TG-36), with ``#dbase=no``, since clients of 9.3 subscribe to it unchanged."""
        return f"{SCHEME}{self.tango_host}/{self.admin}{'' if self._database else NO_DATABASE}".lower()

    def reset(self, tango_host: str) -> None:
        """Forget all subscriptions and counters, since the server was started with this ``host:port``."""
        self.tango_host = self._database or tango_host
        self._heartbeat = [heartbeat(heartbeat_topics(self.channel)[0].encode("ascii"))]
        self._clients, self._next_periodic, self._archived = {}, {}, []
        self._next_heartbeat = self._next_expiry = None
        self.duplicate_event = self.duplicate_heartbeat = False
        for device in self.devices.values():
            device.channel = None
            device.pipes = {
                name: (EventChannel(EventType.PIPE, None), value) for name, (_, value) in device.pipes.items()
            }
            device.removed = {}
            for state in device.attributes.values():
                state.channels = {}

    def device(self, name: str) -> DeviceState:
        """Find a device by its name.

        :raises DevFailed: API_DeviceNotFound: there is no such device
        """
        found = self.devices.get(name) or self.devices.get(name.lower())
        if found is None:
            raise refusal("API_DeviceNotFound", f"There is no device {name:.200} here", SUBSCRIBE)
        return found

    def attribute(self, device: str, name: str) -> AttributeState:
        """Find an attribute by its name.

        :raises DevFailed: API_DeviceNotFound, API_AttrNotFound: there is no such device or attribute
        """
        attributes = self.device(device).attributes
        found = attributes.get(name) or attributes.get(name.lower())
        if found is None:
            raise refusal("API_AttrNotFound", f"{device:.200} has no attribute {name:.200}", SUBSCRIBE)
        return found

    def channels(self) -> Iterator[EventChannel]:
        for device in self.devices.values():
            if device.channel is not None:
                yield device.channel
            yield from (channel for channel, _ in device.pipes.values())
            for channels in (*(state.channels for state in device.attributes.values()), *device.removed.values()):
                yield from channels.values()

    def add_attributes(
        self, device: DeviceState, attributes: Iterable[Attribute], time: int, now: float
    ) -> list[Frames]:
        """Add or replace attributes, whose subscriptions go on; returns their configurations for the clients that had
        subscribed to them, errors for events that are not sent any more, and one interface change. ``time`` is
        nanoseconds since the epoch."""
        found: list[Frames] = []
        for state in device.add_attributes(attributes, time):
            for event, channel in list(state.channels.items()):
                refused = _refused(state, event)
                if refused is None:
                    self._set_deadline(state, event, now)
                else:
                    found += self.push_errors(channel, refused.errors)
                    del state.channels[event]
            found += self.push_data(state.active_channel(EventType.ATTR_CONF), state.config)
        return found + self.push_data(device.channel, device.interface(False))

    def subscribe(self, device: str, attribute: str, event: EventType, idl: int, client: str, now: float) -> Topic:
        """Add or confirm a subscription; returns the topic of its events.

        :param idl: IDL version of the data: 5, 4 or 3
        :raises DevFailed: the device, attribute or pipe does not exist, or does not send such events
        """
        found = self.device(device)
        if event is EventType.INTERFACE_CHANGE:
            if found.channel is None:
                found.channel = EventChannel(event, None)
            channel = found.channel
        elif event is EventType.PIPE:
            if attribute not in found.pipes:
                raise refusal("API_PipeNotFound", f"{device} has no pipe {attribute:.200}", SUBSCRIBE)
            channel = found.pipes[attribute][0]
        else:
            channel = self._attribute_channel(self.attribute(device, attribute), event, now)
        topic = event_topic(
            self.tango_host, found.key, attribute or None, event, dbase=self._database is not None, idl=idl
        )
        channel.subscribe(idl if event in VERSIONED else IDL, topic, client, now)
        self._next_expiry = min(self._next_expiry or now + self.expiry, now + self.expiry)
        self._client_called(client, now)
        return topic

    def _attribute_channel(self, state: AttributeState, event: EventType, now: float) -> EventChannel:
        refused = _refused(state, event)
        if refused is not None:
            raise refused
        channel = state.channels.get(event)
        if channel is None:
            channel = state.channels[event] = EventChannel(event, state.attribute)
        if not channel.is_subscribed:  # clients read the value when they subscribe: compare with it
            if event in state.filters:
                state.filters[event].was_sent(state.reading, now)
            elif event is EventType.ALARM:
                state.alarm_filter.was_seen(state.reading)
            self._set_deadline(state, event, now)
        return channel

    def _set_deadline(self, state: AttributeState, event: EventType, now: float) -> None:
        if event is EventType.ARCHIVE and state not in self._archived:
            self._archived.append(state)
        elif event is EventType.PERIODIC and state.attribute.period:
            self._next_periodic[state.device, state.attribute.key] = now + state.attribute.period / 1000

    def _client_called(self, client: str, now: float) -> None:
        last_call = self._clients.get(client)
        if last_call is None or now - last_call > CLIENT_MEMORY:
            self.duplicate_event = self.duplicate_heartbeat = True
        if last_call is None and len(self._clients) >= MAX_CLIENTS:
            recent = {one: at for one, at in self._clients.items() if now - at <= CLIENT_MEMORY}
            self._clients = recent if len(recent) < MAX_CLIENTS else {}
        self._clients[client] = now
        if self._next_heartbeat is None:
            self._next_heartbeat = now

    def push(self, state: AttributeState, event: EventType, reading: AttributeReading, now: float) -> list[Frames]:
        """Set the value; returns the events to send: one of this type if it has subscriptions, and its alarm event."""
        state.reading = reading
        return self._twice_for_new_clients(*state.pushed(event, reading, now)) if state.channels else []

    def detect_and_push(self, state: AttributeState, reading: AttributeReading, now: float) -> list[Frames]:
        """Set the value; returns the change, archive and alarm events that the criteria select."""
        state.reading = reading
        return self._twice_for_new_clients(*state.detected(reading, now))

    def push_data(self, channel: EventChannel | None, data: Data) -> list[Frames]:
        """An event without an attribute value: attr_conf, interface change, pipe, data_ready."""
        subscribed = channel is not None and channel.is_subscribed
        return self._twice_for_new_clients(channel.encode_data(data)) if channel is not None and subscribed else []

    def push_errors(self, channel: EventChannel, errors: Sequence[DevError]) -> list[Frames]:
        return self._twice_for_new_clients(channel.encode_errors(errors)) if channel.is_subscribed else []

    def _twice_for_new_clients(self, *events: list[Frames]) -> list[Frames]:
        """The messages of these events, those of the first one twice if a new client has subscribed."""
        found: list[Frames] = []
        for messages in events:
            found += messages
            if self.duplicate_event and messages:
                self.duplicate_event = False
                found += messages
        return found

    def due_heartbeats(self, now: float) -> list[Frames]:
        if self._next_heartbeat is None or now < self._next_heartbeat:
            return []
        self._next_heartbeat = _next(self._next_heartbeat, self._heartbeat_period, now)
        twice, self.duplicate_heartbeat = self.duplicate_heartbeat, False
        return self._heartbeat * 2 if twice else list(self._heartbeat)

    def due_events(self, now: float) -> list[Frames]:
        """End expired subscriptions; returns periodic events, and archive events whose period is over."""
        self._expire(now)
        found: list[Frames] = []
        for (device, attribute), at in list(self._next_periodic.items()):
            if at <= now:
                found += self._periodic_event(device, attribute, at, now)
        for at, state, channel in self._archive_deadlines():
            if at <= now:
                state.filters[EventType.ARCHIVE].was_sent(state.reading, now)
                found += self._twice_for_new_clients(channel.encode_reading(state.reading))
        return found

    def _periodic_event(self, device: str, attribute: str, at: float, now: float) -> list[Frames]:
        found = self.devices.get(device)
        state = found.attributes.get(attribute) if found else None
        channel = state.active_channel(EventType.PERIODIC) if state else None
        if state is None or channel is None or not state.attribute.period:
            del self._next_periodic[device, attribute]
            return []
        self._next_periodic[device, attribute] = _next(at, state.attribute.period / 1000, now)
        return self._twice_for_new_clients(channel.encode_reading(state.reading))

    def _archive_deadlines(self) -> Iterator[tuple[float, AttributeState, EventChannel]]:
        self._archived = [state for state in self._archived if state.active_channel(EventType.ARCHIVE)]
        for state in self._archived:
            due, channel = state.filters[EventType.ARCHIVE].due, state.active_channel(EventType.ARCHIVE)
            if due is not None and channel is not None:
                yield due, state, channel

    def _expire(self, now: float) -> None:
        if self._next_expiry is None or now < self._next_expiry:
            return
        confirmed: list[float] = []
        for channel in self.channels():
            channel.expire(now - self.expiry)
            confirmed += channel.confirmed.values()
        for device in self.devices.values():
            device.forget_removed()
        self._next_expiry = min(confirmed) + self.expiry if confirmed else None

    def next_deadline(self) -> float | None:
        """Time of the next :meth:`due_heartbeats` or :meth:`due_events` with something to do; None: there is none."""
        times: Iterable[float | None] = (
            self._next_heartbeat, self._next_expiry, *self._next_periodic.values(),
            *(at for at, _, _ in self._archive_deadlines()),
        )  # fmt: skip
        return min((time for time in times if time is not None), default=None)

    def counters(self) -> dict[str, int]:
        """Topic without IDL version -> counter of the next event, for QueryEventSystem."""
        found: dict[str, int] = {}
        for channel in self.channels():
            for topic in channel.topics:
                found[str(replace(topic, idl=None))] = channel.ctr
        return found


def _refused(state: AttributeState, event: EventType) -> DevFailed | None:
    reason = state.refusal_reason(event)
    text = f"The {event.wire_name} event of {state.device}/{state.attribute.name} is not sent"
    return refusal(reason, text, SUBSCRIBE) if reason else None


def _next(at: float, period: float, now: float) -> float:
    """Deadlines do not drift; missed ones are skipped."""
    return at + period if at + period > now else now + period
