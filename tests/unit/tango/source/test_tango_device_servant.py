"""CORBA operations of devices and of the admin device: replies, exceptions, negotiation of subscriptions, queries."""

from __future__ import annotations

import json

import pytest
from mama_spark.tango.errors import DevFailed, SystemException
from mama_spark.tango.giop import messages as giop
from mama_spark.tango.giop.cdr import CdrWriter
from mama_spark.tango.giop.typecode import STRING, STRINGS
from mama_spark.tango.idl import structs
from mama_spark.tango.idl.calls import INFO, INFO_3, CommandCall, write_command
from mama_spark.tango.source.device_servant import locate_reply
from mama_spark.tango.types import DevState, Quality

from tests.support.tango.servant_harness import ADMIN, DEVICE, PAIRS, PREFIX, Source, read


@pytest.mark.parametrize("minor", [0, 1, 2])
@pytest.mark.parametrize("little", [True, False])
def test_replies_have_version_and_byte_order_of_the_request(source: Source, minor: int, little: bool) -> None:
    found = source.call(DEVICE, "_is_a", lambda w: w.string("IDL:Tango/Device_5:1.0"), minor, little)
    assert found.boolean()


@pytest.mark.spec("TG-03")
@pytest.mark.parametrize(
    ("type_id", "expected"),
    [
        ("IDL:Tango/Device_6:1.0", False), ("IDL:Tango/Device_5:1.0", True), ("IDL:Tango/Device_4:1.0", True),
        ("IDL:Tango/Device:1.0", True), ("IDL:omg.org/CORBA/Object:1.0", True), ("IDL:Tango/Else:1.0", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", [DEVICE, ADMIN, DEVICE.upper()])
def test_devices_are_of_idl_5(source: Source, key: str, type_id: str, expected: bool) -> None:
    """The admin device implements the interface too."""
    assert source.call(key, "_is_a", lambda w: w.string(type_id)).boolean() is expected


@pytest.mark.spec("TG-03")
def test_a_device_answers_with_names_and_info(source: Source) -> None:
    assert not source.call(DEVICE, "_non_existent").boolean()
    source.call(DEVICE, "ping").finish()
    assert source.call(DEVICE, "_get_name").string() == DEVICE
    assert source.call(DEVICE, "_get_adm_name").string() == ADMIN
    for operation in ("info", "info_3"):
        info = (INFO if operation == "info" else INFO_3).read(source.call(DEVICE, operation))
        found = (info.dev_class, info.server_id, info.server_host, info.server_version)
        assert found == ("EventSource", "mama/t", "vm", 5)
    assert source.call(ADMIN, "_get_state").ulong() == DevState.ON
    assert "ON" in source.call(DEVICE, "_get_status").string()


@pytest.mark.parametrize(
    ("key", "operation", "name"),
    [
        ("no/such/device", "ping", "OBJECT_NOT_EXIST"), (DEVICE, "no_such_operation", "BAD_OPERATION"),
        (DEVICE, "_is_a", "MARSHAL"), (DEVICE, "read_attributes_5", "MARSHAL"), (ADMIN, "command_inout_4", "MARSHAL"),
    ],
)  # fmt: skip
def test_invalid_calls_get_a_system_exception(source: Source, key: str, operation: str, name: str) -> None:
    with pytest.raises(SystemException) as caught:
        source.call(key, operation)
    assert (caught.value.name, caught.value.may_have_landed) == (name, False)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [("write_attributes_4", "API_AttrNotWritable"), ("set_attribute_config_5", "API_NotSupported"),
     ("read_attribute_history_5", "API_AttrNotPolled")],
)  # fmt: skip
def test_unsupported_operations_are_refused_with_a_reason(source: Source, operation: str, reason: str) -> None:
    with pytest.raises(DevFailed) as caught:
        source.call(DEVICE, operation)
    assert caught.value.reason == reason


def test_objects_are_located(source: Source) -> None:
    for key, here in ((DEVICE, True), (ADMIN.upper(), True), ("a/b/c", False), ("\xff", False)):
        asked = giop.LocateRequest(0, id=3, key=key.encode("latin-1"))
        found, _ = giop.decode(locate_reply(asked, source.servant.has(asked.key)))
        assert isinstance(found, giop.LocateReply)
        assert (found.status is giop.LocateStatus.OBJECT_HERE) is here


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


def test_an_unknown_attribute_does_not_affect_the_others(source: Source) -> None:
    state, unknown, status = read(source, "State", "nope", "Status")
    assert state.content is DevState.ON
    assert [error.reason for error in unknown.errors] == ["API_AttrNotFound"]
    assert status.read == ("The device is in ON state.",)


@pytest.mark.spec("TG-13")
def test_attribute_configurations_are_returned(source: Source) -> None:
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
def test_commands_are_listed_and_executed(source: Source, key: str, some: set[str]) -> None:
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


@pytest.mark.spec("TG-45")
def test_truncated_arguments_get_a_marshal_exception(source: Source) -> None:
    """Each truncated call gets a reply and makes no subscription."""
    writer = CdrWriter(True)
    write_command(writer, CommandCall("ZmqEventSubscriptionChange", STRINGS, [DEVICE, "scal", "subscribe", "change"]))
    whole = writer.getvalue()
    for size in range(len(whole)):
        with pytest.raises(SystemException, match="MARSHAL"):
            source.call(ADMIN, "command_inout_4", lambda w, n=size: w.raw(whole[:n]))  # type: ignore[misc]
    assert not list(source.supplier.channels())


@pytest.mark.spec("TG-10", "TG-20", "TG-26", "TG-28", "TG-31", "TG-33", "TG-35", "TG-36")
def test_subscription_info_has_releases_endpoints_topic_and_channel(source: Source) -> None:
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
        ([DEVICE, "scal", "unsubscribe", "change", "5"], "API_WrongNumberOfArgs"),
    ],
)
def test_a_refused_subscription_has_the_reason_of_cpptango(source: Source, argin: list[str], reason: str) -> None:
    with pytest.raises(DevFailed) as caught:
        source.command(ADMIN, "ZmqEventSubscriptionChange", argin)
    assert caught.value.reason == reason
    assert source.supplier.due_heartbeats(1e9) == []


def test_admin_commands_take_only_lists_of_strings(source: Source) -> None:
    for name in ("ZmqEventSubscriptionChange", "EventConfirmSubscription"):
        with pytest.raises(DevFailed, match="API_IncompatibleCmdArgumentType"):
            source.command(ADMIN, name, "text", STRING)
    with pytest.raises(DevFailed, match="API_WrongNumberOfArgs"):
        source.command(ADMIN, "EventConfirmSubscription", [DEVICE, "scal"])
    with pytest.raises(DevFailed, match="API_CommandNotFound"):
        source.command(DEVICE, "ZmqEventSubscriptionChange", [])


def test_info_returns_the_endpoints_as_text(source: Source) -> None:
    longs, strings = source.command(ADMIN, "ZmqEventSubscriptionChange", ["info"])
    assert strings[0] == "Heartbeat: tcp://1.2.3.4:5"
    assert list(longs) == [1033]


def test_the_event_system_can_be_queried(source: Source) -> None:
    source.settled()
    source.push("scal", 1.0)
    told = json.loads(source.command(ADMIN, "QueryEventSystem"))
    assert told["server"]["event_counters"] == {f"{PREFIX}test/pub/1/scal#dbase=no.change": 2}
    assert source.command(ADMIN, "QueryDevice") == [f"EventSource::{DEVICE}"]
