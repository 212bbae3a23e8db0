"""What an event source answers and sends, without a socket or a clock."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.errors import ConfigError
from mama_spark.services.tango_server.attribute_readings import AttributeReading
from mama_spark.services.tango_server.attribute_state import DeviceState
from mama_spark.services.tango_server.device import Attribute, Criteria, Device
from mama_spark.services.tango_server.device_servant import DeviceServant, locate_reply, reply, reply_exception
from mama_spark.services.tango_server.dserver_servant import Caller, Identity
from mama_spark.services.tango_server.event_supplier import EventSupplier
from mama_spark.services.tango_server.value_batches import group_values
from mama_spark.tango.errors import DevFailed, SystemException
from mama_spark.tango.events.event_codec import Event, Heartbeat, decode, write_data
from mama_spark.tango.giop import messages as giop
from mama_spark.tango.giop.cdr import CdrReader, CdrWriter
from mama_spark.tango.giop.typecode import STRING, STRINGS, VOID, TypeCode, read_any
from mama_spark.tango.idl import structs
from mama_spark.tango.idl.calls import (
    ClientIdent,
    CommandCall,
    Language,
    ReadCall,
    check,
    read_info,
    read_values,
    write_command,
    write_reading,
)
from mama_spark.tango.idl.negotiation import EndpointPair, SubscriptionInfo
from mama_spark.tango.topics import parse
from mama_spark.tango.types import (
    AttributeValue,
    DataReady,
    DataType,
    DevError,
    DevState,
    EventType,
    Format,
    Quality,
    Severity,
)

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
    """A source whose clock is a number."""

    def __init__(self, **settings: Any) -> None:
        self.supplier = EventSupplier("mama/t", **settings)
        self.supplier.devices[DEVICE] = DeviceState(Device(DEVICE, ATTRIBUTES), 7)
        self.supplier.reset("vm:11001")
        self.servant = DeviceServant(self.supplier, Identity("vm", 1000))
        self.now = 100.0

    def call(
        self, key: str, operation: str, body: giop.Body | None = None, minor: int = 2, little: bool = True
    ) -> CdrReader:
        """As a client calls: through the octets, both ways."""
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
        return read_any(self.call(key, operation, lambda writer: write_command(writer, given, operation)))[1]

    def subscribe(
        self, attribute: str = "scal", event: str = "change", idl: str = "5", pid: int = 1, device: str = DEVICE
    ) -> SubscriptionInfo:
        argin = [device, attribute, "subscribe", event, idl]
        return SubscriptionInfo.parse(*self.command(ADMIN, "ZmqEventSubscriptionChange", argin, pid=pid))

    def settled(self, attribute: str = "scal", event: str = "change", **more: Any) -> SubscriptionInfo:
        """Subscribed, and the doubled first event is behind us."""
        found = self.subscribe(attribute, event, **more)
        self.supplier.duplicate_event = False
        return found

    def push(self, attribute: str, value: Any, event: EventType = EventType.CHANGE, **more: Any) -> list[Event]:
        state = self.supplier.attribute(DEVICE, attribute)
        return events(self.supplier.push(state, event, state.readings.make(value, 5, **more), self.now))

    def set(self, attribute: str, value: Any, **more: Any) -> list[str]:
        """Names of the events that a new value leads to."""
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


@pytest.fixture
def source() -> Source:
    return Source()


# --- who it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minor", [0, 1, 2])
@pytest.mark.parametrize("little", [True, False])
def test_answers_come_in_the_version_and_order_of_the_question(source: Source, minor: int, little: bool) -> None:
    found = source.call(DEVICE, "_is_a", lambda w: w.string("IDL:Tango/Device_5:1.0"), minor, little)
    assert found.boolean()


@pytest.mark.spec("TG-03")
@pytest.mark.parametrize(
    ("type_id", "expected"),
    [
        ("IDL:Tango/Device_6:1.0", False),
        ("IDL:Tango/Device_5:1.0", True),
        ("IDL:Tango/Device_4:1.0", True),
        ("IDL:Tango/Device:1.0", True),
        ("IDL:omg.org/CORBA/Object:1.0", True),
        ("IDL:Tango/Else:1.0", False),
    ],
)
@pytest.mark.parametrize("key", [DEVICE, ADMIN, DEVICE.upper()])
def test_devices_are_of_idl_5(source: Source, key: str, type_id: str, expected: bool) -> None:
    """Also the admin device is one."""
    assert source.call(key, "_is_a", lambda w: w.string(type_id)).boolean() is expected


@pytest.mark.spec("TG-03")
def test_a_device_says_who_it_is(source: Source) -> None:
    assert not source.call(DEVICE, "_non_existent").boolean()
    source.call(DEVICE, "ping").finish()
    assert source.call(DEVICE, "_get_name").string() == DEVICE
    assert source.call(DEVICE, "_get_adm_name").string() == ADMIN
    for operation in ("info", "info_3"):
        info = read_info(source.call(DEVICE, operation), operation)
        assert (info.dev_class, info.server_id, info.server_host, info.server_version) == (
            "EventSource", "mama/t", "vm", 5,
        )  # fmt: skip
    assert source.call(ADMIN, "_get_state").ulong() == DevState.ON
    assert "ON" in source.call(DEVICE, "_get_status").string()


@pytest.mark.parametrize(
    ("key", "operation", "name"),
    [
        ("no/such/device", "ping", "OBJECT_NOT_EXIST"),
        (DEVICE, "no_such_operation", "BAD_OPERATION"),
        (DEVICE, "_is_a", "MARSHAL"),
        (DEVICE, "read_attributes_5", "MARSHAL"),
        (ADMIN, "command_inout_4", "MARSHAL"),
    ],
)
def test_what_is_no_call_gets_a_system_exception(source: Source, key: str, operation: str, name: str) -> None:
    with pytest.raises(SystemException) as caught:
        source.call(key, operation)
    assert (caught.value.name, caught.value.may_have_landed) == (name, False)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("write_attributes_4", "API_AttrNotWritable"),
        ("set_attribute_config_5", "API_NotSupported"),
        ("read_attribute_history_5", "API_AttrNotPolled"),
    ],
)
def test_what_a_source_cannot_do_is_refused_with_a_reason(source: Source, operation: str, reason: str) -> None:
    with pytest.raises(DevFailed) as caught:
        source.call(DEVICE, operation)
    assert caught.value.reason == reason


def test_objects_are_located(source: Source) -> None:
    for key, here in ((DEVICE, True), (ADMIN.upper(), True), ("a/b/c", False), ("\xff", False)):
        asked = giop.LocateRequest(0, id=3, key=key.encode("latin-1"))
        found, _ = giop.decode(locate_reply(asked, source.servant.has(asked.key)))
        assert isinstance(found, giop.LocateReply)
        assert (found.status is giop.LocateStatus.OBJECT_HERE) is here


# --- looking around ------------------------------------------------------------------------------------------


def read(source: Source, *names: str, operation: str = "read_attributes_5") -> list[AttributeValue]:
    given = ReadCall(names, client=ClientIdent())
    found = source.call(DEVICE, operation, lambda writer: write_reading(writer, given, operation))
    return read_values(found, operation)


@pytest.mark.spec("TG-17")
@pytest.mark.parametrize("operation", ["read_attributes_3", "read_attributes_4", "read_attributes_5"])
def test_attributes_have_their_last_values(source: Source, operation: str) -> None:
    source.set("scal", 2.5, quality=Quality.WARNING)
    source.set("spec", [1, 2, 3])
    source.set("set", 1.0, written=2.0)
    scal, spec, both, silent = read(source, "scal", "SPEC", "set", "silent", operation=operation)
    assert (scal.name, scal.read.tolist(), scal.quality, scal.time) == ("Scal", [2.5], Quality.WARNING, 5)  # type: ignore[union-attr]
    assert spec.read.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert (both.read.tolist(), both.written.tolist()) == ([1.0], [2.0])  # type: ignore[union-attr]
    assert (silent.quality, silent.content, silent.errors) == (Quality.INVALID, None, ())


def test_one_unknown_attribute_does_not_spoil_the_others(source: Source) -> None:
    state, unknown, status = read(source, "State", "nope", "Status")
    assert state.content is DevState.ON
    assert [error.reason for error in unknown.errors] == ["API_AttrNotFound"]
    assert status.read == ("The device is in ON state.",)


@pytest.mark.spec("TG-13")
def test_configurations_are_told(source: Source) -> None:
    found = source.call(DEVICE, "get_attribute_config_5", lambda w: w.strings(["All attributes_3"]))
    names = [structs.CONFIG_5.read(found).name for _ in range(found.ulong())]
    assert names == ["Scal", "spec", "set", "level", "tick", "silent", "unset", "text", "State", "Status"]
    one = source.call(DEVICE, "get_attribute_config_3", lambda w: w.strings(["LEVEL"]))
    assert one.ulong() == 1
    assert structs.CONFIG_3.read(one).ch_event.abs_change == "0.5"
    with pytest.raises(DevFailed, match="API_AttrNotFound"):
        source.call(DEVICE, "get_attribute_config_5", lambda w: w.strings(["nope"]))


@pytest.mark.spec("TG-03")
@pytest.mark.parametrize(("key", "some"), [(DEVICE, {"Init", "State", "Status"}), (ADMIN, {"QueryEventSystem"})])
def test_commands_are_listed_and_run(source: Source, key: str, some: set[str]) -> None:
    found = source.call(key, "command_list_query_2")
    commands = [structs.COMMAND_INFO.read(found) for _ in range(found.ulong())]
    found.finish()
    assert some <= {command.cmd_name for command in commands}
    one = source.call(key, "command_query_2", lambda w: w.string("state"))
    assert structs.COMMAND_INFO.read(one).cmd_name == "State"
    assert source.command(key, "State") == DevState.ON
    assert "ON" in source.command(key, "STATUS", operation="")
    with pytest.raises(DevFailed, match="API_CommandNotFound"):
        source.command(key, "Explode", operation="_2")
    with pytest.raises(DevFailed, match="API_CommandNotFound"):
        source.call(key, "command_query_2", lambda w: w.string("Explode"))


# --- subscriptions -------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-10", "TG-20", "TG-26", "TG-28", "TG-31", "TG-33", "TG-35", "TG-36")
def test_a_subscription_is_answered_with_all_that_the_client_needs(source: Source) -> None:
    info = source.subscribe()
    assert (info.release, info.device_idl, info.hwm, info.zmq) == (1033, 5, 1000, 435)
    assert info.endpoints == PAIRS
    assert info.topic == f"{PREFIX}test/pub/1/scal#dbase=no.idl5_change"
    assert info.channel == f"{PREFIX}dserver/mama/t#dbase=no"


@pytest.mark.spec("TG-19", "TG-22")
@pytest.mark.parametrize(
    ("attribute", "event", "idl", "end"),
    [
        ("scal", "archive", "6", "/scal#dbase=no.idl5_archive"),
        ("scal", "idl5_change", "0", "/scal#dbase=no.idl5_change"),
        ("scal", "change", "4", "/scal#dbase=no.change"),
        ("scal", "user_event", "5", "/scal#dbase=no.idl5_user_event"),
        ("scal", "alarm", "5", "/scal#dbase=no.alarm"),
        ("scal", "attr_conf", "5", "/scal#dbase=no.idl5_attr_conf"),
        ("tick", "periodic", "5", "/tick#dbase=no.idl5_periodic"),
        ("spec", "data_ready", "5", "/spec#dbase=no.data_ready"),
        ("", "intr_change", "5", "#dbase=no.intr_change"),
        ("state", "change", "5", "/state#dbase=no.idl5_change"),
    ],
)
def test_each_event_type_has_its_topic(source: Source, attribute: str, event: str, idl: str, end: str) -> None:
    assert source.subscribe(attribute, event, idl).topic == f"{PREFIX}test/pub/1{end}"


@pytest.mark.spec("TG-19", "TG-27")
@pytest.mark.parametrize(
    ("argin", "reason"),
    [
        ([DEVICE, "nope", "subscribe", "change", "5"], "API_AttrNotFound"),
        ([DEVICE, "a b#", "subscribe", "change", "5"], "API_AttrNotFound"),
        ([DEVICE, "", "subscribe", "change", "5"], "API_AttrNotFound"),
        (["no/such/device", "scal", "subscribe", "change", "5"], "API_DeviceNotFound"),
        ([DEVICE, "silent", "subscribe", "change", "5"], "API_AttributePollingNotStarted"),
        ([DEVICE, "silent", "subscribe", "archive", "5"], "API_AttributePollingNotStarted"),
        ([DEVICE, "scal", "subscribe", "periodic", "5"], "API_AttributePollingNotStarted"),
        ([DEVICE, "tick", "subscribe", "alarm", "5"], "API_AttributePollingNotStarted"),
        ([DEVICE, "unset", "subscribe", "change", "5"], "API_EventPropertiesNotSet"),
        ([DEVICE, "scal", "subscribe", "data_ready", "5"], "API_AttributeNotDataReadyEnabled"),
        ([DEVICE, "nope", "subscribe", "pipe", "5"], "API_PipeNotFound"),
        ([DEVICE, "scal", "subscribe", "quality", "5"], "API_WrongNumberOfArgs"),
        ([DEVICE, "scal", "subscribe", "heartbeat", "5"], "API_WrongNumberOfArgs"),
        ([DEVICE, "scal", "unsubscribe", "change", "5"], "API_WrongNumberOfArgs"),
        ([DEVICE, "scal", "subscribe", "change", "five"], "API_WrongNumberOfArgs"),
        ([DEVICE], "API_WrongNumberOfArgs"),
        ([], "API_WrongNumberOfArgs"),
    ],
)
def test_a_refused_subscription_says_why(source: Source, argin: list[str], reason: str) -> None:
    with pytest.raises(DevFailed) as caught:
        source.command(ADMIN, "ZmqEventSubscriptionChange", argin)
    assert caught.value.reason == reason
    assert source.supplier.due_heartbeats(1e9) == []


def test_admin_commands_take_lists_of_strings_alone(source: Source) -> None:
    for name in ("ZmqEventSubscriptionChange", "EventConfirmSubscription"):
        with pytest.raises(DevFailed, match="API_IncompatibleCmdArgumentType"):
            source.command(ADMIN, name, "text", STRING)
    with pytest.raises(DevFailed, match="API_WrongNumberOfArgs"):
        source.command(ADMIN, "EventConfirmSubscription", [DEVICE, "scal"])
    with pytest.raises(DevFailed, match="API_CommandNotFound"):
        source.command(DEVICE, "ZmqEventSubscriptionChange", [])


def test_the_endpoints_can_be_asked_for_by_people(source: Source) -> None:
    longs, strings = source.command(ADMIN, "ZmqEventSubscriptionChange", ["info"])
    assert strings[0] == "Heartbeat: tcp://1.2.3.4:5"
    assert list(longs) == [1033]


def test_the_event_system_can_be_queried(source: Source) -> None:
    source.settled()
    source.push("scal", 1.0)
    told = json.loads(source.command(ADMIN, "QueryEventSystem"))
    assert told["server"]["event_counters"] == {f"{PREFIX}test/pub/1/scal#dbase=no.change": 2}
    assert source.command(ADMIN, "QueryDevice") == [f"EventSource::{DEVICE}"]


# --- what is sent --------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-39")
def test_nothing_is_sent_to_nobody(source: Source) -> None:
    """And what was told is read all the same"""
    assert source.push("scal", 3.0) == []
    assert source.set("level", 3.0) == []
    assert read(source, "scal")[0].read.tolist() == [3.0]  # type: ignore[union-attr]


@pytest.mark.spec("TG-35")
def test_counters_go_by_attribute_and_event_type_from_one_on(source: Source) -> None:
    source.subscribe("scal", "change")
    source.subscribe("scal", "archive")
    source.settled("set", "change")
    ctrs = [
        (e.topic.attribute, e.topic.event, e.call.ctr)
        for attribute, event in [
            ("scal", EventType.CHANGE), ("scal", EventType.CHANGE), ("scal", EventType.ARCHIVE),
            ("set", EventType.CHANGE), ("scal", EventType.CHANGE),
        ]
        for e in source.push(attribute, 1.0, event)
    ]  # fmt: skip
    assert [ctr for *_, ctr in ctrs] == [1, 2, 1, 1, 3]


def test_the_counter_wraps(source: Source) -> None:
    source.settled()
    channel = source.supplier.attribute(DEVICE, "scal").active_channel(EventType.CHANGE)
    assert channel is not None
    channel.ctr = 2**32 - 1
    assert [source.push("scal", 1.0)[0].call.ctr for _ in range(2)] == [2**32 - 1, 0]


def test_the_first_event_after_a_new_client_goes_out_twice(source: Source) -> None:
    source.subscribe(pid=1)
    assert [event.call.ctr for event in source.push("scal", 1.0)] == [1, 1]
    source.subscribe("set", pid=1)  # the same client
    assert [event.call.ctr for event in source.push("scal", 1.0)] == [2]
    source.subscribe(pid=2)
    assert [event.call.ctr for event in source.push("set", 1.0)] == [1, 1]
    assert [event.call.ctr for event in source.push("scal", 1.0)] == [3]
    source.now += 501
    source.subscribe(pid=2)  # forgotten meanwhile
    assert len(source.push("scal", 1.0)) == 2


@pytest.mark.spec("TG-45")
def test_clients_that_are_remembered_are_bounded(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls under ever new names, or whoever comes and goes for years, fills no memory"""
    monkeypatch.setattr("mama_spark.services.tango_server.event_supplier.MAX_CLIENTS", 3)
    for pid in range(20):
        source.subscribe(pid=pid)
        assert len(source.supplier._clients) <= 3
    source.now += 501
    source.subscribe(pid=20)
    for pid in (21, 22, 23):
        source.now += 200
        source.settled(pid=pid)
    source.subscribe(pid=23)  # seen lately, so an event comes once
    assert len(source.push("scal", 1.0)) == 1


@pytest.mark.spec("TG-09")
def test_old_clients_get_their_own_form_and_the_same_counter(source: Source) -> None:
    source.settled(idl="5")
    source.settled(idl="4")
    new, old = source.push("scal", 2.5)
    assert (new.topic.idl, old.topic.idl) == (5, None)
    assert (new.call.ctr, old.call.ctr) == (1, 1)
    assert isinstance(old.data, AttributeValue)
    assert (old.data.data_type, old.data.read.tolist()) == (None, [2.5])  # type: ignore[union-attr]
    source.settled("set", idl="3")
    (oldest,) = source.push("set", 2.5, written=1.0)
    assert isinstance(oldest.data, AttributeValue)
    assert (oldest.data.format, oldest.data.written.tolist()) == (Format.UNKNOWN, [1.0])  # type: ignore[union-attr]


@pytest.mark.parametrize("event", [EventType.ALARM, EventType.ATTR_CONF])
def test_an_old_client_takes_nothing_from_a_new_one(source: Source, event: EventType) -> None:
    """Alarms have one form for all, and are sent once; configurations have two topics"""
    topics = [source.settled("scal", event.wire_name, idl=idl).topic for idl in ("5", "4", "0")]
    channel = source.supplier.attribute(DEVICE, "scal").active_channel(event)
    if event is EventType.ALARM:
        found = source.push("scal", 1.0, EventType.ALARM)
    else:
        found = events(source.supplier.push_data(channel, source.supplier.attribute(DEVICE, "scal").config))
    assert {str(one.topic) for one in found} == set(topics)
    assert len(found) == len(set(topics)) == (1 if event is EventType.ALARM else 2)


@pytest.mark.parametrize("little", [True, False])
def test_events_come_in_the_order_that_was_set(little: bool) -> None:
    source = Source(little=little)
    for attribute in ("scal", "spec", "text"):
        source.settled(attribute)
    found = [*source.push("scal", 2.5), *source.push("spec", [1, 2]), *source.push("text", "t")]
    assert [event.little for event in found] == [little] * 3
    data = [event.data for event in found]
    assert [np.asarray(value.content).tolist() for value in data if isinstance(value, AttributeValue)] == [
        [2.5], [1, 2], ["t"],
    ]  # fmt: skip


@pytest.mark.spec("TG-11", "TG-18")
def test_errors_are_events_with_the_flag(source: Source) -> None:
    source.settled()
    state, error = source.supplier.attribute(DEVICE, "scal"), DevError("Broken", Severity.PANIC, "d", "o")
    (event,) = events(source.supplier.push(state, EventType.CHANGE, AttributeReading.failed([error], 5), source.now))
    assert (event.call.is_except, event.errors, event.data) == (True, (error,), None)
    assert read(source, "scal")[0].errors == (error,)


@pytest.mark.spec("TG-06")
def test_detection_holds_back_what_is_pushed(source: Source) -> None:
    """Compared with the value that clients read when they subscribed"""
    source.set("level", 1.0)
    source.settled("level")
    pushed = [len(source.push("level", value)) for value in (1.4, 1.5, 1.9, 2.0)]
    assert pushed == [0, 1, 0, 1]


@pytest.mark.spec("TG-06", "TG-22")
def test_a_new_value_leads_to_the_events_that_it_is_worth(source: Source) -> None:
    source.set("level", 1.0)
    for event in ("change", "archive", "alarm"):
        source.settled("level", event)
    assert source.set("level", 1.2) == []
    assert source.set("level", 2.0) == ["change", "archive"]
    assert source.set("level", 2.0, quality=Quality.ALARM) == ["change", "archive", "alarm"]
    assert source.set("level", 2.0, quality=Quality.ALARM) == []


def test_an_alarm_goes_with_a_pushed_change(source: Source) -> None:
    source.settled("scal", "alarm")
    assert [e.topic.event for e in source.push("scal", 1.0, quality=Quality.WARNING)] == [EventType.ALARM]
    assert source.push("scal", 1.0, quality=Quality.WARNING) == []


@pytest.mark.spec("TG-05", "TG-22")
def test_periodic_events_come_by_the_clock(source: Source) -> None:
    source.set("tick", 1.0)
    source.settled("tick", "periodic")
    assert source.supplier.next_deadline() == source.now  # the first heartbeat
    source.supplier.due_heartbeats(source.now)
    assert source.supplier.next_deadline() == source.now + 0.5
    times = []
    for _ in range(16):
        source.now += 0.25
        times += [source.now - 100 for _ in source.due_events()]
    assert times == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    source.now += 60  # the thread was away: one event, not a hundred
    assert len(source.due_events()) == 1


def test_an_archive_event_comes_when_its_period_is_over(source: Source) -> None:
    source.set("level", 1.0)
    source.settled("level", "archive")
    source.now += 0.9
    assert source.due_events() == []
    assert source.set("level", 3.0) == ["archive"]
    source.now += 0.9
    assert source.due_events() == []
    source.now += 0.2
    assert values(source.due_events()) == [3.0]


@pytest.mark.spec("TG-31", "TG-36")
def test_heartbeats_come_every_nine_seconds_and_twice_for_a_new_client(source: Source) -> None:
    assert source.supplier.due_heartbeats(source.now) == []  # nobody subscribed
    source.subscribe()
    first = source.supplier.due_heartbeats(source.now)
    assert len(first) == 2
    beat = decode(first[0])
    assert isinstance(beat, Heartbeat)
    assert str(beat.topic) == f"{source.subscribe().channel}.heartbeat"
    times = []
    for _ in range(160):
        source.now += 0.25
        times += [source.now - 100 for _ in source.supplier.due_heartbeats(source.now)]
    assert times == [9.0, 18.0, 27.0, 36.0]
    source.subscribe(pid=2)
    assert len(source.supplier.due_heartbeats(source.now + 9)) == 2


@pytest.mark.spec("TG-37", "TG-43")
@pytest.mark.parametrize(("event", "attribute"), [("change", "scal"), ("periodic", "tick"), ("archive", "level")])
def test_who_does_not_confirm_is_dropped_after_600_seconds(source: Source, event: str, attribute: str) -> None:
    """The counter stands still"""
    kind = {"change": EventType.CHANGE, "periodic": EventType.PERIODIC, "archive": EventType.ARCHIVE}[event]
    source.settled(attribute, event)
    source.push(attribute, 1.0, kind)
    source.now += 599
    source.due_events()
    assert len(source.push(attribute, 2.0, kind)) == 1
    source.now += 2
    source.due_events()
    before = source.supplier.counters()
    assert source.push(attribute, 3.0, kind) == []
    source.now += 100
    assert source.due_events() == []
    assert source.supplier.counters() == before
    wire = "idl5_" + kind.wire_name
    source.command(ADMIN, "EventConfirmSubscription", [DEVICE, attribute, wire])
    source.supplier.duplicate_event = False
    (event_,) = source.push(attribute, 4.0, kind)
    assert event_.call.ctr == next(iter(before.values()))


@pytest.mark.spec("TG-37")
def test_confirming_keeps_a_subscription(source: Source) -> None:
    source.settled("scal")
    source.settled("level")
    for _ in range(10):
        source.now += 200
        source.command(ADMIN, "EventConfirmSubscription", [DEVICE, "scal", "idl5_change", DEVICE, "level", "change"])
        source.due_events()
    assert source.push("scal", 1.0)
    assert source.push("level", 1e9)


def test_heartbeats_go_on_when_subscriptions_have_expired(source: Source) -> None:
    source.settled()
    source.now += 1000
    source.due_events()
    assert source.supplier.due_heartbeats(source.now)


@pytest.mark.parametrize("form", ["frame", "errors"])
def test_frames_that_others_encoded_are_sent_as_they_are(source: Source, form: str) -> None:
    source.settled()
    state = source.supplier.attribute(DEVICE, "scal")
    (made,) = source.supplier.push(state, EventType.CHANGE, state.readings.make(2.5, 5), source.now)
    (sent,) = source.supplier.push_frame(state, EventType.CHANGE, made[3], False, True)
    assert sent[3] == made[3]
    assert (decode(made).call.ctr, decode(sent).call.ctr) == (1, 2)
    assert sent[0] == made[0]


@pytest.mark.spec("TG-09")
@pytest.mark.parametrize("little", [True, False])
def test_older_clients_get_the_frames_of_others_in_their_own_form(source: Source, little: bool) -> None:
    """With the same counter, and in the order of octets that they came in; what they cannot read is a gap"""
    for idl in ("5", "4"):
        source.settled(idl=idl)
    state = source.supplier.attribute(DEVICE, "scal")
    value = state.readings.make(2.5, 5).value(state.attribute)
    frame = write_data(parse(f"tango://h:1/{DEVICE}/scal.idl5_change"), value, little)
    new, old = events(source.supplier.push_frame(state, EventType.CHANGE, frame, False, little))
    assert (new.data, new.little, old.little) == (value, little, little)
    assert isinstance(old.data, AttributeValue)
    assert (old.topic.idl, old.data.data_type, old.data.time) == (None, None, 5)
    assert (old.data.read.tolist(), new.call.ctr, old.call.ctr) == ([2.5], 1, 1)  # type: ignore[union-attr]
    (only,) = source.supplier.push_frame(state, EventType.CHANGE, b"broken", False, little)
    assert (only[0], only[3]) == (new.topic.encode(), b"broken")
    for idl in ("5", "4"):
        source.settled(event="attr_conf", idl=idl)
    frame = write_data(parse(f"tango://h:1/{DEVICE}/scal.idl5_attr_conf"), state.config, little)
    _, config = events(source.supplier.push_frame(state, EventType.ATTR_CONF, frame, False, little))
    assert config.data == replace(state.config, root_attr_name="", enum_labels=())


@pytest.mark.spec("TG-15", "TG-16")
def test_interfaces_and_data_ready_are_told(source: Source) -> None:
    source.settled("", "intr_change")
    source.settled("spec", "data_ready")
    state = source.supplier.device(DEVICE)
    (change,) = events(source.supplier.push_data(state.channel, state.interface(True)))
    assert change.data == state.interface(True)
    ready = DataReady("spec", int(DataType.LONG), -3)
    (event,) = events(source.supplier.push_data(state.attributes["spec"].active_channel(EventType.DATA_READY), ready))
    assert event.data == ready


def test_a_restart_begins_anew_and_keeps_the_values(source: Source) -> None:
    source.settled()
    source.push("scal", 2.5)
    source.supplier.reset("vm:11002")
    assert source.push("scal", 3.5) == []
    assert source.supplier.due_heartbeats(1e9) == []
    assert source.settled().topic == "tango://vm:11002/test/pub/1/scal#dbase=no.idl5_change"
    assert source.push("scal", 4.5)[0].call.ctr == 1


# --- tables --------------------------------------------------------------------------------------------------


def test_a_table_is_taken_apart_by_attribute_and_event() -> None:
    table = pa.table(
        {
            "device": ["a/b/c", "a/b/d", "a/b/c", "a/b/c"],
            "attribute": ["x", "x", "x", "x"],
            "value": [1.0, 2.0, 3.0, 4.0],
            "quality": ["VALID", None, "warning", "ALARM"],
            "time": pa.array([1, 2, None, 4], pa.timestamp("us")),
            "event": ["change", "change", "change", "archive"],
        }
    )
    found = list(group_values(table, EventType.USER, 99))
    assert [(g.device, g.event, list(g.values), list(g.times), list(g.qualities)) for g in found] == [
        ("a/b/c", EventType.CHANGE, [1.0, 3.0], [1000, 99], [Quality.VALID, Quality.WARNING]),
        ("a/b/d", EventType.CHANGE, [2.0], [2000], [Quality.VALID]),
        ("a/b/c", EventType.ARCHIVE, [4.0], [4000], [Quality.ALARM]),
    ]
    assert list(group_values(table.slice(0, 0), EventType.USER, 99)) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"device": ["a/b/c"], "attribute": ["x"]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "valeu": [1]},
        {"device": [None], "attribute": ["x"], "value": [1]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "quality": ["GOOD"]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "quality": [7]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "event": ["changed"]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "time": ["now"]},
    ],
)
def test_tables_that_say_nothing_clear_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        list(group_values(columns, EventType.CHANGE, 0))


@pytest.mark.spec("TG-45")
def test_arguments_that_are_cut_short_are_answered_too(source: Source) -> None:
    """Each cut of each call gets a reply, and nothing is subscribed to by half a call"""
    writer = CdrWriter(True)
    write_command(writer, CommandCall("ZmqEventSubscriptionChange", STRINGS, [DEVICE, "scal", "subscribe", "change"]))
    whole = writer.getvalue()
    for size in range(len(whole)):
        with pytest.raises(SystemException, match="MARSHAL"):
            source.call(ADMIN, "command_inout_4", lambda w, n=size: w.raw(whole[:n]))  # type: ignore[misc]
    assert not list(source.supplier.channels())
