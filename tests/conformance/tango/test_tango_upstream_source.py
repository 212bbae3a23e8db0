"""What the tests of cppTango and PyTango say of servers that send events, said of our event source, by the names of the
files and functions there (section 10 of the reference). The client is a real one, except where PyTango has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.types import DataType, DevError, DevState, EventType, Severity
from mama_spark.testing.waiting import until

from tests.support.tango_processes.servers import BEAT, DeviceProbe, Event, Failed

DEVICE, OTHER = "test/pub/1", "test/pub/2"
BROKEN = (DevError("Broken", Severity.ERR, "d", "o"),)
Made = Callable[..., TangoEventSource]


@pytest.fixture
def made() -> Iterator[Made]:
    """Makes a source with a device."""
    started: list[TangoEventSource] = []

    def make(*attributes: Attribute) -> TangoEventSource:
        devices = [Device(DEVICE, attributes), Device(OTHER, attributes)]
        source = TangoEventSource(devices, SourceSettings(heartbeat_period=BEAT))
        started.append(source.start())
        return source

    yield make
    for source in started:
        source.close()


class Listening:
    """A subscription that works: what came before is left out."""

    def __init__(
        self, probe: DeviceProbe, source: TangoEventSource, attribute: str | None, event: str,
        push: Callable[[], Any], device: str = DEVICE,
    ) -> None:  # fmt: skip
        self._probe = probe
        self.number = probe.subscribe(source.address(device), attribute, event)
        begin = 0 if event == "data_ready" else 1
        self.first: list[Event] = probe.wait_events(self.number, begin)[:begin]
        until(lambda: len(probe.events(self.number)) > begin, push)
        self._seen = 0

    def settle(self, known: Callable[[Event], bool]) -> None:
        """From here on, the events behind the last one that ``known`` accepts."""
        self._probe.wait_event(self.number, known)
        events = self._probe.events(self.number)
        self._seen = max(n for n, event in enumerate(events) if known(event)) + 1

    def told(self, count: int) -> list[Any]:
        """The next events: values, or the reason of an error."""
        events = self._probe.wait_events(self.number, self._seen + count)[self._seen :]
        return [event["errors"][0]["reason"] if event["err"] else event["value"]["value"] for event in events]


def listening(
    probe: DeviceProbe, source: TangoEventSource, attribute: str, event: EventType = EventType.CHANGE,
    begin: Any = 0.0, sign: Any = -999.0,
) -> Listening:  # fmt: skip
    """A subscription whose last event so far was ``begin``."""
    found = Listening(
        probe, source, attribute, event.wire_name, lambda: source.push_event(event, DEVICE, attribute, sign)
    )
    source.push_event(event, DEVICE, attribute, begin)
    found.settle(lambda e: not e["err"] and e["value"]["value"] == begin)
    return found


@pytest.mark.spec("TG-23")
def test_user_event(probe: DeviceProbe, made: Made) -> None:
    """Pushed by code, whatever the criteria; DevEncoded as well"""
    source = made(Attribute("a", change=None, archive=None), Attribute("e", DataType.ENCODED))
    heard = listening(probe, source, "a", EventType.USER)
    for value in (1.0, 1.0, 2.0):
        source.push_event(EventType.USER, DEVICE, "a", value)
    assert heard.told(3) == [1.0, 1.0, 2.0]
    encoded = Listening(
        probe, source, "e", "user_event", lambda: source.push_event(EventType.USER, DEVICE, "e", b"\x01\x02")
    )
    assert probe.events(encoded.number)[-1]["value"]["value"] == ["", "0102"]


def test_state_event(probe: DeviceProbe, made: Made) -> None:
    """catch2_state_status_events: State and Status have events without being declared"""
    source = made()
    states = [DevState.MOVING, DevState.FAULT, DevState.ON]
    state = Listening(probe, source, "State", "change", lambda: source.push_change_event(DEVICE, "State", DevState.OFF))
    status = Listening(probe, source, "Status", "change", lambda: source.push_change_event(DEVICE, "Status", "off"))
    assert state.first[0]["value"]["value"] == "ON"
    source.push_change_event(DEVICE, "State", DevState.UNKNOWN)
    source.push_change_event(DEVICE, "Status", "here we go")
    state.settle(lambda e: e["value"]["value"] == "UNKNOWN")
    status.settle(lambda e: e["value"]["value"] == "here we go")
    for one in states:
        source.set(DEVICE, "State", one)
        source.set(DEVICE, "Status", f"The device is in {one.name} state.")
    assert state.told(3) == [one.name for one in states]
    assert status.told(3) == [f"The device is in {one.name} state." for one in states]


@pytest.mark.spec("TG-13")
def test_att_conf_event(probe: DeviceProbe, made: Made) -> None:
    """The first configuration, then one event for each change"""
    source = made(Attribute("a", unit="V"))

    def configure(**properties: Any) -> None:
        source.add_attributes(DEVICE, [Attribute("a", **properties)], replace=True)

    heard = Listening(probe, source, "a", "attr_conf", lambda: configure(unit="A"))
    assert heard.first[0]["config"]["unit"] == "V"
    heard.settle(lambda e: e["config"]["unit"] == "A")
    configure(unit="W")
    configure(unit="W", description="end")
    probe.wait_event(heard.number, lambda e: e["config"]["description"] == "end")
    units = [e["config"]["unit"] for e in probe.events(heard.number)]
    assert units[-2:] == ["W", "W"]
    assert units.count("W") == 2


@pytest.mark.spec("TG-15")
def test_catch2_data_ready_event(probe: DeviceProbe, made: Made) -> None:
    """Refused where it is not enabled; none at the subscription; counters and order; also while reading fails"""
    source = made(Attribute("a", DataType.LONG, data_ready=True), Attribute("b"))
    for attribute, reason in (("b", "API_AttributeNotDataReadyEnabled"), ("nope", "API_AttrNotFound")):
        with pytest.raises(Failed) as caught:
            probe.subscribe(source.address(DEVICE), attribute, "data_ready")
        assert reason in caught.value.reasons
    source.set(DEVICE, "a", errors=BROKEN)
    heard = Listening(probe, source, "a", "data_ready", lambda: source.push_data_ready_event(DEVICE, "a", 0))
    for counter in (5, 3, 3, -1):
        source.push_data_ready_event(DEVICE, "a", counter)
    probe.wait_event(heard.number, lambda e: e["counter"] == -1)
    counters = [e["counter"] for e in probe.events(heard.number)]
    assert counters[counters.index(5) :] == [5, 3, 3, -1]
    assert probe.events(heard.number)[-1]["type"] == "DevLong"


@pytest.mark.spec("TG-16")
def test_catch2_dev_intr_event(probe: DeviceProbe, made: Made) -> None:
    """TG-16, PyTango test_subscribe_interface_event: the first one lists all there is; three added at once are one"""
    source = made(Attribute("a"))
    heard = Listening(probe, source, None, "intr_change", lambda: source.push_interface_event(DEVICE))
    assert (heard.first[0]["started"], heard.first[0]["attributes"]) == (True, ["a", "State", "Status"])
    assert heard.first[0]["commands"] == ["Init", "State", "Status"]
    source.add_attributes(DEVICE, [Attribute("b")])
    source.add_attributes(DEVICE, [Attribute("c"), Attribute("d"), Attribute("e")])
    source.remove_attributes(DEVICE, ["b", "d"])
    probe.wait_event(heard.number, lambda e: e["attributes"] == ["a", "c", "e", "State", "Status"])
    lists = [e["attributes"] for e in probe.events(heard.number)]
    assert lists[-3:] == [
        ["a", "b", "State", "Status"],
        ["a", "b", "c", "d", "e", "State", "Status"],
        ["a", "c", "e", "State", "Status"],
    ]
    assert lists.count(lists[-3]) == 1
    with pytest.raises(Failed):
        probe.call("read", device=source.address(DEVICE), attribute="b")


@pytest.mark.spec("TG-23")
@pytest.mark.parametrize("event", [EventType.CHANGE, EventType.ALARM, EventType.USER, EventType.ARCHIVE])
def test_exact_ordered_lists_with_exceptions_between(probe: DeviceProbe, made: Made, event: EventType) -> None:
    """PyTango test_change_event, test_alarm_event, test_user_event, test_archive_event"""
    source = made(Attribute("a"))
    heard = listening(probe, source, "a", event)
    for number in range(1, 6):
        source.push_event(event, DEVICE, "a", number)
        source.push_event(event, DEVICE, "a", errors=BROKEN)
    source.push_event(event, DEVICE, "a", 6)
    assert heard.told(11) == [1, "Broken", 2, "Broken", 3, "Broken", 4, "Broken", 5, "Broken", 6]
