"""State table of subscriptions, and the default periods."""

from __future__ import annotations

import pytest
from mama_spark.tango.client.subscription_states import (
    TABLE,
    IllegalTransition,
    MachineEvent,
    SubscriptionState,
    Timeouts,
)

from tests.support.tango.subscription_machines import AWAY, negotiated, one


def test_every_state_has_a_row_and_every_one_can_be_cancelled() -> None:
    assert set(TABLE) == set(SubscriptionState)
    for steps in TABLE.values():
        assert steps[MachineEvent.CANCEL] is SubscriptionState.CANCELLED
    assert set(TABLE[SubscriptionState.CANCELLED].values()) == {SubscriptionState.CANCELLED}


def test_every_state_can_be_reached() -> None:
    reached, front = {SubscriptionState.NEGOTIATING}, [SubscriptionState.NEGOTIATING]
    while front:
        for after in TABLE[front.pop()].values():
            if after not in reached:
                reached.add(after)
                front.append(after)
    assert reached == set(SubscriptionState)


def test_an_event_without_a_transition_raises() -> None:
    machine, id = one()
    machine.on_negotiation_failed(0.0, id, AWAY)
    with pytest.raises(IllegalTransition, match="NEGOTIATED in POSTPONED"):
        machine.on_negotiated(0.0, id, negotiated())


@pytest.mark.spec("TG-36", "TG-37")
def test_the_defaults_are_those_of_the_specification() -> None:
    timeouts = Timeouts()
    assert (timeouts.check, timeouts.heartbeat, timeouts.confirm) == (10.0, 10.0, 200.0)
