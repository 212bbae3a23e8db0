"""The table of a state machine: what each event leads to in each state. Pure.

A machine keeps its state, asks the table for every event, and does what the :class:`TableStep` says; it changes its
state nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)
Action = TypeVar("Action")


class TableEnum(Enum):
    """For states, events and actions of a machine that is asked for every message: members hash by identity, while the
    hash of :class:`~enum.Enum` is a call in Python."""

    __hash__ = object.__hash__


class IllegalMachineStep(RuntimeError):
    """The table has no entry for an event in a state."""


@dataclass(frozen=True, slots=True)
class TableStep(Generic[State, Action]):
    """:ivar state: the next state
    :ivar action: what the machine does on the way; None = nothing
    """

    state: State
    action: Action | None = None


class TransitionTable(Generic[State, Event, Action]):
    """:param rows: steps by state and event; an event that is missing in a state is illegal there"""

    def __init__(self, rows: Mapping[State, Mapping[Event, TableStep[State, Action]]]) -> None:
        self._rows = {state: dict(steps) for state, steps in rows.items()}

    def __iter__(self) -> Iterator[tuple[State, Event, TableStep[State, Action]]]:
        """All entries."""
        return ((state, event, step) for state, steps in self._rows.items() for event, step in steps.items())

    def step(self, state: State, event: Event) -> TableStep[State, Action]:
        """:raises IllegalMachineStep: the table has no such entry"""
        try:
            return self._rows[state][event]
        except KeyError:
            raise IllegalMachineStep(f"{event.value} in state {state.value}") from None

    def allows(self, state: State, event: Event) -> bool:
        return event in self._rows.get(state, ())
