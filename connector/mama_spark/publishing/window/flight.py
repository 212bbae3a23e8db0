"""States of a flight (one message in transit) and the table of legal transitions. Pure.

A flight is in exactly one state; :data:`TABLE` holds every legal transition, and any other raises
:class:`IllegalFlightStep`. Three terminal states are the listener methods of the specification (MP-12 to MP-14); the
fourth, ``PUBLISHED``, is for messages without acknowledgement: all with ``ackMode=none``, or those without subscribers.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

States = npt.NDArray[np.uint8]


class FlightState(IntEnum):
    QUEUED = 0  #: known to the window, not sent yet
    IN_FLIGHT = 1  #: sent, no answer yet
    WAITING = 2  #: refused or in doubt; will be sent again
    ACKED = 3
    COMPLETED_EXCEPTIONALLY = 4
    TIMEOUT = 5
    PUBLISHED = 6  #: sent to a middleware that does not acknowledge


class Transition(IntEnum):
    SEND = 0  #: the bridge took it
    ACK = 1  #: any of its sends was acknowledged
    RETRY = 2  #: its last send was refused or is in doubt, and a resend is allowed
    FAIL = 3  #: refused for good, or stopped
    EXPIRE = 4  #: no answer in time
    SEND_UNACKNOWLEDGED = 5  #: the bridge took it and no answer will come
    FIND = 6  #: an earlier attempt has stored its row


class IllegalFlightStep(AssertionError):
    """A transition that the state of a flight does not allow: a defect of this package."""


TABLE: dict[FlightState, dict[Transition, FlightState]] = {
    FlightState.QUEUED: {
        Transition.SEND: FlightState.IN_FLIGHT,
        Transition.FAIL: FlightState.COMPLETED_EXCEPTIONALLY,
        Transition.SEND_UNACKNOWLEDGED: FlightState.PUBLISHED,
        Transition.FIND: FlightState.ACKED,
    },
    FlightState.IN_FLIGHT: {
        Transition.ACK: FlightState.ACKED,
        Transition.SEND_UNACKNOWLEDGED: FlightState.PUBLISHED,
        Transition.RETRY: FlightState.WAITING,
        Transition.FAIL: FlightState.COMPLETED_EXCEPTIONALLY,
        Transition.EXPIRE: FlightState.TIMEOUT,
    },
    FlightState.WAITING: {
        Transition.SEND: FlightState.IN_FLIGHT,
        Transition.ACK: FlightState.ACKED,
        Transition.SEND_UNACKNOWLEDGED: FlightState.PUBLISHED,
        Transition.FAIL: FlightState.COMPLETED_EXCEPTIONALLY,
        Transition.EXPIRE: FlightState.TIMEOUT,
    },
    FlightState.ACKED: {},
    FlightState.COMPLETED_EXCEPTIONALLY: {},
    FlightState.TIMEOUT: {},
    FlightState.PUBLISHED: {},
}

#: Flight events, everywhere the same strings: the listener methods of the specification (MP-11..MP-14).
PUBLISHED = "published"
EVENT: dict[FlightState, str] = {
    FlightState.ACKED: "acked",
    FlightState.COMPLETED_EXCEPTIONALLY: "completed_exceptionally",
    FlightState.TIMEOUT: "timeout",
    FlightState.PUBLISHED: PUBLISHED,
}

_ILLEGAL = 255
_NEXT: States = np.full((len(FlightState), len(Transition)), _ILLEGAL, np.uint8)
for _state, _steps in TABLE.items():
    for _step, _next in _steps.items():
        _NEXT[_state, _step] = _next


def advance(states: States, step: Transition) -> States:
    """The states after ``step``, for a whole column; IllegalFlightStep where the table lacks the transition."""
    after: States = _NEXT[states, step]
    if after.max(initial=0) == _ILLEGAL:
        bad = FlightState(int(states[after == _ILLEGAL][0]))
        raise IllegalFlightStep(f"{step.name} is not a step of {bad.name}")
    return after
