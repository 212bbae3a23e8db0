"""States of a publisher and their transitions as a table, and the events that transports and topics report. Pure.

A publisher is in exactly one :class:`PublisherState` (PE-48..PE-54). :data:`TABLE` holds every legal step; any other
raises :class:`IllegalPublisherStep`. LIVE ends by one of two paths, because the bridge's onDestroy ends a publisher
(PE-55): it is called *during* the bridge's destroy, or later. Errors never change the state.

Events are stored and compared by name, never by number: the numbers of the specification's text and those of the
release collide.
"""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum

from ..contracts.errors import PublishError
from .messages.status import Status


class PublisherState(IntEnum):
    UNKNOWN = 0  #: not used
    CREATING = 1  #: before the bridge's create
    LIVE = 2  #: create and set_user_callbacks of the bridge succeeded; before on_create is called
    DESTROYING = 3  #: from the start of destroy; also during on_destroy
    DESTROYED_BRIDGE = 4  #: the bridge called onDestroy during its destroy
    DESTROYING_WAIT_BRIDGE = 5  #: the bridge's destroy returned before it called onDestroy
    DESTROYED = 6  #: the object is unusable


class PublisherStep(Enum):
    CREATED = "created"  #: the bridge created its publisher and took the callbacks
    DESTROY = "destroy"  #: the application, or the destroyed transport, destroys it
    BRIDGE_DESTROYED = "bridge_destroyed"  #: the bridge's onDestroy
    BRIDGE_RETURNED = "bridge_returned"  #: the bridge's destroy returned before it called onDestroy
    FREED = "freed"  #: the object is freed


class IllegalPublisherStep(AssertionError):
    """A step that the publisher's state does not allow: a defect of this package."""


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
    PUBLISH_ERROR = "PUBLISH_ERROR"  #: any other error
    PUBLISH_ERROR_NOT_ENTITLED = "PUBLISH_ERROR_NOT_ENTITLED"
    PUBLISH_ERROR_BAD_SYMBOL = "PUBLISH_ERROR_BAD_SYMBOL"


class TransportEvent(StrEnum):
    """``MAMA_TRANSPORT_*``: events of the connection."""

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
    """The MAMA status of a bridge's error; PLATFORM where only the middleware's own code is specific (PE-15)."""
    return _STATUS_OF.get(error.status, Status.PLATFORM)
