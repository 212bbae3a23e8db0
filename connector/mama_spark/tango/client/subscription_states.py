"""Lives of subscriptions: their states, and what is to be done for them (TG-06, TG-30, TG-31, TG-36 to TG-43). Pure.

A subscription is in one state of :data:`TABLE`.
:class:`~mama_spark.tango.client.subscription_machine.SubscriptionMachine` decides, by what happened and what time it
    is, and answers with actions; the shell does them, and tells what came of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mama_spark.errors import MamaError

from ..idl.negotiation import Confirmation, EndpointPair
from ..types import DevError, EventType


class SubscriptionState(Enum):
    NEGOTIATING = "negotiating"
    CONNECTED = "connected"
    LATE = "heartbeat late"
    RECONNECTING = "reconnecting"
    POSTPONED = "postponed"
    CANCELLED = "cancelled"


class MachineEvent(Enum):
    AGREED = "the server answered with SUBSCRIPTION_INFO"
    FAILED = "no agreement: the server is away, or refuses"
    BEAT = "a heartbeat"
    MISSED = "no heartbeat for too long, or their connection ended"
    RETRY = "time to try again"
    CANCEL = "nobody wants it any more"


TABLE: dict[SubscriptionState, dict[MachineEvent, SubscriptionState]] = {
    SubscriptionState.NEGOTIATING: {
        MachineEvent.AGREED: SubscriptionState.CONNECTED,
        MachineEvent.FAILED: SubscriptionState.POSTPONED,
        MachineEvent.CANCEL: SubscriptionState.CANCELLED,
    },
    SubscriptionState.POSTPONED: {
        MachineEvent.RETRY: SubscriptionState.NEGOTIATING,
        MachineEvent.CANCEL: SubscriptionState.CANCELLED,
    },
    SubscriptionState.CONNECTED: {
        MachineEvent.BEAT: SubscriptionState.CONNECTED,
        MachineEvent.AGREED: SubscriptionState.CONNECTED,  # servers that know no confirmation are asked again instead
        MachineEvent.FAILED: SubscriptionState.CONNECTED,
        MachineEvent.MISSED: SubscriptionState.LATE,
        MachineEvent.CANCEL: SubscriptionState.CANCELLED,
    },
    SubscriptionState.LATE: {
        MachineEvent.BEAT: SubscriptionState.CONNECTED,
        MachineEvent.RETRY: SubscriptionState.RECONNECTING,
        MachineEvent.AGREED: SubscriptionState.LATE,  # of before the heartbeat was missed
        MachineEvent.FAILED: SubscriptionState.LATE,
        MachineEvent.CANCEL: SubscriptionState.CANCELLED,
    },
    SubscriptionState.RECONNECTING: {
        MachineEvent.AGREED: SubscriptionState.CONNECTED,
        MachineEvent.FAILED: SubscriptionState.LATE,
        MachineEvent.BEAT: SubscriptionState.RECONNECTING,  # the answer decides
        MachineEvent.CANCEL: SubscriptionState.CANCELLED,
    },
    SubscriptionState.CANCELLED: dict.fromkeys(
        (MachineEvent.AGREED, MachineEvent.FAILED, MachineEvent.CANCEL), SubscriptionState.CANCELLED
    ),
}


class ReadReason(Enum):
    """Which values are asked for, besides events."""

    INITIAL = "initial"
    RESUBSCRIPTION = "resubscription"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. The defaults are those of Tango's own clients (RFC 12, TG-36, TG-37, TG-41).

    :ivar check: between looks at the heartbeats; errors of servers that are away come no more often
    :ivar late: a heartbeat older than this was missed; servers send one every 9 s
    :ivar confirm: between confirmations; servers forget after 600 s
    :ivar retry: between the first tries to reach a server; doubles up to ``retry_max``
    """

    check: float = 10.0
    late: float = 10.0
    confirm: float = 200.0
    retry: float = 1.0
    retry_max: float = 10.0


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """What a subscription is for.

    :ivar place: of the device; those of one place are negotiated together
    :ivar attribute: or pipe; empty for changes of the interface
    :ivar read: ask for the value at the beginning
    """

    place: str
    device: str
    attribute: str
    event: EventType
    read: bool = True


@dataclass(frozen=True, slots=True)
class NegotiatedChannel:
    """What of SUBSCRIPTION_INFO matters from here on.

    :ivar pair: the endpoints that were chosen
    """

    topic: str
    channel: str
    pair: EndpointPair


# --- what is to be done ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Negotiate:
    """Ask the server of one device about these; :meth:`Lives.agreed` or :meth:`Lives.failed` for each."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to both endpoints, and listen to the heartbeats.

    :ivar again: of a channel that was connected; where a connection to these endpoints is, it is made anew
    """

    channel: str
    pair: EndpointPair
    heartbeats: tuple[str, str]
    again: bool = False


@dataclass(frozen=True, slots=True)
class Disconnect:
    channel: str
    pair: EndpointPair
    heartbeats: tuple[str, str]


@dataclass(frozen=True, slots=True)
class SubscribeTopic:
    """A topic is wanted by this subscription; the first one makes it a subscription of the socket."""

    topic: str
    id: int


@dataclass(frozen=True, slots=True)
class UnsubscribeTopic:
    topic: str
    id: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """The server is another process than before: counters begin anew."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadValue:
    """Ask for the value, and deliver it as what it is."""

    id: int
    why: ReadReason


@dataclass(frozen=True, slots=True)
class ReportError:
    """Deliver an error."""

    id: int
    errors: tuple[DevError, ...]


@dataclass(frozen=True, slots=True)
class ReportAvailability:
    """The server of this subscription can be heard, or cannot any more."""

    id: int
    online: bool


@dataclass(frozen=True, slots=True)
class ConfirmSubscription:
    """Say that these go on; :meth:`Lives.confirmed` or :meth:`Lives.unconfirmed`."""

    channel: str
    ids: tuple[int, ...]
    what: tuple[Confirmation, ...]


Action = (
    Negotiate
    | Connect
    | Disconnect
    | SubscribeTopic
    | UnsubscribeTopic
    | Restarted
    | ReadValue
    | ReportError
    | ReportAvailability
    | ConfirmSubscription
)


class IllegalTransition(MamaError):
    """A step that the table does not have: a fault of ours."""
