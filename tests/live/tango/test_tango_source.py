"""Event source with PyTango clients (``tango.DeviceProxy``), which get exactly the pushed events; its admin device."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.giop.ior import parse_device
from mama_spark.tango.idl.negotiation import EndpointPair, SubscriberInfo
from mama_spark.tango.source.device import Attribute, Criteria, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.types import DataType, DevState, Encoded, EventType, Format, Quality
from mama_spark.testing.waiting import until

from tests.support.ports import lasting_port
from tests.support.tango.tango import RELEASES
from tests.support.tango_processes.servers import BEAT, TIMEOUT, DeviceProbe, Failed, TangoServer

DEVICE = "test/pub/1"
CALENDAR = 1_700_000_000_123_456_789  # nanoseconds
ALL: dict[DataType, list[Any]] = {
    DataType.BOOLEAN: [True, False, True], DataType.SHORT: [-(2**15), 0, 2**15 - 1],
    DataType.LONG: [-(2**31), 0, 2**31 - 1], DataType.LONG64: [-(2**63), 0, 2**63 - 1],
    DataType.FLOAT: [1.5, -0.0, 2.0**100], DataType.DOUBLE: [1e300, -0.0, 2.5], DataType.UCHAR: [0, 7, 255],
    DataType.USHORT: [0, 7, 2**16 - 1], DataType.ULONG: [0, 7, 2**32 - 1], DataType.ULONG64: [0, 7, 2**64 - 1],
    DataType.STRING: ["", "grün", "three words here"],
    DataType.STATE: [DevState.FAULT, DevState.ON, DevState.UNKNOWN], DataType.ENUM: [2, 0, 1],
}  # fmt: skip


def source_of(*attributes: Attribute, **settings: Any) -> TangoEventSource:
    return TangoEventSource([Device(DEVICE, attributes)], SourceSettings(heartbeat_period=BEAT, **settings))


def attached(probe: DeviceProbe, source: TangoEventSource, attribute: str, event: str, push: Callable[[], Any]) -> int:
    """A subscription that has delivered an event; the events so far are discarded."""
    number = probe.subscribe(source.address(DEVICE), attribute, event)
    first = 0 if event == "data_ready" else 1
    probe.wait_events(number, first)
    until(lambda: len(probe.events(number)) > first, push)
    return number


def spelled(value: Any) -> Any:
    """A value in the form of the probe: PyTango has states in arrays as numbers."""
    if isinstance(value, list):
        return [spelled(one) if isinstance(one, list) else one for one in value]
    return value.name if isinstance(value, DevState) else value


def _name(data_type: DataType, format_: Format) -> str:
    return f"{data_type.name}_{format_.name}".lower()


@pytest.mark.spec("TG-02", "TG-17", "TG-19", "TG-22", "TG-23")
def test_every_type_and_shape_comes_as_it_was_pushed(probe: DeviceProbe) -> None:
    """Upstream: att_type_event"""
    qualities = [Quality.VALID, Quality.ALARM, Quality.CHANGING, Quality.WARNING]
    formats = (Format.SCALAR, Format.SPECTRUM, Format.IMAGE)
    labels = {DataType.ENUM: ("red", "green", "blue")}
    attributes = [Attribute(_name(t, f), t, f, enum_labels=labels.get(t, ())) for t in ALL for f in formats]
    with source_of(*attributes, Attribute("enc", DataType.ENCODED)) as source:
        address, expected = source.address(DEVICE), []
        for number, (data_type, three) in enumerate(ALL.items()):
            values = (three[0], three, [three, three[::-1]])
            for format_, value, dims in zip(formats, values, ([1, 0, 0, 0], [3, 0, 0, 0], [3, 2, 0, 0]), strict=True):
                name, quality = _name(data_type, format_), qualities[number % 4]
                time = CALENDAR + number
                subscription = probe.subscribe(address, name, "change")

                def push(name: str = name, value: Any = value, time: int = time, quality: Quality = quality) -> None:
                    source.push_change_event(DEVICE, name, value, time=time, quality=quality)

                until(lambda s=subscription: len(probe.events(s)) > 1, push)  # type: ignore[misc]
                expected.append((subscription, name, spelled(value), dims, time, quality))
        for subscription, name, value, dims, time, quality in expected:
            told = probe.wait_events(subscription, 2)[-1]
            got = told["value"]
            assert (told["err"], got["value"], got["time"]) == (False, value, time), name
            assert (got["dims"], got["quality"]) == (dims, f"ATTR_{quality.name}"), name
        three_bytes = Encoded("fmt", b"\1\2\xff")
        encoded = attached(probe, source, "enc", "change", lambda: source.push_change_event(DEVICE, "enc", three_bytes))
        assert probe.events(encoded)[-1]["value"]["value"] == ["fmt", "0102ff"]


@pytest.mark.spec("TG-17")
def test_set_parts_empty_values_nan_and_invalid_come_too(probe: DeviceProbe) -> None:
    words = Attribute("words", DataType.STRING, Format.SPECTRUM, settable=True)
    spectrum = Attribute("spec", format=Format.SPECTRUM)
    with source_of(Attribute("rw", settable=True), spectrum, words, Attribute("value")) as source:
        push = source.push_change_event
        rw = attached(probe, source, "rw", "change", lambda: push(DEVICE, "rw", 2.5, written=1.5))
        spec = attached(probe, source, "spec", "change", lambda: push(DEVICE, "spec", []))
        texts = attached(probe, source, "words", "change", lambda: push(DEVICE, "words", ["a", "b"], written=["c"]))
        value = attached(probe, source, "value", "change", lambda: push(DEVICE, "value", math.nan))
        got = [probe.events(number)[-1]["value"] for number in (rw, spec, texts, value)]
        assert (got[0]["value"], got[0]["set"], got[0]["dims"]) == (2.5, 1.5, [1, 0, 1, 0])
        assert (got[1]["value"], got[1]["dims"]) in (([], [0, 0, 0, 0]), (None, [0, 0, 0, 0]))
        assert (got[2]["value"], got[2]["set"], got[2]["dims"]) == (["a", "b"], ["c"], [2, 0, 1, 0])
        assert math.isnan(got[3]["value"])
        push(DEVICE, "value", quality=Quality.INVALID, time=CALENDAR)
        invalid = probe.wait_event(value, lambda e: e["value"]["time"] == CALENDAR)
        assert (invalid["err"], invalid["value"]["value"], invalid["value"]["quality"]) == (False, None, "ATTR_INVALID")


@pytest.mark.spec("TG-03", "TG-13", "TG-21")
def test_a_client_looks_around_and_reads(probe: DeviceProbe) -> None:
    """Operations that device browsers call."""
    change = Criteria(abs_change=0.5)
    with source_of(Attribute("a", change=change, unit="V"), Attribute("b", DataType.STRING)) as source:
        address = source.address(DEVICE)
        source.set(DEVICE, "a", 2.5, time=CALENDAR, quality=Quality.ALARM)
        source.set(DEVICE, "State", DevState.FAULT)
        source.set(DEVICE, "Status", "broken")
        assert probe.call("attributes", device=address) == ["a", "b", "State", "Status"]
        assert probe.call("commands", device=address) == ["Init", "State", "Status"]
        assert probe.call("ping", device=address) > 0
        found = probe.call("config", device=address, attribute="a")
        assert (found["unit"], found["events"]["ch_event"]["abs_change"]) == ("V", "0.5")
        assert probe.call("info", device=address)["server_id"] == "mama/source"
        answers = [probe.call("command", device=address, name=name) for name in ("State", "Status", "Init")]
        assert answers == ["FAULT", "broken", None]
        got = probe.call("read", device=address, attribute="A")
        assert (got["value"], got["time"], got["quality"]) == (2.5, CALENDAR, "ATTR_ALARM")
        assert probe.call("read", device=address, attribute="State")["value"] == "FAULT"
        assert probe.call("read", device=address, attribute="b")["quality"] == "ATTR_INVALID"
        for do, more, reason in (
            ("read", {"attribute": "nope"}, "API_AttrNotFound"),
            ("write", {"attribute": "a", "value": 1.0}, "API_AttrNotWritable"),
            ("command", {"name": "Explode"}, "API_CommandNotFound"),
            ("configure", {"attribute": "a", "changes": {"label": "x"}}, "API_NotSupported"),
        ):
            with pytest.raises(Failed) as caught:
                probe.call(do, device=address, **more)
            assert reason in caught.value.reasons, do


@pytest.mark.spec("TG-28", "TG-44")
def test_a_client_counts_as_a_listener_when_its_subscription_has_reached_the_socket(
    probe: DeviceProbe, tmp_path: Path
) -> None:
    """It no longer counts when it is gone; other subscription messages are ignored."""
    place = (DEVICE, "a", EventType.CHANGE)
    with source_of(Attribute("a")) as source:
        with open_device(parse_device(source.address(DEVICE)).sibling(source.admin), timeout=TIMEOUT) as admin:
            topic = admin.subscribe(SubscriberInfo(DEVICE, "a", EventType.CHANGE)).topic
        assert topic is not None
        assert source.subscribed(DEVICE, "a")
        assert source.listeners() == {}
        number = probe.subscribe(source.address(DEVICE), "a", "change")
        until(lambda: source.listeners() == {place: 1})
        with DeviceProbe(tmp_path / "other") as other:
            other.subscribe(source.address(DEVICE), "a", "change")
            until(lambda: source.listeners() == {place: 2})
        until(lambda: source.listeners() == {place: 1})
        with zmq.Context() as context, context.socket(zmq.XSUB) as odd:
            odd.connect(source.endpoints()[0].event)
            for said in (b"", b"\2", b"\0never", b"\1" + topic.encode()):
                odd.send(said)
            until(lambda: source.listeners() == {place: 2})
        until(lambda: source.listeners() == {place: 1})
        probe.unsubscribe(number)
        until(lambda: source.listeners() == {})
    assert source.listeners() == {}


@pytest.mark.spec("TG-08", "TG-32", "TG-33")
def test_clients_follow_alternate_endpoints(probe: DeviceProbe) -> None:
    """No server listens at the first pair."""
    nowhere = f"tcp://127.0.0.1:{lasting_port()}"
    beat, event = lasting_port(), lasting_port()
    pairs = [EndpointPair(nowhere, nowhere), EndpointPair(f"tcp://127.0.0.1:{beat}", f"tcp://127.0.0.1:{event}")]
    with source_of(Attribute("a"), heartbeat_port=beat, event_port=event, advertise=pairs) as source:
        assert source.endpoints() == tuple(pairs)
        attached(probe, source, "a", "change", lambda: source.push_change_event(DEVICE, "a", 1.0))


@pytest.mark.spec("TG-08")
def test_a_source_on_all_interfaces_sends_endpoints_with_the_called_address(probe: DeviceProbe) -> None:
    with TangoEventSource(
        [Device(DEVICE, [Attribute("a")])], SourceSettings("0.0.0.0", heartbeat_period=BEAT)
    ) as source:
        address = f"tango://127.0.0.1:{source.port}/{DEVICE}#dbase=no"
        number = probe.subscribe(address, "a", "change")
        until(lambda: len(probe.events(number)) > 1, lambda: source.push_change_event(DEVICE, "a", 1.0))
    with TangoEventSource((), SourceSettings(advertise=["10.1.2.3"])) as source:
        assert [place.rpartition(":")[0] for place in source.endpoints()[0]] == ["tcp://10.1.2.3"] * 2


@pytest.mark.spec("TG-08")
def test_ports_are_fixed_or_refused() -> None:
    """Upstream: catch2_configure_zmq_ports"""
    ports = [lasting_port() for _ in range(3)]
    settings = SourceSettings("127.0.0.1", ports[0], ports[1], ports[2])
    with TangoEventSource((), settings) as source:
        assert source.port == ports[0]
        assert source.endpoints()[0] == (f"tcp://127.0.0.1:{ports[1]}", f"tcp://127.0.0.1:{ports[2]}")
        for taken in ("port", "heartbeat_port", "event_port"):
            other = TangoEventSource((), SourceSettings(**{taken: getattr(settings, taken)}))
            with pytest.raises(Unavailable):
                other.start()
            assert not other.running
    with TangoEventSource((), settings) as again:
        assert again.port == ports[0]


def test_a_source_opens_nothing_when_it_is_made_and_can_be_closed_twice() -> None:
    source = source_of(Attribute("a"))
    assert (source.running, source.port) == (False, 0)
    assert source.set(DEVICE, "a", 1.0) == 0
    source.close()
    with source.start():
        assert source.start().port == source.port
    source.close()
    with pytest.raises(ConfigError, match="already"):
        source.add_device(Device(DEVICE.upper()))
    with pytest.raises(ConfigError):
        source.push_event(EventType.ATTR_CONF, DEVICE, "a", 1.0)


@pytest.mark.parametrize("times", [{"heartbeat_period": 0}, {"heartbeat_period": math.inf}, {"expiry": math.nan}])
def test_times_that_cannot_be_are_refused(times: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="both must be above 0"):
        TangoEventSource([], SourceSettings(**times))


# --- Commands of the admin device of an event source, beside those of PyTango's servers -------------------------------

NONE = "no/such/device"
#: Commands with the same answer as a server of PyTango 10.3.1 that polls, locks and logs nothing. ``@`` is the device,
#: ``%`` its class.
SAME: list[tuple[str, Any]] = [
    ("DevPollStatus", "@"), ("DevPollStatus", NONE), ("DevLockStatus", "@"), ("QuerySubDevice", None),
    ("GetLoggingLevel", ["@"]), ("PolledDevice", None), ("QueryWizardClassProperty", "%"),
    ("QueryWizardDevProperty", "%"), ("StopPolling", None), ("StartPolling", None), ("UnLockDevice", [[0], ["@"]]),
    ("ReLockDevices", ["@"]), ("RemObjPolling", ["@", "attribute", "level"]),
    ("UpdObjPollingPeriod", [[1000], ["@", "attribute", "level"]]), ("StopLogging", None), ("StartLogging", None),
    ("EnableEventSystemPerfMon", True),
]  # fmt: skip
REFUSED: list[tuple[str, Any]] = [
    ("AddObjPolling", [[1000], ["@", "attribute", "level"]]), ("LockDevice", [[5], ["@"]]),
    ("SetLoggingLevel", [[3], ["@"]]), ("AddLoggingTarget", ["@", "console::cout"]), ("DevRestart", "@"),
    ("RestartServer", None), ("Kill", None),
]  # fmt: skip


def answer(client: DeviceProbe, address: str, device: str, name: str, argument: Any) -> str:
    """Result or reason, with ``@`` for the device and ``%`` for its class."""
    device_class = "EventSource" if device == DEVICE else "Lab"
    given = json.loads(json.dumps(argument).replace("@", device).replace("%", device_class))
    try:
        return json.dumps(client.call("admin", device=address, name=name, argument=given)).replace(device, "@")
    except Failed as error:
        return error.reasons[0]


@pytest.mark.parametrize("release", RELEASES)
def test_commands_answer_as_those_of_a_server_without_polling_locks_and_sub_devices(
    lab: TangoServer, release: int, tmp_path: Path
) -> None:
    with (
        TangoEventSource([Device(DEVICE, [Attribute("level")])], SourceSettings(heartbeat_period=BEAT)) as source,
        DeviceProbe(tmp_path / "client", release=release) as client,
    ):
        address = source.address(DEVICE)
        real = {name: answer(client, lab.address(), lab.devices[0], name, argument) for name, argument in SAME}
        ours = {name: answer(client, address, DEVICE, name, argument) for name, argument in SAME}
        assert ours == real
        for name, argument in REFUSED:
            assert answer(client, address, DEVICE, name, argument) == "API_NotSupported", name
        assert source.running


def test_all_commands_of_a_server_are_there_but_those_of_telemetry(lab: TangoServer, probe: DeviceProbe) -> None:
    def commands(address: str) -> set[str]:
        return set(probe.call("commands", device=address))

    with TangoEventSource([Device(DEVICE)], SourceSettings(heartbeat_period=BEAT)) as source:
        real = commands(f"tango://127.0.0.1:{lab.port}/{lab.admin}#dbase=no")
        ours = commands(source.address(source.admin))
    assert {name for name in real - ours if "Telemetry" not in name} == {"EventSubscriptionChange", "Init"}
    assert ours <= real
