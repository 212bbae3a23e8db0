"""Commands of the admin device: negotiation of subscriptions, and queries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mama_spark.tango.errors import DevFailed
from mama_spark.tango.giop.typecode import STRING
from mama_spark.tango.source import dserver_servant

from tests.support.tango.servant_harness import ADMIN, DEVICE, PAIRS, PREFIX, Source


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
def test_a_refused_subscription_has_the_reason_of_cpptango(source: Source, argin: list[str], reason: str) -> None:
    with pytest.raises(DevFailed) as caught:
        source.command(ADMIN, "ZmqEventSubscriptionChange", argin)
    assert caught.value.reason == reason
    assert source.supplier.due_heartbeats(1e9) == []


def test_admin_commands_take_only_lists_of_strings(source: Source) -> None:
    for name in ("ZmqEventSubscriptionChange", "EventConfirmSubscription"):
        with pytest.raises(DevFailed, match="API_IncompatibleCmdArgumentType"):
            source.command(ADMIN, name, "text", STRING)
    pairs: list[tuple[list[Any], ...]] = [(), ([1],), ([1], ["a"], [])]
    for pair in pairs:
        assert not dserver_servant._is(dserver_servant._Type.LONGS_AND_STRINGS, pair)
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
