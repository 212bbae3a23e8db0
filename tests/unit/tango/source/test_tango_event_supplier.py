"""Events that an event supplier sends for values, errors, frames and interfaces; heartbeats, periods and expiry."""

from __future__ import annotations

import pytest
from mama_spark.tango.events.event_codec import Heartbeat, decode
from mama_spark.tango.source.attribute_readings import AttributeReading
from mama_spark.tango.source.device import Attribute, Criteria
from mama_spark.tango.types import AttributeValue, DataReady, DataType, DevError, EventType, Format, Quality, Severity

from tests.support.tango.servant_harness import ADMIN, DEVICE, Source, events, read, values


@pytest.mark.spec("TG-39")
def test_without_subscriptions_nothing_is_sent(source: Source) -> None:
    """Clients can still read the set value."""
    assert source.push("scal", 3.0) == []
    assert source.set("level", 3.0) == []
    assert read(source, "scal")[0].read.tolist() == [3.0]  # type: ignore[union-attr]


@pytest.mark.spec("TG-35")
def test_each_attribute_and_event_type_has_a_counter_that_starts_at_one(source: Source) -> None:
    source.subscribe("scal", "change")
    source.subscribe("scal", "archive")
    source.settled("set", "change")
    change, archive = EventType.CHANGE, EventType.ARCHIVE
    pushed = (("scal", change), ("scal", change), ("scal", archive), ("set", change), ("scal", change))
    assert [e.call.ctr for name, event in pushed for e in source.push(name, 1.0, event)] == [1, 2, 1, 1, 3]


def test_the_counter_wraps(source: Source) -> None:
    source.settled()
    channel = source.supplier.attribute(DEVICE, "scal").active_channel(EventType.CHANGE)
    assert channel is not None
    channel.ctr = 2**32 - 1
    assert [source.push("scal", 1.0)[0].call.ctr for _ in range(2)] == [2**32 - 1, 0]


def test_the_first_event_after_a_new_client_is_sent_twice(source: Source) -> None:
    source.subscribe(pid=1)
    assert [event.call.ctr for event in source.push("scal", 1.0)] == [1, 1]
    source.subscribe("set", pid=1)  # the same client
    assert [event.call.ctr for event in source.push("scal", 1.0)] == [2]
    source.subscribe(pid=2)
    assert [event.call.ctr for event in source.push("set", 1.0)] == [1, 1]
    assert [event.call.ctr for event in source.push("scal", 1.0)] == [3]
    source.now += 501
    source.subscribe(pid=2)  # the client counts as new again
    assert len(source.push("scal", 1.0)) == 2


@pytest.mark.spec("TG-45")
def test_the_number_of_remembered_clients_is_limited(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that call with ever new identities use limited memory."""
    monkeypatch.setattr("mama_spark.tango.source.event_supplier.MAX_CLIENTS", 3)
    for pid in range(20):
        source.subscribe(pid=pid)
        assert len(source.supplier._clients) <= 3
    source.now += 501
    source.subscribe(pid=20)
    for pid in (21, 22, 23):
        source.now += 200
        source.settled(pid=pid)
    source.subscribe(pid=23)  # this client called recently: the event is sent once
    assert len(source.push("scal", 1.0)) == 1


@pytest.mark.spec("TG-09")
def test_old_clients_get_their_idl_version_with_the_same_counter(source: Source) -> None:
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
def test_subscriptions_of_old_and_new_clients_are_independent(source: Source, event: EventType) -> None:
    """Alarm events have one IDL version and are sent once; attr_conf events have two topics."""
    topics = [source.settled("scal", event.wire_name, idl=idl).topic for idl in ("5", "4", "0")]
    channel = source.supplier.attribute(DEVICE, "scal").active_channel(event)
    if event is EventType.ALARM:
        found = source.push("scal", 1.0, EventType.ALARM)
    else:
        found = events(source.supplier.push_data(channel, source.supplier.attribute(DEVICE, "scal").config))
    assert {str(one.topic) for one in found} == set(topics)
    assert len(found) == len(set(topics)) == (1 if event is EventType.ALARM else 2)


@pytest.mark.spec("TG-11", "TG-18")
def test_errors_are_sent_as_events_with_is_except(source: Source) -> None:
    source.settled()
    state, error = source.supplier.attribute(DEVICE, "scal"), DevError("Broken", Severity.PANIC, "d", "o")
    (event,) = events(source.supplier.push(state, EventType.CHANGE, AttributeReading.failed([error], 5), source.now))
    assert (event.call.is_except, event.errors, event.data) == (True, (error,), None)
    assert read(source, "scal")[0].errors == (error,)


@pytest.mark.spec("TG-06")
def test_criteria_with_detect_filter_pushed_events(source: Source) -> None:
    """Pushed values are compared with the value that clients read when they subscribed."""
    source.set("level", 1.0)
    source.settled("level")
    pushed = [len(source.push("level", value)) for value in (1.4, 1.5, 1.9, 2.0)]
    assert pushed == [0, 1, 0, 1]


@pytest.mark.spec("TG-06", "TG-22")
def test_a_set_value_sends_the_events_that_its_criteria_select(source: Source) -> None:
    source.set("level", 1.0)
    for event in ("change", "archive", "alarm"):
        source.settled("level", event)
    assert source.set("level", 1.2) == []
    assert source.set("level", 2.0) == ["change", "archive"]
    assert source.set("level", 2.0, quality=Quality.ALARM) == ["change", "archive", "alarm"]
    assert source.set("level", 2.0, quality=Quality.ALARM) == []


def test_a_pushed_change_sends_an_alarm_event(source: Source) -> None:
    source.settled("scal", "alarm")
    assert [e.topic.event for e in source.push("scal", 1.0, quality=Quality.WARNING)] == [EventType.ALARM]
    assert source.push("scal", 1.0, quality=Quality.WARNING) == []


@pytest.mark.spec("TG-15", "TG-16")
def test_interface_changes_and_data_ready_are_sent(source: Source) -> None:
    source.settled("", "intr_change")
    source.settled("spec", "data_ready")
    state = source.supplier.device(DEVICE)
    (change,) = events(source.supplier.push_data(state.channel, state.interface(True)))
    assert change.data == state.interface(True)
    ready = DataReady("spec", int(DataType.LONG), -3)
    (event,) = events(source.supplier.push_data(state.attributes["spec"].active_channel(EventType.DATA_READY), ready))
    assert event.data == ready


@pytest.mark.parametrize("away", [False, True], ids=["replaced", "removed and added"])
def test_an_attribute_that_is_declared_anew_keeps_its_subscriptions(source: Source, away: bool) -> None:
    """Clients are told the new type, and get the new values without subscribing again."""
    supplier, device = source.supplier, source.supplier.device(DEVICE)
    for event in ("change", "archive", "user_event", "periodic", "attr_conf"):
        source.settled("tick", event)
    source.settled("", "intr_change")
    assert [event.call.ctr for event in source.push("tick", 1.5)] == [1]
    if away:
        device.remove_attribute("tick")
        source.now += 5
        assert source.due_events() == []
    texts = Attribute("Tick", DataType.STRING, Format.SPECTRUM, period=500, archive=Criteria(period=1000))
    conf, interface = events(supplier.add_attributes(device, [texts], 8, source.now))
    assert (conf.topic.event, conf.data) == (EventType.ATTR_CONF, texts.config())
    assert (interface.topic.event, len(interface.data.atts)) == (EventType.INTERFACE_CHANGE, len(device.attributes))  # type: ignore[union-attr]
    for kind, ctr in ((EventType.CHANGE, 2), (EventType.ARCHIVE, 1), (EventType.USER, 1)):
        (found,) = source.push("tick", ["a", "b"], kind)
        assert (found.data.read, found.call.ctr) == (("a", "b"), ctr)  # type: ignore[union-attr]
    source.now += 1.1
    assert [event.topic.event for event in source.due_events()] == [EventType.PERIODIC, EventType.ARCHIVE]
    # a scalar number again, which has an encoder; and the events that it does not send any more end with an error
    number = Attribute("tick", DataType.LONG, change=None, period=500)
    error, *_ = events(supplier.add_attributes(device, [number], 9, source.now))
    assert (error.topic.event, error.errors[0].reason) == (EventType.CHANGE, "API_AttributePollingNotStarted")
    assert values(source.push("tick", 7, EventType.USER)) == [7]
    assert source.push("tick", 7) == []


def test_subscriptions_to_a_removed_attribute_expire(source: Source) -> None:
    source.settled("tick", "periodic")
    device = source.supplier.device(DEVICE)
    for name in ("tick", "text"):
        device.remove_attribute(name)
    assert list(device.removed) == ["tick"]
    source.now += 601
    assert source.due_events() == []
    assert not device.removed


def test_a_restart_resets_counters_and_keeps_values(source: Source) -> None:
    source.settled()
    source.push("scal", 2.5)
    source.supplier.reset("vm:11002")
    assert source.push("scal", 3.5) == []
    assert source.supplier.due_heartbeats(1e9) == []
    assert source.settled().topic == "tango://vm:11002/test/pub/1/scal#dbase=no.idl5_change"
    assert source.push("scal", 4.5)[0].call.ctr == 1


@pytest.mark.spec("TG-05", "TG-22")
def test_periodic_events_are_sent_at_their_period(source: Source) -> None:
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
    source.now += 60  # the thread was stopped: one event, not one for each period
    assert len(source.due_events()) == 1


def test_an_archive_event_is_sent_when_its_period_is_over(source: Source) -> None:
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
def test_heartbeats_are_sent_every_nine_seconds_and_twice_for_a_new_client(source: Source) -> None:
    assert source.supplier.due_heartbeats(source.now) == []  # no client has subscribed
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
@pytest.mark.parametrize(
    ("kind", "attribute"), [(EventType.CHANGE, "scal"), (EventType.PERIODIC, "tick"), (EventType.ARCHIVE, "level")]
)
def test_a_subscription_without_confirmation_expires_after_600_seconds(
    source: Source, kind: EventType, attribute: str
) -> None:
    """The counter stops then."""
    source.settled(attribute, kind.wire_name)
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
def test_confirmations_keep_a_subscription(source: Source) -> None:
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
