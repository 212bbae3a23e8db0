"""Heartbeats, periodic events, periods of archive events, and expiry of subscriptions."""

from __future__ import annotations

import pytest
from mama_spark.tango.events.event_codec import Heartbeat, decode
from mama_spark.tango.types import EventType

from tests.support.tango.servant_harness import ADMIN, DEVICE, Source, values


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
@pytest.mark.parametrize(("event", "attribute"), [("change", "scal"), ("periodic", "tick"), ("archive", "level")])
def test_a_subscription_without_confirmation_expires_after_600_seconds(
    source: Source, event: str, attribute: str
) -> None:
    """The counter stops then."""
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
