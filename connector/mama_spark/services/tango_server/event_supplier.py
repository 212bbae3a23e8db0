"""What an event source knows: devices and their last values, who subscribed, and what is to be sent. Pure.

Subscriptions end when nobody confirmed them in time (TG-43); their counters then stand still. After a new client came,
the next event is sent twice, to be sure that its subscription has reached the socket (section 7 of the reference).

Everything here is called with the lock of the source held; ``now`` is in seconds, of a clock that only goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mama_spark.tango.errors import refusal
from mama_spark.tango.events.events import Data, heartbeat
from mama_spark.tango.idl.negotiation import SUBSCRIBE
from mama_spark.tango.topics import NO_DATABASE, SCHEME, Topic, event_topic, heartbeat_topics
from mama_spark.tango.types import DevError, EventType

from .attribute_state import AttributeState, DeviceState, EventChannel, Frames
from .readings import AttributeReading

EXPIRY = 600.0  #: seconds after which a subscription that nobody confirmed ends (TG-37, TG-43)
HEARTBEAT = 9.0  #: seconds between heartbeats (TG-36)
CLIENT_MEMORY = 500.0  #: seconds after which a client that was not seen counts as new
MOST_CLIENTS = 4096  #: that are remembered; of more all are forgotten, which costs them an event that comes twice

#: events whose topics tell new data from old
_HAS_FORMS = frozenset(
    (EventType.CHANGE, EventType.PERIODIC, EventType.ARCHIVE, EventType.USER, EventType.ATTR_CONF)
)  # fmt: skip


class EventSupplier:
    """Devices, subscriptions, counters.

    :param server: ``exe/instance``; the admin device is ``dserver/<server>``
    :param little: byte order of what is sent
    """

    def __init__(
        self, server: str, *, little: bool = True, expiry: float = EXPIRY, heartbeat_period: float = HEARTBEAT
    ) -> None:
        self.server, self.little, self.expiry, self.heartbeat_period = server, little, expiry, heartbeat_period
        self.tango_host = ""
        self.devices: dict[str, DeviceState] = {}
        self._clients: dict[object, float] = {}
        self._beats: list[Frames] = []
        self._beat_at: float | None = None  # None: nobody subscribed yet
        self._periodic: dict[tuple[str, str], float] = {}
        self._archiving: list[AttributeState] = []
        self._expire_at: float | None = None
        self.doubled = False  #: the next event goes out twice
        self.double_beat = False

    def __repr__(self) -> str:
        return f"<EventSupplier of {self.server}, {len(self.devices)} devices, {len(self._clients)} clients>"

    @property
    def admin(self) -> str:
        return f"dserver/{self.server}".lower()

    @property
    def channel(self) -> str:
        """HEARTBEAT_CHANNEL (TG-36), with the suffix: clients of 9.3 subscribe to it exactly as told."""
        return f"{SCHEME}{self.tango_host}/{self.admin}{NO_DATABASE}".lower()

    def begin(self, tango_host: str) -> None:
        """It can be reached there; nobody has subscribed yet."""
        self.tango_host = tango_host
        self._beats = [heartbeat(heartbeat_topics(self.channel)[0].encode("ascii"), self.little)]
        self._clients, self._periodic, self._archiving = {}, {}, []
        self._beat_at = self._expire_at = None
        self.doubled = self.double_beat = False
        for state in self.devices.values():
            state.channel = None
            state.pipes = {
                name: (EventChannel(EventType.PIPE, None, self.little), p) for name, (_, p) in state.pipes.items()
            }
            for slot in state.slots.values():
                slot.channels = {}

    # --- devices ---------------------------------------------------------------------------------------------

    def device(self, name: str) -> DeviceState:
        """:raises DevFailed: API_DeviceNotFound"""
        found = self.devices.get(name) or self.devices.get(name.lower())
        if found is None:
            raise refusal("API_DeviceNotFound", f"There is no device {name:.200} here", SUBSCRIBE)
        return found

    def slot(self, device: str, attribute: str) -> AttributeState:
        """:raises DevFailed: API_DeviceNotFound, API_AttrNotFound"""
        slots = self.device(device).slots
        found = slots.get(attribute) or slots.get(attribute.lower())
        if found is None:
            raise refusal("API_AttrNotFound", f"{device:.200} has no attribute {attribute:.200}", SUBSCRIBE)
        return found

    def all_channels(self) -> Iterator[EventChannel]:
        for state in self.devices.values():
            if state.channel is not None:
                yield state.channel
            yield from (channel for channel, _ in state.pipes.values())
            for slot in state.slots.values():
                yield from slot.channels.values()

    # --- subscriptions ---------------------------------------------------------------------------------------

    def subscribe(self, device: str, attribute: str, event: EventType, form: int, client: object, now: float) -> Topic:
        """Somebody wants these events, or still does; the topic they go to.

        :param form: 5, 4 or 3: of the data
        :param client: by which it is known again
        :raises DevFailed: there is no such thing, or it sends no such events
        """
        state = self.device(device)
        if event is EventType.INTERFACE_CHANGE:
            if state.channel is None:
                state.channel = EventChannel(event, None, self.little)
            channel = state.channel
        elif event is EventType.PIPE:
            if attribute not in state.pipes:
                raise refusal("API_PipeNotFound", f"{device} has no pipe {attribute:.200}", SUBSCRIBE)
            channel = state.pipes[attribute][0]
        else:
            channel = self._attribute_channel(self.slot(device, attribute), event, now)
        topic = event_topic(self.tango_host, state.key, attribute or None, event, dbase=False, idl=form)
        channel.subscribe(form if event in _HAS_FORMS else 5, topic, now)
        self._expire_at = min(self._expire_at or now + self.expiry, now + self.expiry)
        self._see(client, now)
        return topic

    def _attribute_channel(self, slot: AttributeState, event: EventType, now: float) -> EventChannel:
        why = slot.refuses(event)
        if why:
            text = f"The {event.wire_name} event of {slot.device}/{slot.attribute.name} is not sent"
            raise refusal(why, text, SUBSCRIBE)
        channel = slot.channels.get(event)
        if channel is None:
            channel = slot.channels[event] = EventChannel(event, slot.attribute, self.little)
        if not channel.forms:  # clients read the value that they begin with
            if event in slot.filters:
                slot.filters[event].sent(slot.reading, now)
                if event is EventType.ARCHIVE and slot not in self._archiving:
                    self._archiving.append(slot)
            elif event is EventType.ALARM:
                slot.alarm.sent(slot.reading)
            elif event is EventType.PERIODIC and slot.attribute.period:
                self._periodic[slot.device, slot.attribute.key] = now + slot.attribute.period / 1000
        return channel

    def _see(self, client: object, now: float) -> None:
        seen = self._clients.get(client)
        if seen is None or now - seen > CLIENT_MEMORY:
            self.doubled = self.double_beat = True
        if seen is None and len(self._clients) >= MOST_CLIENTS:
            known = {one: at for one, at in self._clients.items() if now - at <= CLIENT_MEMORY}
            self._clients = known if len(known) < MOST_CLIENTS else {}
        self._clients[client] = now
        if self._beat_at is None:
            self._beat_at = now

    # --- what is to be sent ----------------------------------------------------------------------------------

    def push(self, slot: AttributeState, event: EventType, reading: AttributeReading, now: float) -> list[Frames]:
        """Code pushes an event; without a subscription, this is only the new value."""
        slot.reading = reading
        channels = slot.channels
        if not channels:
            return []
        found = self._pushed(slot, event, reading, now)
        if event is EventType.CHANGE and EventType.ALARM in channels:
            found = found + self._alarmed(slot, reading)
        return found

    def _pushed(self, slot: AttributeState, event: EventType, reading: AttributeReading, now: float) -> list[Frames]:
        channel = slot.channels.get(event)
        if channel is None or not channel.forms:
            return []
        filter_ = slot.filters.get(event)
        if filter_ is not None:
            criteria = slot.criteria(event)
            if criteria is not None and criteria.detect and not filter_.wants(reading, now):
                return []
            filter_.sent(reading, now)
        if event is EventType.ALARM:
            slot.alarm.sent(reading)
        return self._once_or_twice(channel.of_reading(reading))

    def push_frames(
        self, slot: AttributeState, event: EventType, frame: bytes, is_except: bool, little: bool
    ) -> list[Frames]:
        """As :meth:`push`, of data that are encoded already; the last value is the caller's business."""
        channel = slot.live(event)
        return [] if channel is None else self._once_or_twice(channel.of_frame(frame, is_except, little))

    def told(self, slot: AttributeState, reading: AttributeReading, now: float) -> list[Frames]:
        """A new value: events as far as the criteria say."""
        slot.reading = reading
        found: list[Frames] = []
        for event, filter_ in slot.filters.items():
            channel = slot.live(event)
            if channel is not None and filter_.wants(reading, now):
                filter_.sent(reading, now)
                found += self._once_or_twice(channel.of_reading(reading))
        return found + self._alarmed(slot, reading)

    def _alarmed(self, slot: AttributeState, reading: AttributeReading) -> list[Frames]:
        channel = slot.live(EventType.ALARM)
        if channel is None:
            return []
        wanted = slot.alarm.wants(reading)
        slot.alarm.sent(reading)
        return self._once_or_twice(channel.of_reading(reading)) if wanted else []

    def tell(self, channel: EventChannel | None, data: Data) -> list[Frames]:
        """An event that is no value: a configuration, an interface, a pipe, data ready."""
        return self._once_or_twice(channel.of_data(data)) if channel is not None and channel.forms else []

    def tell_errors(self, channel: EventChannel | None, errors: Sequence[DevError]) -> list[Frames]:
        """As :meth:`tell`, with errors instead."""
        return self._once_or_twice(channel.of_errors(errors)) if channel is not None and channel.forms else []

    def _once_or_twice(self, messages: list[Frames]) -> list[Frames]:
        if self.doubled and messages:
            self.doubled = False
            return messages + messages
        return messages

    # --- time ------------------------------------------------------------------------------------------------

    def beats(self, now: float) -> list[Frames]:
        """Heartbeats that are due."""
        if self._beat_at is None or now < self._beat_at:
            return []
        self._beat_at = _next(self._beat_at, self.heartbeat_period, now)
        twice, self.double_beat = self.double_beat, False
        return self._beats * 2 if twice else list(self._beats)

    def due(self, now: float) -> list[Frames]:
        """Events that the clock sends: periodic ones, and archive events whose period is over. Ends subscriptions
        that nobody confirmed."""
        self._expire(now)
        found: list[Frames] = []
        for (device, attribute), at in list(self._periodic.items()):
            if at <= now:
                found += self._periodic_event(device, attribute, at, now)
        for at, slot, channel in self._archived():
            if at <= now:
                slot.filters[EventType.ARCHIVE].sent(slot.reading, now)
                found += self._once_or_twice(channel.of_reading(slot.reading))
        return found

    def _periodic_event(self, device: str, attribute: str, at: float, now: float) -> list[Frames]:
        state = self.devices.get(device)
        slot = state.slots.get(attribute) if state else None
        channel = slot.live(EventType.PERIODIC) if slot else None
        if slot is None or channel is None or not slot.attribute.period:
            del self._periodic[device, attribute]
            return []
        period = slot.attribute.period / 1000
        self._periodic[device, attribute] = _next(at, period, now)
        return self._once_or_twice(channel.of_reading(slot.reading))

    def _archived(self) -> Iterator[tuple[float, AttributeState, EventChannel]]:
        """Archive events with a period, while somebody wants them: when each is due."""
        self._archiving = [slot for slot in self._archiving if slot.live(EventType.ARCHIVE)]
        for slot in self._archiving:
            due, channel = slot.filters[EventType.ARCHIVE].due, slot.live(EventType.ARCHIVE)
            if due is not None and channel is not None:
                yield due, slot, channel

    def _expire(self, now: float) -> None:
        if self._expire_at is None or now < self._expire_at:
            return
        seen: list[float] = []
        for channel in self.all_channels():
            channel.expire(now - self.expiry)
            seen += channel.forms.values()
        self._expire_at = min(seen) + self.expiry if seen else None

    def wake(self) -> float | None:
        """When :meth:`beats` or :meth:`due` have something to do; None: not before something happens."""
        times: Iterable[float | None] = (
            self._beat_at, self._expire_at, *self._periodic.values(),
            *(at for at, _, _ in self._archived()),
        )  # fmt: skip
        return min((time for time in times if time is not None), default=None)

    def counters(self) -> dict[str, int]:
        """Topic without the form of its data -> counter, as QueryEventSystem tells it."""
        found: dict[str, int] = {}
        for channel in self.all_channels():
            for topic in channel.topics:
                found[str(replace(topic, idl=None))] = channel.ctr
        return found


def _next(at: float, period: float, now: float) -> float:
    """When it is due again: without drift, and without making up for what was missed."""
    return at + period if at + period > now else now + period
