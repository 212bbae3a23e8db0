"""The step of each event in each state of a state machine, which changes its state nowhere else. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)
Action = TypeVar("Action")


class TableEnum(Enum):
    """Members hash by identity: the hash of :class:`~enum.Enum` is a Python call, too slow for every message."""

    __hash__ = object.__hash__


class IllegalMachineStep(RuntimeError):
    """The table has no entry for an event in a state."""


@dataclass(frozen=True, slots=True)
class TableStep(Generic[State, Action]):
    """The next state, and the action that the machine executes; None = none."""

    state: State
    action: Action | None = None


class TransitionTable(Generic[State, Event, Action]):
    """A missing event is illegal in that state."""

    def __init__(self, rows: Mapping[State, Mapping[Event, TableStep[State, Action]]]) -> None:
        self._rows = {state: dict(steps) for state, steps in rows.items()}

    def __iter__(self) -> Iterator[tuple[State, Event, TableStep[State, Action]]]:
        return ((state, event, step) for state, steps in self._rows.items() for event, step in steps.items())

    def step(self, state: State, event: Event) -> TableStep[State, Action]:
        """The next state and the action of ``event`` in ``state``.

        :raises IllegalMachineStep: the table has no such entry
        """
        try:
            return self._rows[state][event]
        except KeyError:
            raise IllegalMachineStep(f"{event.value} in state {state.value}") from None

    def allows(self, state: State, event: Event) -> bool:
        return event in self._rows.get(state, ())
