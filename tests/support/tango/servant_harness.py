"""Event supplier and device servant of an event source without sockets, and a clock that is a number."""

from __future__ import annotations

from typing import Any

from mama_spark.tango.errors import DevFailed, SystemException
from mama_spark.tango.events.event_codec import Event, decode
from mama_spark.tango.giop import messages as giop
from mama_spark.tango.giop.cdr import CdrReader
from mama_spark.tango.giop.typecode import STRINGS, VOID, TypeCode, read_any
from mama_spark.tango.idl import calls
from mama_spark.tango.idl.calls import ClientIdent, CommandCall, Language, ReadCall, check, read_values, write_reading
from mama_spark.tango.idl.negotiation import EndpointPair, SubscriptionInfo
from mama_spark.tango.source.attribute_state import DeviceState
from mama_spark.tango.source.device import Attribute, Criteria, Device
from mama_spark.tango.source.device_servant import DeviceServant, reply, reply_exception
from mama_spark.tango.source.dserver_servant import Caller, Identity
from mama_spark.tango.source.event_supplier import EventSupplier, SourceSettings
from mama_spark.tango.types import AttributeValue, DataType, EventType, Format

DEVICE, ADMIN = "test/pub/1", "dserver/mama/t"
PAIRS = (EndpointPair("tcp://1.2.3.4:5", "tcp://1.2.3.4:6"), EndpointPair("tcp://9.9.9.9:5", "tcp://9.9.9.9:6"))
PREFIX = "tango://vm:11001/"
ATTRIBUTES = [
    Attribute("Scal"),
    Attribute("spec", DataType.LONG, Format.SPECTRUM, data_ready=True),
    Attribute("set", settable=True),
    Attribute("level", change=Criteria(abs_change=0.5, detect=True), archive=Criteria(abs_change=0.5, period=1000)),
    Attribute("tick", period=500, alarm=False),
    Attribute("silent", change=None, archive=None),
    Attribute("unset", change=Criteria(detect=True)),
    Attribute("text", DataType.STRING),
]


class Source:
    """Event supplier and device servant; ``now`` is their clock, in seconds."""

    def __init__(self, **settings: Any) -> None:
        self.supplier = EventSupplier(SourceSettings(server="mama/t", **settings))
        self.supplier.devices[DEVICE] = DeviceState(Device(DEVICE, ATTRIBUTES), 7)
        self.supplier.reset("vm:11001")
        self.servant = DeviceServant(self.supplier, Identity("vm", 1000))
        self.now = 100.0

    def call(
        self, key: str, operation: str, body: giop.Body | None = None, minor: int = 2, little: bool = True
    ) -> CdrReader:
        """Encode and decode a request and its reply, as client and server do."""
        asked = giop.GiopRequest(minor, little, id=9, key=key.encode(), operation=operation)
        request, reader = giop.decode(giop.encode(asked, body))
        assert isinstance(request, giop.GiopRequest)
        try:
            answer = self.servant.execute(request, reader, Caller("10.0.0.1", PAIRS), self.now)
            data = reply(request, answer)
        except (DevFailed, SystemException) as error:
            data = reply_exception(request, error)
        found, rest = giop.decode(data)
        assert isinstance(found, giop.GiopReply)
        assert (found.id, found.minor, found.little) == (9, minor, little)
        return check(found, rest)

    def command(
        self, key: str, name: str, argin: Any = None, code: TypeCode = STRINGS, pid: int = 1, operation: str = "_4"
    ) -> Any:
        given = CommandCall(name, VOID if argin is None else code, argin, client=ClientIdent(Language.CPLUSPLUS, pid))
        operation = "command_inout" + operation
        return read_any(self.call(key, operation, lambda writer: calls.write_command(writer, given, operation)))[1]

    def subscribe(
        self, attribute: str = "scal", event: str = "change", idl: str = "5", pid: int = 1, device: str = DEVICE
    ) -> SubscriptionInfo:
        argin = [device, attribute, "subscribe", event, idl]
        return SubscriptionInfo.parse(*self.command(ADMIN, "ZmqEventSubscriptionChange", argin, pid=pid))

    def settled(self, attribute: str = "scal", event: str = "change", **more: Any) -> SubscriptionInfo:
        """Subscribe; the next event is not sent twice."""
        found = self.subscribe(attribute, event, **more)
        self.supplier.duplicate_event = False
        return found

    def push(self, attribute: str, value: Any, event: EventType = EventType.CHANGE, **more: Any) -> list[Event]:
        state = self.supplier.attribute(DEVICE, attribute)
        return events(self.supplier.push(state, event, state.readings.make(value, 5, **more), self.now))

    def set(self, attribute: str, value: Any, **more: Any) -> list[str]:
        """Set a value; returns the names of the events that are sent."""
        state = self.supplier.attribute(DEVICE, attribute)
        found = events(self.supplier.detect_and_push(state, state.readings.make(value, 5, **more), self.now))
        return [event.topic.event.wire_name for event in found if event.topic.event is not None]

    def due_events(self) -> list[Event]:
        return events(self.supplier.due_events(self.now))


def events(messages: list[list[bytes]]) -> list[Event]:
    found = [decode(frames) for frames in messages]
    assert all(isinstance(event, Event) for event in found)
    return found  # type: ignore[return-value]


def values(found: list[Event]) -> list[Any]:
    assert all(isinstance(event.data, AttributeValue) for event in found)
    return [event.data.read.tolist()[0] for event in found]  # type: ignore[union-attr]


def read(source: Source, *names: str, operation: str = "read_attributes_5") -> list[AttributeValue]:
    given = ReadCall(names, client=ClientIdent())
    found = source.call(DEVICE, operation, lambda writer: write_reading(writer, given, operation))
    return read_values(found, operation)
