"""State machine of subscriptions under random sequences of events, compared with a model of its connections."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mama_spark.tango.client.subscription_machine import SubscriptionMachine
from mama_spark.tango.client.subscription_states import (
    TABLE,
    Action,
    ConfirmSubscription,
    Connect,
    Disconnect,
    MachineEvent,
    Negotiate,
    NegotiatedChannel,
    SubscribeTopic,
    SubscriptionRequest,
    SubscriptionState,
    UnsubscribeTopic,
)
from mama_spark.tango.idl.negotiation import EndpointPair
from mama_spark.tango.types import EventType

from tests.support.tango.subscription_machines import AWAY
from tests.support.tiers import examples


@dataclass
class ConsumerModel:
    """Model of the state of an event consumer that executes all actions."""

    calls: list[int] = field(default_factory=list)  # ids of negotiations in progress
    confirming: list[str] = field(default_factory=list)
    connected: dict[str, EndpointPair] = field(default_factory=dict)
    topics: dict[int, str] = field(default_factory=dict)

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Negotiate():
                    self.calls += action.ids
                case ConfirmSubscription():
                    assert action.channel not in self.confirming
                    self.confirming.append(action.channel)
                case Connect():
                    assert action.again or action.channel not in self.connected
                    self.connected[action.channel] = action.pair
                case Disconnect():
                    assert self.connected.pop(action.channel) == action.pair
                case SubscribeTopic():
                    assert action.id not in self.topics
                    self.topics[action.id] = action.topic
                case UnsubscribeTopic():
                    assert self.topics.pop(action.id) == action.topic


class SubscriptionSequences(RuleBasedStateMachine):
    """Random sequences of events: two servers start and stop, and two devices with three attributes each move between
    them. The model is an event consumer that executes all actions."""

    def __init__(self) -> None:
        super().__init__()
        self.machine, self.model, self.now = SubscriptionMachine(), ConsumerModel(), 0.0
        self.ids: list[int] = []
        self.requests: dict[int, SubscriptionRequest] = {}
        self.generation = {0: 0, 1: 0}
        self.server_of = {0: 0, 1: 1}

    def _agreement(self, id: int) -> NegotiatedChannel:
        found = self.requests[id]
        device, attribute = int(found.full_name), found.attribute
        server = self.server_of[device]
        n = 10 * server + self.generation[server]
        pair = EndpointPair(f"tcp://h:{n}", f"tcp://h:{n + 5}")
        topic = f"tango://h:1/a/b/{device}/{attribute}.change"
        return NegotiatedChannel(topic, f"tango://h:1/dserver/d/{server}", pair)

    @rule(device=st.sampled_from([0, 1]))
    def move(self, device: int) -> None:
        self.server_of[device] = 1 - self.server_of[device]

    @rule(server=st.sampled_from("01"), attribute=st.sampled_from("xyz"))
    def subscribe(self, server: str, attribute: str) -> None:
        request = SubscriptionRequest(server, f"a/b/{server}", attribute, EventType.CHANGE)
        ids, actions = self.machine.subscribe([request])
        self.requests[ids[0]] = request
        self.ids += ids
        self.model.do(actions)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.ids))
        self.model.do(self.machine.cancel(id))
        assert self.machine.state(id) is SubscriptionState.CANCELLED

    @precondition(lambda self: self.model.calls)
    @rule(data=st.data(), good=st.booleans())
    def answer(self, data: st.DataObject, good: bool) -> None:
        id = self.model.calls.pop(data.draw(st.integers(0, len(self.model.calls) - 1)))
        before = self.machine.state(id)
        if good:
            self.model.do(self.machine.on_negotiated(self.now, id, self._agreement(id)))
        else:
            self.model.do(self.machine.on_negotiation_failed(self.now, id, AWAY))
        step = MachineEvent.NEGOTIATED if good else MachineEvent.NEGOTIATION_FAILED
        assert self.machine.state(id) is TABLE[before][step]

    @precondition(lambda self: self.model.confirming)
    @rule(how=st.sampled_from(["good", "some", "away", "unknown", "refused"]))
    def confirm(self, how: str) -> None:
        channel = self.model.confirming.pop()
        if how in ("good", "some"):
            refused = dict.fromkeys(self.ids[::2], AWAY) if how == "some" else {}
            self.model.do(self.machine.on_confirmed(self.now, channel, refused))
        else:
            away, unknown = how == "away", how == "unknown"
            self.model.do(
                self.machine.on_confirmation_failed(self.now, channel, AWAY, unreachable=away, unsupported=unknown)
            )

    @rule(server=st.sampled_from("01"))
    def beat(self, server: str) -> None:
        self.model.do(self.machine.on_heartbeat(self.now, f"tango://h:1/dserver/d/{server}#dbase=no"))

    @rule(server=st.sampled_from("01"))
    def end_connection(self, server: str) -> None:
        self.model.do(self.machine.on_disconnected(self.now, f"tango://h:1/dserver/d/{server}"))

    @rule(server=st.sampled_from([0, 1]))
    def restart(self, server: int) -> None:
        self.generation[server] = 1 - self.generation[server]

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 11.0, 250.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.model.do(self.machine.tick(self.now))

    @rule()
    def wait_until_deadline(self) -> None:
        at = self.machine.next_deadline()
        if at < math.inf:
            self.now = max(self.now, at)
            self.model.do(self.machine.tick(self.now))
            assert self.machine.next_deadline() > self.now or self.model.confirming

    @invariant()
    def every_subscription_is_connected_negotiated_or_retried(self) -> None:
        """Each subscription is connected, or a call is in progress, or there is a deadline for a retry."""
        for id in self.ids:
            state = self.machine.state(id)
            listens = id in self.model.topics
            if state is SubscriptionState.CANCELLED:
                assert not listens
            elif state is SubscriptionState.CONNECTED:
                assert listens
            elif state in (SubscriptionState.NEGOTIATING, SubscriptionState.RECONNECTING):
                assert id in self.model.calls
            else:
                assert self.machine.next_deadline() < math.inf

    @invariant()
    def channels_are_connected_exactly_for_subscribed_topics(self) -> None:
        agreed = [self.machine.negotiated(id) for id in self.model.topics]
        assert self.model.connected.keys() == {found.channel for found in agreed if found is not None}
        assert None not in agreed


TestSubscriptionSequences = SubscriptionSequences.TestCase
TestSubscriptionSequences.settings = examples(150, stateful_step_count=40)
