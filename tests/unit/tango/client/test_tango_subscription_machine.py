"""State machine of subscriptions without a socket: negotiation, values, retries, heartbeats, confirmations, end."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from mama_spark.contracts.backoff import Backoff
from mama_spark.tango.client.keep_alive import Timeouts
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_machine import SubscriptionMachine
from mama_spark.tango.client.subscription_states import (
    Action,
    ConfirmSubscription,
    Connect,
    Disconnect,
    IllegalTransition,
    MarkRestarted,
    Negotiate,
    NegotiatedChannel,
    ReadValue,
    ReportAvailability,
    ReportError,
    SubscribeTopic,
    SubscriptionRequest,
    SubscriptionState,
    UnsubscribeTopic,
)
from mama_spark.tango.idl.negotiation import Confirmation
from mama_spark.tango.types import DevError, EventType, Severity

from tests.support.tables import each
from tests.support.tango.subscription_machines import (
    AWAY,
    CHANNEL,
    HEARTBEATS,
    OTHER,
    PAIR,
    connected,
    negotiated,
    one,
    reasons,
    request,
)


@pytest.mark.spec("TG-29", "TG-31", "TG-32")
def test_a_negotiated_subscription_connects_subscribes_and_reads_the_first_value() -> None:
    machine, id = one()
    assert machine.on_negotiated(0.0, id, negotiated()) == [
        Connect(CHANNEL, PAIR, HEARTBEATS), SubscribeTopic(negotiated().topic, id), ReportAvailability(id, True),
        ReadValue(id, Kind.INITIAL),
    ]  # fmt: skip
    assert machine.state(id) is SubscriptionState.CONNECTED


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
    assert ReadValue(id, Kind.RESUBSCRIPTION) in machine.on_negotiated(11.0, id, negotiated())


@pytest.mark.spec("TG-38", "TG-39")
def test_the_last_cancelled_subscription_unsubscribes_and_disconnects() -> None:
    """Tango has no message to unsubscribe."""
    machine, first = connected()
    (second,), _ = machine.subscribe([request()])
    machine.on_negotiated(0.0, second, negotiated())
    assert machine.cancel(first) == [UnsubscribeTopic(negotiated().topic, first)]
    assert machine.cancel(second) == [
        UnsubscribeTopic(negotiated().topic, second), Disconnect(CHANNEL, PAIR, HEARTBEATS),
    ]  # fmt: skip
    assert machine.cancel(second) == []
    assert (machine.next_deadline(), machine.state(second)) == (math.inf, SubscriptionState.CANCELLED)


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


def alive(machine: SubscriptionMachine, start: int, end: int) -> list[tuple[float, Action]]:
    """Send a heartbeat every 9 s; returns the actions and their times."""
    done: list[tuple[float, Action]] = []
    for now in range(start, end):
        if now % 9 == 0:
            machine.on_heartbeat(float(now), CHANNEL)
        done += [(float(now), action) for action in machine.tick(float(now))]
    return done


@pytest.mark.spec("TG-36", "TG-37")
def test_all_subscriptions_of_a_channel_are_confirmed_every_200_seconds_with_event_names_of_topics() -> None:
    machine, first = connected()
    (second,), _ = machine.subscribe([request("y")])
    machine.on_negotiated(0.0, second, negotiated("y"))
    what = (Confirmation("a/b/c", "x", "idl5_change"), Confirmation("a/b/c", "y", "idl5_change"))
    assert alive(machine, 1, 300) == [(200.0, ConfirmSubscription(CHANNEL, (first, second), what))]
    machine.on_confirmed(300.0, CHANNEL)
    assert [now for now, _ in alive(machine, 300, 502)] == [500.0]


@pytest.mark.spec("TG-37")
def test_subscriptions_are_confirmed_when_a_device_has_other_attributes_also_during_a_confirmation() -> None:
    machine, _ = connected()
    machine.on_interface_changed(10.0)
    assert [now for now, _ in alive(machine, 9, 18)] == [10.0]
    machine.on_interface_changed(12.0)
    machine.on_confirmed(17.5, CHANNEL)
    assert [now for now, _ in alive(machine, 18, 27)] == [18.0]


@pytest.mark.spec("TG-37")
def test_a_failed_confirmation_is_reported_and_repeated_at_the_next_check() -> None:
    """A server that did not get the confirmation would end the subscription after 600 s."""
    machine, id = connected()
    alive(machine, 1, 201)
    refused = machine.on_confirmation_failed(201.0, CHANNEL, AWAY, unreachable=False, unsupported=False)
    assert refused == [ReportError(id, AWAY)]
    assert [now for now, _ in alive(machine, 201, 213)] == [211.0]
    assert machine.on_confirmation_failed(212.0, CHANNEL, AWAY, unreachable=True, unsupported=False) == []


@pytest.mark.spec("TG-37")
def test_only_refused_confirmations_are_reported_and_all_are_repeated_at_the_next_check() -> None:
    machine, first = connected()
    (second,), _ = machine.subscribe([request("y")])
    machine.on_negotiated(0.0, second, negotiated("y"))
    alive(machine, 1, 201)
    assert machine.on_confirmed(201.0, CHANNEL, {second: AWAY, 99: AWAY}) == [ReportError(second, AWAY)]
    assert [now for now, _ in alive(machine, 201, 213)] == [211.0]
    assert machine.on_confirmed(212.0, CHANNEL) == []
    assert [now for now, _ in alive(machine, 213, 413)] == [412.0]
    assert machine.state(first) is machine.state(second) is SubscriptionState.CONNECTED


def test_without_the_confirm_command_subscriptions_are_negotiated_again_and_no_value_is_read() -> None:
    machine, id = connected()
    alive(machine, 1, 201)
    machine.on_confirmation_failed(201.0, CHANNEL, AWAY, unreachable=False, unsupported=True)
    assert alive(machine, 201, 300) == [(201.0, Negotiate((id,)))]
    assert machine.on_negotiated(300.0, id, negotiated()) == []
    assert machine.on_negotiation_failed(300.0, id, AWAY) == [ReportError(id, AWAY)]
    assert machine.state(id) is SubscriptionState.CONNECTED
    assert alive(machine, 300, 402) == [(401.0, Negotiate((id,)))]


def test_an_event_without_a_transition_raises() -> None:
    machine, id = one()
    machine.on_negotiation_failed(0.0, id, AWAY)
    with pytest.raises(IllegalTransition, match="NEGOTIATED in POSTPONED"):
        machine.on_negotiated(0.0, id, negotiated())


def test_the_heartbeat_of_either_spelling_counts() -> None:
    machine, id = connected()
    machine.on_heartbeat(9.0, CHANNEL.upper() + "#dbase=no")
    machine.tick(10.0)
    assert machine.state(id) is SubscriptionState.CONNECTED


@pytest.mark.spec("TG-41", "TG-42")
def test_missing_heartbeats_are_reported_at_each_check_and_the_subscription_is_negotiated_again() -> None:
    machine, id = connected()
    assert machine.tick(10.0) == []  # not older than 10 s
    first = machine.tick(20.0)
    assert (first[0], reasons(first), first[-1]) == (
        ReportAvailability(id, False), ["API_EventTimeout"], Negotiate((id,)),
    )  # fmt: skip
    assert machine.state(id) is SubscriptionState.RECONNECTING
    machine.on_negotiation_failed(20.0, id, AWAY)
    reported, now = [], 20.0
    while now < 60:
        now = machine.next_deadline()
        actions = machine.tick(now)
        reported += [(now, reason) for reason in reasons(actions)]
        for action in actions:
            if isinstance(action, Negotiate):
                assert reasons(machine.on_negotiation_failed(now, id, AWAY)) == []
    assert reported == [(now, "API_EventTimeout") for now in (30.0, 40.0, 50.0, 60.0)]


def test_a_reconnection_to_other_endpoints_restarts_the_counters_and_the_next_error_is_reported_at_once() -> None:
    machine, id = connected()
    machine.tick(20.0)
    assert machine.on_negotiated(21.0, id, negotiated(pair=OTHER)) == [
        Disconnect(CHANNEL, PAIR, HEARTBEATS), MarkRestarted((negotiated().topic,)),
        Connect(CHANNEL, OTHER, HEARTBEATS, True), ReportAvailability(id, True), ReadValue(id, Kind.RESUBSCRIPTION),
    ]  # fmt: skip
    assert reasons(machine.on_disconnected(22.0, CHANNEL)) == ["API_EventTimeout"]


def test_a_heartbeat_of_a_resumed_server_reconnects_and_confirms_at_once() -> None:
    machine, id = connected()
    machine.tick(20.0)
    machine.on_negotiation_failed(23.0, id, AWAY)
    assert machine.state(id) is SubscriptionState.HEARTBEAT_LOST
    assert machine.on_heartbeat(23.5, CHANNEL) == [ReportAvailability(id, True)]
    assert machine.state(id) is SubscriptionState.CONNECTED
    assert [type(action) for action in machine.tick(23.5)] == [ConfirmSubscription]


def test_a_heartbeat_does_not_connect_a_subscription_that_the_new_server_refused() -> None:
    machine, first = connected()
    (second,), _ = machine.subscribe([request("y")])
    machine.on_negotiated(0.0, second, negotiated("y"))
    machine.tick(20.0)
    machine.on_negotiated(21.0, first, negotiated(pair=OTHER))
    assert reasons(machine.on_negotiation_failed(21.0, second, AWAY)) == []  # the missing heartbeat was reported
    assert machine.on_heartbeat(22.0, CHANNEL) == []
    assert machine.state(first) is SubscriptionState.CONNECTED
    assert machine.state(second) is SubscriptionState.HEARTBEAT_LOST
    assert machine.tick(22.0) == [Negotiate((second,))]
    machine.on_heartbeat(30.0, CHANNEL)
    assert reasons(machine.on_negotiation_failed(31.0, second, AWAY)) == ["API_CantConnectToDevice"]


@pytest.mark.spec("TG-46")
def test_a_device_that_moved_to_another_server_leaves_the_old_channel_and_counters() -> None:
    """The restart is marked once for all subscriptions of the topic."""
    machine, first = connected()
    (second,), _ = machine.subscribe([request()])
    machine.on_negotiated(0.0, second, negotiated())
    machine.tick(20.0)
    moved = NegotiatedChannel(negotiated().topic, "tango://h:1/dserver/ds/j", OTHER)
    kinds = [type(action) for action in machine.on_negotiated(21.0, first, moved)]
    assert kinds == [MarkRestarted, Connect, ReportAvailability, ReadValue]
    kinds = [type(action) for action in machine.on_negotiated(21.0, second, moved)]
    assert kinds == [Disconnect, ReportAvailability, ReadValue]
    assert machine.on_heartbeat(22.0, CHANNEL) == []
    kinds = [type(action) for action in [*machine.cancel(first), *machine.cancel(second)]]
    assert kinds == [UnsubscribeTopic, UnsubscribeTopic, Disconnect]


def test_a_changed_topic_is_subscribed_to() -> None:
    machine, id = connected()
    machine.tick(20.0)
    kinds = [type(action) for action in machine.on_negotiated(21.0, id, negotiated("y", OTHER))]
    assert kinds == [UnsubscribeTopic, Disconnect, Connect, SubscribeTopic, ReportAvailability, ReadValue]


@pytest.mark.spec("TG-41")
def test_a_lost_connection_counts_as_a_missed_heartbeat_at_once() -> None:
    machine, id = connected()
    actions = machine.on_disconnected(1.0, CHANNEL)
    assert actions[0] == ReportAvailability(id, False)
    assert reasons(actions) == ["API_EventTimeout"]
    assert machine.on_disconnected(1.0, CHANNEL) == machine.on_disconnected(1.0, "other") == []
    assert machine.tick(1.0) == [Negotiate((id,))]
    machine.on_negotiation_failed(1.0, id, AWAY)
    assert machine.on_heartbeat(1.5, CHANNEL) == []  # of before
    assert machine.state(id) is SubscriptionState.HEARTBEAT_LOST
    assert reasons(machine.tick(11.0)) == ["API_EventTimeout"]
    assert Connect(CHANNEL, PAIR, HEARTBEATS, True) in machine.on_negotiated(12.0, id, negotiated())
    assert machine.tick(21.0) == []


def test_heartbeats_and_confirmations_of_unknown_channels_are_ignored() -> None:
    machine, _ = connected()
    assert machine.on_heartbeat(1.0, "tango://h:1/dserver/other/i") == machine.on_confirmed(1.0, "other") == []
    assert machine.on_confirmation_failed(1.0, "other", AWAY, unreachable=True, unsupported=False) == []
