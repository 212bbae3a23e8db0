"""Negotiation of subscriptions (TG-09, TG-10, TG-26 to TG-28), and errors of calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import MamaError, Unavailable
from mama_spark.tango import errors
from mama_spark.tango.errors import BadReply, Completed, DevFailed, refusal
from mama_spark.tango.giop import messages
from mama_spark.tango.giop.cdr import CdrError, CdrReader, CdrWriter
from mama_spark.tango.giop.ior import Address, Reference, write_reference
from mama_spark.tango.idl import calls, negotiation
from mama_spark.tango.idl.calls import ClientIdent, Forwarded, Language
from mama_spark.tango.idl.negotiation import Confirmation, EndpointPair, SubscriberInfo, SubscriptionInfo, parse_confirm
from mama_spark.tango.types import DevError, EventType, Severity

from tests.support.tables import each

EVENTS = [event for event in EventType if event is not EventType.QUALITY]
PAIR = EndpointPair("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
OTHER = EndpointPair("tcp://10.0.0.1:1", "tcp://10.0.0.1:2")
TOPIC, CHANNEL = "tango://vm:1/test/pub/1/scal#dbase=no.idl5_change", "tango://vm:1/dserver/ds/inst"


@pytest.mark.spec("TG-09", "TG-19")
@each("event", EVENTS)
@each("prefixed", [False, True])
def test_subscriber_info_comes_back(event: EventType, prefixed: bool) -> None:
    info = SubscriberInfo("test/pub/1", "scal", event, 6, prefixed=prefixed)
    assert SubscriberInfo.parse(info.argin()) == info


@pytest.mark.spec("TG-09", "TG-27")
def test_subscriber_info_stands_in_the_order_that_real_clients_send() -> None:
    info = SubscriberInfo("test/fake/1", "val", EventType.CHANGE, 6)
    assert info.argin() == ["test/fake/1", "val", "subscribe", "change", "6"]


def test_names_are_lowered_and_a_client_without_a_version_reads_idl_4() -> None:
    info = SubscriberInfo.parse(["Test/Pub/1", "Scal", "SUBSCRIBE", "Change"])
    assert info == SubscriberInfo("test/pub/1", "scal", EventType.CHANGE, 4)


@pytest.mark.spec("TG-19")
@each(
    "argin",
    [
        [], ["a/b/c", "x", "subscribe"], ["a/b/c", "x", "subscribe", "quality", "5"],
        ["a/b/c", "x", "subscribe", "heartbeat", "5"], ["a/b/c", "x", "subscribe", "change", "x"],
        ["a/b/c", "x", "subscribe", "change", "99999999999999"], ["a/b/c", "x", "subscribe", "change", "5", "6"],
    ],
)  # fmt: skip
def test_a_subscription_to_an_unknown_event_type_is_refused_as_in_cpptango(argin: list[str]) -> None:
    """Tango 10 has no QUALITY events, and heartbeats have no subscriptions."""
    with pytest.raises(DevFailed) as caught:
        SubscriberInfo.parse(argin)
    assert caught.value.reason == "API_WrongNumberOfArgs"


@pytest.mark.spec("TG-10", "TG-20", "TG-33")
@each("pairs", [(PAIR,), (PAIR, OTHER), (PAIR, OTHER, PAIR)])
@each("names", [(TOPIC, CHANNEL), (None, None)])
def test_subscription_info_comes_back(pairs: tuple[EndpointPair, ...], names: tuple[str | None, str | None]) -> None:
    info = SubscriptionInfo(1033, 6, 1000, 81920, 20000, 435, pairs, *names)
    assert SubscriptionInfo.parse(*info.argout()) == info


@pytest.mark.spec("TG-08", "TG-10", "TG-28")
def test_subscription_info_of_real_servers_is_parsed() -> None:
    strings = [*PAIR, TOPIC, CHANNEL]
    info = SubscriptionInfo.parse([1033, 6, 1000, 192940800, 192940928, 435], strings)
    assert (info.release, info.device_idl, info.hwm, info.zmq) == (1033, 6, 1000, 435)
    assert (info.endpoints, info.topic, info.channel) == ((PAIR,), TOPIC, CHANNEL)


def test_servers_before_9_3_name_neither_topic_nor_channel() -> None:
    info = SubscriptionInfo.parse([900, 4, 1000], list(PAIR))
    assert (info.topic, info.channel, info.zmq) == (None, None, 0)
    subscriber = SubscriberInfo("test/pub/1", "scal", EventType.CHANGE, 5)
    known = info.completed("db:10000", True, subscriber, "dserver/DS/inst")
    assert known.topic == "tango://db:10000/test/pub/1/scal.change"  # the device is of IDL 4
    assert known.channel == "tango://db:10000/dserver/ds/inst"
    bare = SubscriptionInfo.parse([929, 5, 1000], list(PAIR)).completed("vm:1", False, subscriber, "dserver/DS/inst")
    assert bare.topic == "tango://vm:1/test/pub/1/scal#dbase=no.idl5_change"
    assert bare.channel == "tango://vm:1/dserver/ds/inst#dbase=no"


def test_topics_sent_by_the_server_are_not_constructed() -> None:
    info = SubscriptionInfo(1033, 6, 1000, endpoints=(PAIR,), topic=TOPIC, channel=CHANNEL)
    assert info.completed("x:1", True, SubscriberInfo("a/b/c", "d", EventType.CHANGE), "dserver/x/y") is info


@each(
    ("longs", "strings"),
    [
        ([], list(PAIR)), ([1033, 6], list(PAIR)), ([1033, 6, 1000], []), ([1033, 6, 1000], [PAIR[0]]),
        ([1033, 6, 1000], [PAIR[0], TOPIC, CHANNEL]), ([1033, 6, 1000], [TOPIC, CHANNEL]),
        ([1033, 6, 1000], ["a", "b"]),
    ],
)  # fmt: skip
def test_an_answer_without_endpoints_is_refused(longs: list[int], strings: list[str]) -> None:
    with pytest.raises(BadReply):
        SubscriptionInfo.parse(longs, strings)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8), st.lists(st.text(max_size=20), max_size=8))
def test_any_answer_is_read_or_refused(longs: list[int], strings: list[str]) -> None:
    for parse in (SubscriptionInfo.parse, negotiation.parse_import):
        try:
            parse(longs, strings)
        except BadReply:
            continue


@pytest.mark.spec("TG-37")
def test_confirmations_are_triples() -> None:
    both = [Confirmation("a/b/c", "x", "idl5_change"), Confirmation("a/b/d", "y", "alarm")]
    assert negotiation.confirm_argin(both) == ["a/b/c", "x", "idl5_change", "a/b/d", "y", "alarm"]
    assert parse_confirm(negotiation.confirm_argin(both)) == both
    for bad in ([], ["a"], ["a", "b", "c", "d"]):
        with pytest.raises(DevFailed):
            parse_confirm(bad)


# --- who calls, and what a device is -------------------------------------------------------------------------


@pytest.mark.parametrize("little", [True, False])
def test_client_identities_round_trip_and_fields_of_idl_6_are_skipped(little: bool) -> None:
    for client in (ClientIdent(pid=7035), ClientIdent(Language.JAVA, 0, "Main", (1, 2**63))):
        writer = CdrWriter(little)
        calls.write_client(writer, client)
        assert calls.read_client(CdrReader(writer.getvalue(), little)) == client
    with pytest.raises(CdrError):
        calls.write_client(CdrWriter(little), ClientIdent(Language.CPLUSPLUS_6))
    writer = CdrWriter(little)
    writer.ulong(2)
    writer.ulong(77)
    writer.string("00-trace-00")
    reader = CdrReader(writer.getvalue(), little)
    assert calls.read_client(reader) == ClientIdent(Language.CPLUSPLUS_6, 77)
    reader.finish()
    with pytest.raises(CdrError):
        calls.read_client(CdrReader(b"\xff\xff\xff\xff\0\0\0\0", little))


# --- what goes wrong -----------------------------------------------------------------------------------------


def outcome(status: messages.ReplyStatus, write: Any, little: bool = True) -> Any:
    writer = CdrWriter(little)
    write(writer)
    with pytest.raises(MamaError) as caught:
        calls.check(messages.GiopReply(id=1, status=status), CdrReader(writer.getvalue(), little))
    return caught.value


@pytest.mark.spec("TG-18")
@pytest.mark.parametrize("little", [True, False])
def test_a_stack_of_errors_comes_back(little: bool) -> None:
    stack = (DevError("A", Severity.ERR, "why", "where"), DevError("B", Severity.PANIC, "é", ""))
    refused = messages.ReplyStatus.USER_EXCEPTION
    found = outcome(refused, lambda writer: calls.write_failure(writer, DevFailed(stack)), little)
    assert found.errors == stack
    assert (found.reason, found.reasons) == ("A", ("A", "B"))
    assert outcome(refused, lambda w: calls.write_failure(w, DevFailed(()))).reason == ""


@each(
    ("reason", "retryable"),
    [
        ("API_ShutdownInProgress", True), ("API_AttributePollingNotStarted", True), ("API_DeviceNotExported", True),
        ("API_AttrNotFound", False),
    ],
)  # fmt: skip
def test_the_first_error_decides_whether_a_retry_may_help(reason: str, retryable: bool) -> None:
    found = refusal(reason, "", "")
    assert found.retryable is retryable
    assert not found.may_have_landed


@each(
    ("name", "completed", "retryable", "landed"),
    [
        ("BAD_OPERATION", Completed.NO, False, False), ("MARSHAL", Completed.MAYBE, False, True),
        ("TRANSIENT", Completed.NO, True, False), ("OBJECT_NOT_EXIST", Completed.NO, True, False),
        ("COMM_FAILURE", Completed.MAYBE, True, True), ("TIMEOUT", Completed.YES, True, True),
    ],
)  # fmt: skip
def test_exceptions_of_the_orb_keep_their_names_and_answer_both_questions(
    name: str, completed: Completed, retryable: bool, landed: bool
) -> None:
    given = errors.system_exception(name, 0x41540001, completed)
    found = outcome(messages.ReplyStatus.SYSTEM_EXCEPTION, lambda writer: calls.write_system_exception(writer, given))
    assert (found.name, found.minor, found.completed) == (name, 0x41540001, completed)
    assert (type(found), found.retryable, found.may_have_landed) == (type(given), retryable, landed)


def test_a_location_forward_carries_the_new_reference() -> None:
    reference = Reference((Address("h", 5),), b"new", "IDL:x:1.0")
    for status in (messages.ReplyStatus.LOCATION_FORWARD, messages.ReplyStatus.LOCATION_FORWARD_PERM):
        found = outcome(status, lambda writer: write_reference(writer, reference))
        assert isinstance(found, Forwarded)
        assert found.reference == reference


def test_exceptions_that_no_device_declares_are_no_replies() -> None:
    assert isinstance(outcome(messages.ReplyStatus.USER_EXCEPTION, lambda w: w.string("IDL:x:1.0")), CdrError)
    assert isinstance(outcome(messages.ReplyStatus.NEEDS_ADDRESSING_MODE, lambda w: w.short(0)), CdrError)

    def unknown(writer: CdrWriter) -> None:
        writer.string("IDL:omg.org/CORBA/UNKNOWN:1.0")
        writer.ulong(0)
        writer.ulong(7)

    assert isinstance(outcome(messages.ReplyStatus.SYSTEM_EXCEPTION, unknown), CdrError)


@each(
    ("kind", "retryable", "landed"),
    [(errors.ServerAway, True, False), (errors.CallLost, True, True), (BadReply, False, True)],
)
def test_lost_calls_answer_both_questions(kind: type[MamaError], retryable: bool, landed: bool) -> None:
    assert (kind.retryable, kind.may_have_landed) == (retryable, landed)
    assert issubclass(kind, Unavailable) is retryable
