"""Subscription machines of one subscription, negotiated and not, for unit tests."""

from __future__ import annotations

from mama_spark.tango.client import subscription_states
from mama_spark.tango.client.keep_alive import Timeouts
from mama_spark.tango.client.subscription_machine import SubscriptionMachine
from mama_spark.tango.client.subscription_states import Action, Negotiate, NegotiatedChannel, SubscriptionRequest
from mama_spark.tango.idl.negotiation import EndpointPair
from mama_spark.tango.types import DevError, EventType, Severity

PAIR, OTHER = EndpointPair("tcp://h:1", "tcp://h:2"), EndpointPair("tcp://h:3", "tcp://h:4")
CHANNEL = "tango://h:1/dserver/ds/i"
HEARTBEATS = (f"{CHANNEL}.heartbeat", f"{CHANNEL}#dbase=no.heartbeat")
AWAY = (DevError("API_CantConnectToDevice", Severity.ERR, "away", "test"),)


def request(attribute: str = "x", event: EventType = EventType.CHANGE, read: bool = True) -> SubscriptionRequest:
    return SubscriptionRequest("tango://h:1/a/b/c", "a/b/c", attribute, event, read)


def negotiated(attribute: str = "x", pair: EndpointPair = PAIR) -> NegotiatedChannel:
    return NegotiatedChannel(f"tango://h:1/a/b/c/{attribute}.idl5_change", CHANNEL, pair)


def one(
    event: EventType = EventType.CHANGE, read: bool = True, timeouts: Timeouts | None = None
) -> tuple[SubscriptionMachine, int]:
    machine = SubscriptionMachine(timeouts)
    (id,), actions = machine.subscribe([request(event=event, read=read)])
    assert actions == [Negotiate((id,))]
    return machine, id


def connected(now: float = 0.0, timeouts: Timeouts | None = None) -> tuple[SubscriptionMachine, int]:
    machine, id = one(timeouts=timeouts)
    machine.on_negotiated(now, id, negotiated())
    return machine, id


def reasons(actions: list[Action]) -> list[str]:
    return [action.errors[0].reason for action in actions if isinstance(action, subscription_states.ReportError)]
