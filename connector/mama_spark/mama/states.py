"""States of a publisher and their transitions as a table, and the events that transports and topics report.

A publisher is in exactly one :class:`PublisherState` (PE-48..PE-54); :data:`TABLE` holds every legal step and anything
else raises :class:`IllegalPublisherStep`. Two paths lead out of LIVE, because a publisher is gone only when the bridge
has said so (PE-55): the bridge's onDestroy comes *during* its destroy, or later. Errors are no steps: they never change
the state.

Events are stored and compared by their names, never by numbers: those of the specification's text and those that were
released collide.
"""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum

from ..errors import PublishError
from .messages.status import Status


class PublisherState(IntEnum):
    UNKNOWN = 0  #: never entered by code
    CREATING = 1  #: before the bridge's create
    LIVE = 2  #: create and set_user_callbacks of the bridge succeeded; before on_create is called
    DESTROYING = 3  #: first thing in destroy; also the state that on_destroy sees
    DESTROYED_BRIDGE = 4  #: the bridge's onDestroy came during destroy
    DESTROYING_WAIT_BRIDGE = 5  #: the bridge's destroy returned, its onDestroy has not come
    DESTROYED = 6  #: the object is unusable


class PublisherStep(Enum):
    CREATED = "created"  #: the bridge created its publisher and took the callbacks
    DESTROY = "destroy"  #: the application, or the transport that goes down, destroys it
    BRIDGE_DESTROYED = "bridge_destroyed"  #: the bridge's onDestroy
    BRIDGE_RETURNED = "bridge_returned"  #: the bridge's destroy returned and its onDestroy has not come
    FREED = "freed"  #: the last of the clean-up


class IllegalPublisherStep(AssertionError):
    """A publisher was asked to do what its state does not allow: a defect of this package."""


TABLE: dict[PublisherState, dict[PublisherStep, PublisherState]] = {
    PublisherState.UNKNOWN: {},
    PublisherState.CREATING: {PublisherStep.CREATED: PublisherState.LIVE},
    PublisherState.LIVE: {PublisherStep.DESTROY: PublisherState.DESTROYING},
    PublisherState.DESTROYING: {
        PublisherStep.BRIDGE_DESTROYED: PublisherState.DESTROYED_BRIDGE,
        PublisherStep.BRIDGE_RETURNED: PublisherState.DESTROYING_WAIT_BRIDGE,
    },
    PublisherState.DESTROYED_BRIDGE: {PublisherStep.FREED: PublisherState.DESTROYED},
    PublisherState.DESTROYING_WAIT_BRIDGE: {PublisherStep.BRIDGE_DESTROYED: PublisherState.DESTROYED},
    PublisherState.DESTROYED: {},
}


def step(state: PublisherState, event: PublisherStep) -> PublisherState:
    """The state after ``event``.

    :raises IllegalPublisherStep: if the table has no such step
    """
    try:
        return TABLE[state][event]
    except KeyError:
        raise IllegalPublisherStep(f"{event.value} is not a step of {state.name}") from None


def string_for_state(state: int) -> str:
    """Name of a state as ``mamaPublisher_stringForState`` gives it (PE-35)."""
    try:
        return PublisherState(state).name
    except ValueError:
        return "State not recognised"


class TransportTopicEvent(StrEnum):
    """``MAMA_TRANSPORT_TOPIC_*`` (PE-17)."""

    SUBSCRIBED = "SUBSCRIBED"
    UNSUBSCRIBED = "UNSUBSCRIBED"
    PUBLISH_CREATE = "PUBLISH_CREATE"
    PUBLISH_DESTROY = "PUBLISH_DESTROY"
    PUBLISH_ERROR = "PUBLISH_ERROR"  #: every error without an event of its own
    PUBLISH_ERROR_NOT_ENTITLED = "PUBLISH_ERROR_NOT_ENTITLED"
    PUBLISH_ERROR_BAD_SYMBOL = "PUBLISH_ERROR_BAD_SYMBOL"


class TransportEvent(StrEnum):
    """``MAMA_TRANSPORT_*``: what happened to the connection."""

    CONNECT = "CONNECT"
    CONNECT_FAILED = "CONNECT_FAILED"
    RECONNECT = "RECONNECT"
    DISCONNECT = "DISCONNECT"
    ACCEPT = "ACCEPT"
    ACCEPT_RECONNECT = "ACCEPT_RECONNECT"
    PUBLISHER_DISCONNECT = "PUBLISHER_DISCONNECT"
    QUALITY = "QUALITY"
    NAMING_SERVICE_CONNECT = "NAMING_SERVICE_CONNECT"
    NAMING_SERVICE_DISCONNECT = "NAMING_SERVICE_DISCONNECT"
    WRITE_QUEUE_HIGH_WATER_MARK = "WRITE_QUEUE_HIGH_WATER_MARK"
    WRITE_QUEUE_LOW_WATER_MARK = "WRITE_QUEUE_LOW_WATER_MARK"


_TOPIC_EVENTS: dict[int, TransportTopicEvent] = {
    Status.NOT_ENTITLED: TransportTopicEvent.PUBLISH_ERROR_NOT_ENTITLED,
    Status.BAD_SYMBOL: TransportTopicEvent.PUBLISH_ERROR_BAD_SYMBOL,
}


def topic_event_for(status: int) -> TransportTopicEvent:
    """The topic event that reports an error of this status."""
    return _TOPIC_EVENTS.get(status, TransportTopicEvent.PUBLISH_ERROR)


_STATUS_OF = {
    "NOT_ENTITLED": Status.NOT_ENTITLED,
    "PUBLISH_ERROR_NOT_ENTITLED": Status.NOT_ENTITLED,
    "BAD_SYMBOL": Status.BAD_SYMBOL,
    "PUBLISH_ERROR_BAD_SYMBOL": Status.BAD_SYMBOL,
    "INVALID_ARG": Status.INVALID_ARG,
    "TIMEOUT": Status.TIMEOUT,
}


def status_of(error: PublishError) -> Status:
    """The MAMA status of what a bridge reports; PLATFORM where the middleware's own code says more (PE-15)."""
    return _STATUS_OF.get(error.status, Status.PLATFORM)
