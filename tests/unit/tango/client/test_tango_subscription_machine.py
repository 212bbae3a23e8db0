"""State machine of subscriptions without a socket: negotiation, first values, retries and cancellation."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from mama_spark.contracts.backoff import Backoff
from mama_spark.tango.client.subscription_events import SubscriptionEventKind
from mama_spark.tango.client.subscription_machine import SubscriptionMachine
from mama_spark.tango.client.subscription_states import (
    Connect,
    Disconnect,
    Negotiate,
    ReadValue,
    ReportAvailability,
    SubscribeTopic,
    SubscriptionRequest,
    SubscriptionState,
    Timeouts,
    UnsubscribeTopic,
)
from mama_spark.tango.types import DevError, EventType, Severity

from tests.support.tables import each
from tests.support.tango.subscription_machines import (
    AWAY,
    CHANNEL,
    HEARTBEATS,
    PAIR,
    connected,
    negotiated,
    one,
    reasons,
    request,
)


@pytest.mark.spec("TG-29", "TG-31", "TG-32")
def test_a_negotiated_subscription_connects_subscribes_and_reads_the_first_value() -> None:
    """It connects both channels and subscribes to both spellings of the heartbeat topic."""
    machine, id = one()
    assert machine.on_negotiated(0.0, id, negotiated()) == [
        Connect(CHANNEL, PAIR, HEARTBEATS),
        SubscribeTopic(negotiated().topic, id),
        ReportAvailability(id, True),
        ReadValue(id, SubscriptionEventKind.INITIAL),
    ]
    assert machine.state(id) is SubscriptionState.CONNECTED


def test_a_second_subscription_at_the_same_server_uses_its_connections() -> None:
    machine, _ = connected()
    (id,), _ = machine.subscribe([request("y")])
    actions = machine.on_negotiated(1.0, id, negotiated("y"))
    assert actions == [
        SubscribeTopic(negotiated("y").topic, id),
        ReportAvailability(id, True),
        ReadValue(id, SubscriptionEventKind.INITIAL),
    ]


@each("event", list(EventType))
def test_which_events_have_a_first_value_and_one_after_a_reconnection(event: EventType) -> None:
    machine, id = one(event)
    first = [a for a in machine.on_negotiated(0.0, id, negotiated()) if isinstance(a, ReadValue)]
    machine.tick(11.0)
    again = [a for a in machine.on_negotiated(11.0, id, negotiated()) if isinstance(a, ReadValue)]
    assert bool(first) is (event is not EventType.DATA_READY)
    assert bool(again) is (event not in (EventType.DATA_READY, EventType.PERIODIC))


def test_without_a_first_value_the_value_is_read_after_a_reconnection() -> None:
    machine, id = one(read=False)
    assert not [a for a in machine.on_negotiated(0.0, id, negotiated()) if isinstance(a, ReadValue)]
    machine.tick(11.0)
    assert ReadValue(id, SubscriptionEventKind.RESUBSCRIPTION) in machine.on_negotiated(11.0, id, negotiated())


@pytest.mark.spec("TG-38", "TG-39")
def test_the_last_cancelled_subscription_unsubscribes_and_disconnects() -> None:
    """Tango has no message to unsubscribe."""
    machine, first = connected()
    (second,), _ = machine.subscribe([request()])
    machine.on_negotiated(0.0, second, negotiated())
    assert machine.cancel(first) == [UnsubscribeTopic(negotiated().topic, first)]
    assert machine.cancel(second) == [
        UnsubscribeTopic(negotiated().topic, second),
        Disconnect(CHANNEL, PAIR, HEARTBEATS),
    ]
    assert machine.cancel(second) == []
    assert (machine.next_deadline(), machine.state(second)) == (math.inf, SubscriptionState.CANCELLED)


def test_results_for_a_subscription_cancelled_while_negotiating_are_ignored() -> None:
    machine, id = one()
    assert machine.cancel(id) == []
    assert machine.on_negotiated(1.0, id, negotiated()) == []
    assert machine.on_negotiation_failed(1.0, id, AWAY) == []
    assert machine.tick(1000.0) == []


@pytest.mark.spec("TG-30", "TG-42")
def test_an_unreachable_server_is_retried_with_back_off_and_an_error_each_check_period() -> None:
    machine, id = one(timeouts=Timeouts(retry=Backoff(1.0, 10.0)))
    errors = machine.on_negotiation_failed(0.0, id, AWAY)
    assert reasons(errors) == ["API_CantConnectToDevice"]
    tries, reported, now = [], [], 0.0
    while now < 100:
        now = machine.next_deadline()
        assert machine.tick(now) == [Negotiate((id,))]
        tries.append(now)
        reported += [now for _ in reasons(machine.on_negotiation_failed(now, id, AWAY))]
        assert machine.state(id) is SubscriptionState.POSTPONED
    assert tries[:6] == [1, 3, 7, 15, 25, 35]
    assert reported[:3] == [15, 25, 35]
    now = machine.next_deadline()
    machine.tick(now)
    machine.on_negotiated(now, id, negotiated())
    assert machine.state(id) is SubscriptionState.CONNECTED


@pytest.mark.spec("TG-41", "TG-42")
def test_a_missing_server_is_tried_by_one_of_its_devices_at_a_time_with_back_off_and_jitter() -> None:
    """However many devices it has."""

    def attempts(seed: float) -> list[float]:
        machine = SubscriptionMachine(seed=seed)
        names = [f"a/b/{number}" for number in range(20) for _ in range(2)]
        ids, _ = machine.subscribe([SubscriptionRequest(f"tango://h:1/{n}", n, "x", EventType.CHANGE) for n in names])
        for id in ids:
            machine.on_negotiated(0.0, id, negotiated(f"x{id}"))
        found, devices, now = [], set(), 0.0
        while now < 120:
            now = machine.next_deadline()
            for action in machine.tick(now):
                if isinstance(action, Negotiate):
                    found.append(now)
                    devices.add(action.ids)
                    for id in action.ids:
                        machine.on_negotiation_failed(now, id, AWAY)
        assert all(len(ids) == 2 for ids in devices)
        assert len(devices) == len(found), "another device each time"
        return found

    one_client, another = attempts(0.1), attempts(0.6)
    waits = [b - a for a, b in pairwise(one_client)]
    assert len(one_client) < 25
    assert all(6.5 < wait <= 10.5 for wait in waits[6:])
    assert one_client[3:8] != another[3:8]


@pytest.mark.spec("TG-41")
def test_when_one_device_of_a_missing_server_is_back_the_others_are_tried_at_once() -> None:
    machine = SubscriptionMachine()
    requests = [SubscriptionRequest(f"tango://h:1/{n}", n, "x", EventType.CHANGE) for n in ("a/b/1", "a/b/2", "a/b/3")]
    ids, _ = machine.subscribe(requests)
    for id in ids:
        machine.on_negotiated(0.0, id, negotiated(f"x{id}"))
    (tried,) = [action for action in machine.tick(20.0) if isinstance(action, Negotiate)]
    machine.on_negotiated(20.1, tried.ids[0], negotiated(f"x{tried.ids[0]}"))
    others = [action.ids for action in machine.tick(machine.next_deadline()) if isinstance(action, Negotiate)]
    assert sorted((*tried.ids, *(id for found in others for id in found))) == ids


def test_an_attribute_that_sends_no_such_events_yet_is_tried_again_more_and_more_rarely() -> None:
    machine, id = one(timeouts=Timeouts(refused=Backoff(1.0, 300.0)))
    refused = (DevError("API_AttributePollingNotStarted", Severity.ERR, "not polled", "test"),)
    machine.on_negotiation_failed(0.0, id, refused)
    tries, now = [], 0.0
    while now < 1000:
        now = machine.next_deadline()
        assert machine.tick(now) == [Negotiate((id,))]
        tries.append(now)
        machine.on_negotiation_failed(now, id, refused)
    assert tries[:9] == [1, 3, 7, 15, 31, 63, 127, 255, 511]
    assert tries[-1] - tries[-2] == 300


def test_attributes_of_one_device_are_negotiated_together() -> None:
    machine = SubscriptionMachine()
    other = SubscriptionRequest("tango://h:1/a/b/d", "a/b/d", "z", EventType.CHANGE)
    ids, actions = machine.subscribe([request("x"), other, request("y")])
    assert actions == [Negotiate((ids[0], ids[2])), Negotiate((ids[1],))]
