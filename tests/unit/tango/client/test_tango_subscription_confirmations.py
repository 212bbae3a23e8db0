"""State machine of subscriptions: confirmations."""

from __future__ import annotations

import pytest
from mama_spark.tango.client.subscription_machine import SubscriptionMachine
from mama_spark.tango.client.subscription_states import (
    Action,
    ConfirmSubscription,
    Negotiate,
    ReportError,
    SubscriptionState,
)
from mama_spark.tango.idl.negotiation import Confirmation

from tests.support.tango.subscription_machines import AWAY, CHANNEL, connected, negotiated, request


def alive(machine: SubscriptionMachine, start: int, end: int) -> list[tuple[float, Action]]:
    """Send a heartbeat every 9 s; returns the actions and their times."""
    done: list[tuple[float, Action]] = []
    for now in range(start, end):
        if now % 9 == 0:
            machine.on_heartbeat(float(now), CHANNEL)
        done += [(float(now), action) for action in machine.tick(float(now))]
    return done


@pytest.mark.spec("TG-37")
def test_all_subscriptions_of_a_channel_are_confirmed_every_200_seconds_with_event_names_of_topics() -> None:
    machine, first = connected()
    (second,), _ = machine.subscribe([request("y")])
    machine.on_negotiated(0.0, second, negotiated("y"))
    what = (Confirmation("a/b/c", "x", "idl5_change"), Confirmation("a/b/c", "y", "idl5_change"))
    assert alive(machine, 1, 300) == [(200.0, ConfirmSubscription(CHANNEL, (first, second), what))]
    machine.on_confirmed(300.0, CHANNEL)
    assert [now for now, _ in alive(machine, 300, 502)] == [500.0]


@pytest.mark.spec("TG-37")
def test_a_failed_confirmation_is_reported_and_repeated_at_the_next_check() -> None:
    """A server that did not get the confirmation would end the subscription after 600 s."""
    machine, id = connected()
    alive(machine, 1, 201)
    assert machine.on_confirmation_failed(201.0, CHANNEL, AWAY, unreachable=False, unsupported=False) == [
        ReportError(id, AWAY)
    ]
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
