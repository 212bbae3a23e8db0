"""State table of a subscription, and the actions of the state machine (TG-06, TG-30, TG-31, TG-36 to TG-43).

A subscription is always in one state of :data:`TABLE`.
:class:`~mama_spark.tango.client.subscription_machine.SubscriptionMachine` applies events to it and returns actions;
:class:`~mama_spark.tango.client.event_consumer.EventConsumer` executes these and reports their results. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from mama_spark.contracts.errors import MamaError

from ..idl.negotiation import Confirmation, EndpointPair
from ..topics import NO_DATABASE
from ..types import DevError, EventType
from .subscription_events import SubscriptionEventKind


class SubscriptionState(Enum):
    NEGOTIATING = "negotiating"
    CONNECTED = "connected"
    HEARTBEAT_LOST = "heartbeat lost"
    RECONNECTING = "reconnecting"
    POSTPONED = "postponed"
    CANCELLED = "cancelled"


class MachineEvent(Enum):
    NEGOTIATED = "the server answered with SUBSCRIPTION_INFO"
    NEGOTIATION_FAILED = "the server cannot be reached, or refused the subscription"
    HEARTBEAT = "a heartbeat arrived"
    HEARTBEAT_MISSED = "no heartbeat within the timeout, or the heartbeat connection ended"
    RETRY = "the retry delay has passed"
    CANCEL = "the user unsubscribed"


_CONNECTED, _CANCELLED = SubscriptionState.CONNECTED, SubscriptionState.CANCELLED
TABLE: dict[SubscriptionState, dict[MachineEvent, SubscriptionState]] = {
    SubscriptionState.NEGOTIATING: {
        MachineEvent.NEGOTIATED: _CONNECTED,
        MachineEvent.NEGOTIATION_FAILED: SubscriptionState.POSTPONED,
        MachineEvent.CANCEL: _CANCELLED,
    },
    SubscriptionState.POSTPONED: {MachineEvent.RETRY: SubscriptionState.NEGOTIATING, MachineEvent.CANCEL: _CANCELLED},
    SubscriptionState.CONNECTED: {
        MachineEvent.HEARTBEAT: _CONNECTED,
        MachineEvent.NEGOTIATED: _CONNECTED,  # servers without EventConfirmSubscription
        MachineEvent.NEGOTIATION_FAILED: _CONNECTED,
        MachineEvent.HEARTBEAT_MISSED: SubscriptionState.HEARTBEAT_LOST,
        MachineEvent.CANCEL: _CANCELLED,
    },
    SubscriptionState.HEARTBEAT_LOST: {
        MachineEvent.HEARTBEAT: _CONNECTED,
        MachineEvent.RETRY: SubscriptionState.RECONNECTING,
        MachineEvent.NEGOTIATED: SubscriptionState.HEARTBEAT_LOST,  # a reply to an earlier call
        MachineEvent.NEGOTIATION_FAILED: SubscriptionState.HEARTBEAT_LOST,
        MachineEvent.CANCEL: _CANCELLED,
    },
    SubscriptionState.RECONNECTING: {
        MachineEvent.NEGOTIATED: _CONNECTED,
        MachineEvent.NEGOTIATION_FAILED: SubscriptionState.HEARTBEAT_LOST,
        MachineEvent.HEARTBEAT: SubscriptionState.RECONNECTING,  # the result of the negotiation decides
        MachineEvent.CANCEL: _CANCELLED,
    },
    SubscriptionState.CANCELLED: dict.fromkeys(
        (MachineEvent.NEGOTIATED, MachineEvent.NEGOTIATION_FAILED, MachineEvent.CANCEL), _CANCELLED
    ),
}


#: Reasons of a server for the refusal of a subscription that may be accepted later: the attribute sends no such events
#: now, since it is not polled or has no criteria.
NO_SUCH_EVENTS = frozenset(
    ("API_AttributePollingNotStarted", "API_EventPropertiesNotSet", "API_AttributeNotDataReadyEnabled")
)


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """Request for a subscription.

    :ivar full_name: device name with host; requests with the same full name are negotiated together
    :ivar device: device name without host
    :ivar attribute: name of an attribute or a pipe; empty for interface changes
    :ivar read: read the value after the first negotiation
    """

    full_name: str
    device: str
    attribute: str
    event: EventType
    read: bool = True


@dataclass(frozen=True, slots=True)
class NegotiatedChannel:
    """The part of SUBSCRIPTION_INFO (TG-28) that a subscription needs.

    :ivar channel: heartbeat channel of the server
    :ivar idl: IDL version of the device
    :ivar hwm: high-water mark that the subscriber is to set
    """

    topic: str
    channel: str
    pair: EndpointPair
    idl: int = 5
    hwm: int = 0


class IllegalTransition(MamaError):
    """An event without a transition in :data:`TABLE` for this state: a defect of this package."""


@dataclass(frozen=True, slots=True)
class Negotiate:
    """Negotiate these subscriptions of one device with its server; report the result of each by
    :meth:`SubscriptionMachine.on_negotiated` or :meth:`SubscriptionMachine.on_negotiation_failed`."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to both endpoints and subscribe to the heartbeats.

    :ivar heartbeats: both spellings of the heartbeat topic
    :ivar again: the channel was connected before; replace its connection
    :ivar hwm: high-water mark that its server sent
    """

    channel: str
    pair: EndpointPair
    heartbeats: tuple[str, str]
    again: bool = False
    hwm: int = 0


@dataclass(frozen=True, slots=True)
class Disconnect:
    channel: str
    pair: EndpointPair
    heartbeats: tuple[str, str]


@dataclass(frozen=True, slots=True)
class SubscribeTopic:
    """Route the events of a topic to this subscription; the first one subscribes the ZeroMQ socket."""

    topic: str
    id: int


@dataclass(frozen=True, slots=True)
class UnsubscribeTopic:
    """Stop routing the events of a topic to this subscription; the last one unsubscribes the ZeroMQ socket."""

    topic: str
    id: int


@dataclass(frozen=True, slots=True)
class MarkRestarted:
    """Mark these topics: their counters start again, since the server is another process than before."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadValue:
    """Read the attribute and deliver its value as an event of this kind: INITIAL or RESUBSCRIPTION."""

    id: int
    kind: SubscriptionEventKind


@dataclass(frozen=True, slots=True)
class ReportError:
    id: int
    errors: tuple[DevError, ...]


@dataclass(frozen=True, slots=True)
class ReportAvailability:
    """Deliver ONLINE, or OFFLINE with its ``errors``, the cause first; ``again``: after OFFLINE with another cause."""

    id: int
    online: bool
    errors: tuple[DevError, ...] = field(default=(), compare=False)
    again: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ConfirmSubscription:
    """Confirm these subscriptions of one channel (TG-37), with one of ``confirmations`` for each of ``ids``; report by
    :meth:`SubscriptionMachine.on_confirmed` or :meth:`SubscriptionMachine.on_confirmation_failed`."""

    channel: str
    ids: tuple[int, ...]
    confirmations: tuple[Confirmation, ...]


Action = (
    Negotiate
    | Connect
    | Disconnect
    | SubscribeTopic
    | UnsubscribeTopic
    | MarkRestarted
    | ReadValue
    | ReportError
    | ReportAvailability
    | ConfirmSubscription
)


@dataclass(slots=True)
class Member:
    """One subscription as the state machine keeps it."""

    id: int
    request: SubscriptionRequest
    state: SubscriptionState = SubscriptionState.NEGOTIATING
    negotiated: NegotiatedChannel | None = None
    failures: int = 0  #: consecutive negotiations that failed
    next_retry: float = 0.0
    next_error: float = float("-inf")
    was_read: bool = False
    cause: str = ""  #: reason that was reported last for OFFLINE

    def apply(self, event: MachineEvent) -> SubscriptionState:
        """Apply an event; returns the state before it.

        :raises IllegalTransition: the table has no transition for this event in this state
        """
        before, after = self.state, TABLE[self.state].get(event)
        if after is None:
            raise IllegalTransition(f"{event.name} in {self.state.name}")
        self.state = after
        return before

    def recovered(self) -> None:
        """The next failure is the first one, and reported at once."""
        self.failures, self.next_error = 0, float("-inf")

    @property
    def confirmation(self) -> Confirmation:
        """The event name is that of the topic: without its prefix ``idl5_``, the server would send each event twice."""
        assert self.negotiated is not None
        event = self.negotiated.topic.rpartition(".")[2]
        return Confirmation(self.request.device, self.request.attribute, event)

    def report_error(self, now: float, errors: tuple[DevError, ...], period: float) -> Iterator[Action]:
        """The first error at once, further ones once per period (TG-41, TG-42)."""
        if now >= self.next_error:
            self.next_error = now + period
            yield ReportError(self.id, errors)

    def report_offline(self, errors: tuple[DevError, ...]) -> Iterator[Action]:
        """Report that the server is missing, again when its cause is another than before: a server that ended, that was
        stopped, or that cannot be reached."""
        cause = f"{errors[0].reason}: {errors[0].desc}" if errors else ""
        if cause != self.cause:
            again, self.cause = bool(self.cause), cause
            yield ReportAvailability(self.id, False, errors, again)

    def read_value(self) -> Iterator[Action]:
        """Read the first value, or the value after a reconnection. Nothing is read for data_ready events; periodic
        events need no value after a reconnection."""
        event, first = self.request.event, not self.was_read
        self.was_read = True
        if event is EventType.DATA_READY or (first and not self.request.read):
            return
        if first or event is not EventType.PERIODIC:
            kind = SubscriptionEventKind.INITIAL if first else SubscriptionEventKind.RESUBSCRIPTION
            yield ReadValue(self.id, kind)


@dataclass(slots=True)
class Channel:
    """One server as the state machine keeps it: its endpoints, its heartbeats and its subscriptions."""

    name: str
    pair: EndpointPair
    last_heartbeat: float
    next_check: float
    next_confirm: float
    heartbeats: tuple[str, str]
    stale: bool = False  #: heartbeats are missing: connect again after the next negotiation
    disconnected: bool = False  #: the heartbeat connection ended
    confirming: bool = False  #: a confirmation is in progress
    can_confirm: bool = True  #: the server has the command EventConfirmSubscription
    members: dict[int, Member] = field(default_factory=dict)
    failures: int = 0  #: consecutive attempts to reach the missing server
    next_attempt: float = 0.0  #: to reach the missing server, by one of its devices


def channel_key(channel: str) -> str:
    """Normalised name of a heartbeat channel: in lower case, without ``#dbase=no``."""
    return channel.lower().removesuffix(NO_DATABASE)
