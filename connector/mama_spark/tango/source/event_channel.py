"""Event channel: the events of one type of one attribute, pipe or interface. Subscriptions, counter, encoding. Pure.

Counters are those of cppTango: one for each attribute and event type. They start at 1 with the first subscription,
increase by 1 for each event, and are shared by all subscribers and all IDL versions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..events.event_codec import LITTLE, MAGIC, Data, usual_call, write_data, write_except
from ..events.frame_layout import ScalarEncoder
from ..events.sequence_tracker import next_counter
from ..giop.cdr import CdrWriter
from ..idl.values import write_value
from ..topics import Topic
from ..types import DTYPES, DevError, EventType, Format
from .attribute_readings import AttributeReading
from .device import Attribute

Frames = list[bytes]
MAX_CLIENTS = 1024  #: most clients that a channel remembers


class EventChannel:
    """Events of one type of one attribute, pipe or interface, and its subscriptions by IDL version (5, 4 or 3).

    :param attribute: None for pipes and interfaces
    :ivar ctr: counter of the next event
    :ivar confirmed: IDL version -> time of the last confirmation, seconds of a monotonic clock
    :ivar clients: client -> time of its last confirmation, likewise; the oldest of too many are forgotten
    """

    __slots__ = ("_encoders", "_topics", "attribute", "clients", "confirmed", "ctr", "event")

    def __init__(self, event: EventType, attribute: Attribute | None) -> None:
        self.event, self.attribute = event, attribute
        self.ctr = 1
        self.confirmed: dict[int, float] = {}
        self.clients: dict[str, float] = {}
        self._topics: dict[int, Topic] = {}
        self._encoders: dict[int, ScalarEncoder] = {}

    @property
    def is_subscribed(self) -> bool:
        """Whether there is a subscription that has not expired."""
        return bool(self.confirmed)

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Topics of all subscriptions, expired ones included."""
        return tuple(self._topics.values())

    def subscribe(self, idl: int, topic: Topic, client: str, now: float) -> None:
        """Add or confirm a subscription of one IDL version; ``now`` is seconds of a monotonic clock."""
        self.confirmed[idl] = now
        self.clients.pop(client, None)
        self.clients[client] = now
        if len(self.clients) > MAX_CLIENTS:
            del self.clients[next(iter(self.clients))]
        self._topics[idl] = topic
        self._add_encoder(idl)

    def declare(self, attribute: Attribute) -> None:
        """Encode the next events for another declaration of the attribute."""
        self.attribute, self._encoders = attribute, {}
        for idl in self._topics:
            self._add_encoder(idl)

    def _add_encoder(self, idl: int) -> None:
        attribute = self.attribute
        if attribute is None or not self.event.carries_value or idl == 3:
            return
        if attribute.kind in DTYPES and attribute.format is Format.SCALAR:
            self._encoders[idl] = ScalarEncoder(
                self._topics[idl], attribute.name, attribute.data_type, attribute.settable
            )

    def expire(self, before: float) -> None:
        """End the subscriptions that were not confirmed after this time, seconds of a monotonic clock."""
        for idl in [idl for idl, confirmed in self.confirmed.items() if confirmed <= before]:
            del self.confirmed[idl]
        for client in [client for client, confirmed in self.clients.items() if confirmed <= before]:
            del self.clients[client]

    # --- encode the next event: one message for each IDL version ---

    def encode_reading(self, reading: AttributeReading) -> list[Frames]:
        numbers = reading.numbers
        if numbers is None or reading.errors or len(self._encoders) < len(self.confirmed):
            if reading.errors:
                return self.encode_errors(reading.errors)
            assert self.attribute is not None
            return self.encode_data(reading.value(self.attribute))
        ctr = self._take_counter()
        return [self._encoders[idl].frames(ctr, reading.time, reading.quality, *numbers) for idl in self.confirmed]

    def encode_data(self, data: Data) -> list[Frames]:
        return self._frames([(idl, self._write(idl, data)) for idl in self.confirmed], False)

    def encode_errors(self, errors: Sequence[DevError]) -> list[Frames]:
        """Encode an event with errors (TG-18)."""
        frame = write_except(errors)
        return self._frames([(idl, frame) for idl in self.confirmed], True)

    def _frames(self, made: list[tuple[int, bytes]], is_except: bool) -> list[Frames]:
        call = usual_call(self._take_counter(), is_except)
        return [[self._topics[idl].encode(), LITTLE, call, frame] for idl, frame in made]

    def _write(self, idl: int, data: Data) -> bytes:
        if idl == 3 and self.event.carries_value:
            writer = CdrWriter(True, MAGIC, len(MAGIC))
            write_value(writer, data, 3)  # type: ignore[arg-type]
            return writer.getvalue()
        return write_data(self._topics[idl], data)

    def _take_counter(self) -> int:
        ctr = self.ctr
        self.ctr = next_counter(ctr)
        return ctr
