"""Transition tables of state machines: each entry is found, and a missing one raises."""

from __future__ import annotations

from enum import Enum

import pytest
from mama_spark.malamute.protocol.transition_table import IllegalMachineStep, TableStep, TransitionTable

from tests.support.tables import each


class Door(Enum):
    OPEN = "open"
    SHUT = "shut"


class Push(Enum):
    CLOSE = "close"
    LOCK = "lock"


TABLE = TransitionTable[Door, Push, str](
    {Door.OPEN: {Push.CLOSE: TableStep(Door.SHUT, "click")}, Door.SHUT: {Push.LOCK: TableStep(Door.SHUT)}}
)


@each("state", Door)
@each("event", Push)
def test_an_event_leads_to_what_the_table_says_or_raises(state: Door, event: Push) -> None:
    entries = {(state, event): step for state, event, step in TABLE}
    assert len(entries) == 2
    assert TABLE.allows(state, event) is ((state, event) in entries)
    if TABLE.allows(state, event):
        assert TABLE.step(state, event) == entries[state, event]
    else:
        with pytest.raises(IllegalMachineStep, match=f"{event.value} in state {state.value}"):
            TABLE.step(state, event)


def test_a_step_without_an_action_has_none() -> None:
    assert TABLE.step(Door.SHUT, Push.LOCK) == TableStep(Door.SHUT, None)
    assert TABLE.step(Door.OPEN, Push.CLOSE).action == "click"
