"""State machine of subscriptions: heartbeats, lost connections and reconnections."""

from __future__ import annotations

import pytest
from mama_spark.tango.client.subscription_events import SubscriptionEventKind
from mama_spark.tango.client.subscription_states import (
    ConfirmSubscription,
    Connect,
    Disconnect,
    MarkRestarted,
    Negotiate,
    NegotiatedChannel,
    ReadValue,
    ReportAvailability,
    SubscribeTopic,
    SubscriptionState,
    UnsubscribeTopic,
)

from tests.support.tango.subscription_machines import (
    AWAY,
    CHANNEL,
    HEARTBEATS,
    OTHER,
    PAIR,
    connected,
    negotiated,
    reasons,
    request,
)


@pytest.mark.spec("TG-36")
def test_heartbeats_in_time_keep_it_connected() -> None:
    machine, id = connected()
    for now in range(9, 190, 9):
        assert machine.on_heartbeat(float(now), CHANNEL) == []
        assert machine.tick(float(now)) == []
    assert machine.state(id) is SubscriptionState.CONNECTED


def test_the_heartbeat_of_either_spelling_counts() -> None:
    machine, id = connected()
    machine.on_heartbeat(9.0, CHANNEL.upper() + "#dbase=no")
    machine.tick(10.0)
    assert machine.state(id) is SubscriptionState.CONNECTED


@pytest.mark.spec("TG-41")
def test_a_missed_heartbeat_is_reported_and_the_subscription_negotiated_again() -> None:
    machine, id = connected()
    assert machine.tick(10.0) == []  # not older than 10 s
    actions = machine.tick(20.0)
    assert actions[0] == ReportAvailability(id, False)
    assert reasons(actions) == ["API_EventTimeout"]
    assert actions[-1] == Negotiate((id,))
    assert machine.state(id) is SubscriptionState.RECONNECTING


@pytest.mark.spec("TG-42")
def test_missing_heartbeats_are_reported_at_each_check() -> None:
    machine, id = connected()
    reported, now = [], 0.0
    while now < 60:
        now = machine.next_deadline()
        actions = machine.tick(now)
        reported += [(now, reason) for reason in reasons(actions)]
        for action in actions:
            if isinstance(action, Negotiate):
                assert reasons(machine.on_negotiation_failed(now, id, AWAY)) == []
    assert reported == [(now, "API_EventTimeout") for now in (20.0, 30.0, 40.0, 50.0, 60.0)]


def test_a_reconnection_replaces_the_connections_and_reads_the_value() -> None:
    machine, id = connected()
    machine.tick(20.0)
    assert machine.on_negotiated(21.0, id, negotiated()) == [
        Connect(CHANNEL, PAIR, HEARTBEATS, True),
        ReportAvailability(id, True),
        ReadValue(id, SubscriptionEventKind.RESUBSCRIPTION),
    ]
    assert machine.tick(30.0) == []  # its heartbeat counts from here


def test_other_endpoints_restart_the_counters() -> None:
    machine, id = connected()
    machine.tick(20.0)
    assert machine.on_negotiated(21.0, id, negotiated(pair=OTHER))[:3] == [
        Disconnect(CHANNEL, PAIR, HEARTBEATS),
        MarkRestarted((negotiated().topic,)),
        Connect(CHANNEL, OTHER, HEARTBEATS, True),
    ]


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
    assert (
        reasons(machine.on_negotiation_failed(21.0, second, AWAY)) == []
    )  # reported by the missing heartbeat a moment ago
    assert machine.on_heartbeat(22.0, CHANNEL) == []
    assert [machine.state(id) for id in (first, second)] == [
        SubscriptionState.CONNECTED,
        SubscriptionState.HEARTBEAT_LOST,
    ]
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
    assert [type(action) for action in machine.on_negotiated(21.0, second, moved)] == [
        Disconnect,
        ReportAvailability,
        ReadValue,
    ]
    assert machine.on_heartbeat(22.0, CHANNEL) == []
    assert [type(action) for action in [*machine.cancel(first), *machine.cancel(second)]] == [
        UnsubscribeTopic, UnsubscribeTopic, Disconnect,
    ]  # fmt: skip


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
    assert machine.on_heartbeat(1.0, "tango://h:1/dserver/other/i") == []
    assert (
        machine.on_confirmed(1.0, "other")
        == machine.on_confirmation_failed(1.0, "other", AWAY, unreachable=True, unsupported=False)
        == []
    )
