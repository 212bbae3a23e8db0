"""The state machine of subscriptions without a socket: what follows from what, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mama_spark.tango.client.subscription_machine import SubscriptionMachine
from mama_spark.tango.client.subscription_states import (
    TABLE,
    Action,
    ConfirmSubscription,
    Connect,
    Disconnect,
    IllegalTransition,
    MachineEvent,
    MarkRestarted,
    Negotiate,
    NegotiatedChannel,
    ReadReason,
    ReadValue,
    ReportAvailability,
    ReportError,
    SubscribeTopic,
    SubscriptionRequest,
    SubscriptionState,
    Timeouts,
    UnsubscribeTopic,
)
from mama_spark.tango.idl.negotiation import Confirmation, EndpointPair
from mama_spark.tango.types import DevError, EventType, Severity

from tests.support.examples import examples

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
    return [action.errors[0].reason for action in actions if isinstance(action, ReportError)]


# --- the table ---------------------------------------------------------------------------------------------


def test_every_state_has_a_row_and_every_one_can_be_cancelled() -> None:
    assert set(TABLE) == set(SubscriptionState)
    for steps in TABLE.values():
        assert steps[MachineEvent.CANCEL] is SubscriptionState.CANCELLED
    assert set(TABLE[SubscriptionState.CANCELLED].values()) == {SubscriptionState.CANCELLED}


def test_every_state_can_be_reached() -> None:
    reached, front = {SubscriptionState.NEGOTIATING}, [SubscriptionState.NEGOTIATING]
    while front:
        for after in TABLE[front.pop()].values():
            if after not in reached:
                reached.add(after)
                front.append(after)
    assert reached == set(SubscriptionState)


def test_a_step_that_the_table_does_not_have_raises() -> None:
    machine, id = one()
    machine.on_negotiation_failed(0.0, id, AWAY)
    with pytest.raises(IllegalTransition, match="NEGOTIATED in POSTPONED"):
        machine.on_negotiated(0.0, id, negotiated())


@pytest.mark.spec("TG-36", "TG-37")
def test_the_defaults_are_those_of_the_specification() -> None:
    timeouts = Timeouts()
    assert (timeouts.check, timeouts.heartbeat, timeouts.confirm) == (10.0, 10.0, 200.0)


# --- beginning and end -------------------------------------------------------------------------------------


@pytest.mark.spec("TG-29", "TG-31", "TG-32")
def test_an_agreement_connects_listens_and_reads_the_first_value() -> None:
    """Two channels, both spellings of the heartbeat."""
    machine, id = one()
    assert machine.on_negotiated(0.0, id, negotiated()) == [
        Connect(CHANNEL, PAIR, HEARTBEATS),
        SubscribeTopic(negotiated().topic, id),
        ReportAvailability(id, True),
        ReadValue(id, ReadReason.INITIAL),
    ]
    assert machine.state(id) is SubscriptionState.CONNECTED


def test_a_second_subscription_at_the_same_server_uses_its_connections() -> None:
    machine, _ = connected()
    (id,), _ = machine.subscribe([request("y")])
    actions = machine.on_negotiated(1.0, id, negotiated("y"))
    assert actions == [
        SubscribeTopic(negotiated("y").topic, id),
        ReportAvailability(id, True),
        ReadValue(id, ReadReason.INITIAL),
    ]


@pytest.mark.parametrize("event", list(EventType))
def test_which_events_have_a_first_value_and_one_after_a_reconnection(event: EventType) -> None:
    machine, id = one(event)
    first = [a for a in machine.on_negotiated(0.0, id, negotiated()) if isinstance(a, ReadValue)]
    machine.tick(11.0)
    again = [a for a in machine.on_negotiated(11.0, id, negotiated()) if isinstance(a, ReadValue)]
    assert bool(first) is (event is not EventType.DATA_READY)
    assert bool(again) is (event not in (EventType.DATA_READY, EventType.PERIODIC))


def test_who_wants_no_first_value_gets_one_after_a_reconnection_all_the_same() -> None:
    machine, id = one(read=False)
    assert not [a for a in machine.on_negotiated(0.0, id, negotiated()) if isinstance(a, ReadValue)]
    machine.tick(11.0)
    assert ReadValue(id, ReadReason.RESUBSCRIPTION) in machine.on_negotiated(11.0, id, negotiated())


@pytest.mark.spec("TG-38", "TG-39")
def test_the_last_one_to_cancel_ends_listening_and_the_connections() -> None:
    """There is no message for it."""
    machine, first = connected()
    (second,), _ = machine.subscribe([request()])
    machine.on_negotiated(0.0, second, negotiated())
    assert machine.cancel(first) == [UnsubscribeTopic(negotiated().topic, first)]
    assert machine.cancel(second) == [
        UnsubscribeTopic(negotiated().topic, second),
        Disconnect(CHANNEL, PAIR, HEARTBEATS),
    ]
    assert machine.cancel(second) == []
    assert (len(machine), machine.next_deadline(), machine.state(second)) == (0, math.inf, SubscriptionState.CANCELLED)


def test_what_was_cancelled_before_it_was_connected_changes_nothing_later() -> None:
    machine, id = one()
    assert machine.cancel(id) == []
    assert machine.on_negotiated(1.0, id, negotiated()) == []
    assert machine.on_negotiation_failed(1.0, id, AWAY) == []
    assert machine.tick(1000.0) == []


# --- servers that are away ---------------------------------------------------------------------------------


@pytest.mark.spec("TG-30", "TG-42")
def test_a_server_that_is_away_is_tried_for_ever_with_a_back_off_and_an_error_each_period() -> None:
    machine, id = one()
    errors = machine.on_negotiation_failed(0.0, id, AWAY)
    assert reasons(errors) == ["API_CantConnectToDevice"]
    tries, reported, now = [], [], 0.0
    while now < 100:
        now = machine.next_deadline()
        assert machine.tick(now) == [Negotiate((id,))]
        tries.append(now)
        reported += [now for _ in reasons(machine.on_negotiation_failed(now, id, AWAY))]
        assert machine.state(id) is SubscriptionState.POSTPONED
    assert tries[:6] == [1, 3, 7, 15, 25, 35]
    assert reported[:3] == [15, 25, 35]
    now = machine.next_deadline()
    machine.tick(now)
    machine.on_negotiated(now, id, negotiated())
    assert machine.state(id) is SubscriptionState.CONNECTED


def test_attributes_of_one_device_are_negotiated_together() -> None:
    machine = SubscriptionMachine()
    other = SubscriptionRequest("tango://h:1/a/b/d", "a/b/d", "z", EventType.CHANGE)
    ids, actions = machine.subscribe([request("x"), other, request("y")])
    assert actions == [Negotiate((ids[0], ids[2])), Negotiate((ids[1],))]


# --- heartbeats --------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-36")
def test_heartbeats_in_time_keep_it_connected() -> None:
    machine, id = connected()
    for now in range(9, 190, 9):
        assert machine.on_heartbeat(float(now), CHANNEL) == []
        assert machine.tick(float(now)) == []
    assert machine.state(id) is SubscriptionState.CONNECTED


def test_the_heartbeat_of_either_spelling_counts() -> None:
    machine, id = connected()
    machine.on_heartbeat(9.0, CHANNEL.upper() + "#dbase=no")
    machine.tick(10.0)
    assert machine.state(id) is SubscriptionState.CONNECTED


@pytest.mark.spec("TG-41")
def test_a_missed_heartbeat_is_told_and_the_server_asked_again() -> None:
    machine, id = connected()
    assert machine.tick(10.0) == []  # not older than 10 s
    actions = machine.tick(20.0)
    assert actions[0] == ReportAvailability(id, False)
    assert reasons(actions) == ["API_EventTimeout"]
    assert actions[-1] == Negotiate((id,))
    assert machine.state(id) is SubscriptionState.RECONNECTING


@pytest.mark.spec("TG-42")
def test_as_long_as_it_is_away_an_error_comes_with_each_check() -> None:
    machine, id = connected()
    reported, now = [], 0.0
    while now < 60:
        now = machine.next_deadline()
        actions = machine.tick(now)
        reported += [(now, reason) for reason in reasons(actions)]
        for action in actions:
            if isinstance(action, Negotiate):
                assert reasons(machine.on_negotiation_failed(now, id, AWAY)) == []
    assert reported == [(now, "API_EventTimeout") for now in (20.0, 30.0, 40.0, 50.0, 60.0)]


def test_a_reconnection_makes_the_connections_anew_and_reads_the_value() -> None:
    machine, id = connected()
    machine.tick(20.0)
    assert machine.on_negotiated(21.0, id, negotiated()) == [
        Connect(CHANNEL, PAIR, HEARTBEATS, True),
        ReportAvailability(id, True),
        ReadValue(id, ReadReason.RESUBSCRIPTION),
    ]
    assert machine.tick(30.0) == []  # its heartbeat counts from here


def test_other_endpoints_are_another_process_whose_counters_begin_anew() -> None:
    machine, id = connected()
    machine.tick(20.0)
    assert machine.on_negotiated(21.0, id, negotiated(pair=OTHER))[:3] == [
        Disconnect(CHANNEL, PAIR, HEARTBEATS),
        MarkRestarted((negotiated().topic,)),
        Connect(CHANNEL, OTHER, HEARTBEATS, True),
    ]


def test_a_server_that_was_only_stopped_is_connected_by_its_heartbeat_and_confirmed_at_once() -> None:
    machine, id = connected()
    machine.tick(20.0)
    machine.on_negotiation_failed(23.0, id, AWAY)
    assert machine.state(id) is SubscriptionState.HEARTBEAT_LOST
    assert machine.on_heartbeat(23.5, CHANNEL) == [ReportAvailability(id, True)]
    assert machine.state(id) is SubscriptionState.CONNECTED
    assert [type(action) for action in machine.tick(23.5)] == [ConfirmSubscription]


def test_a_heartbeat_does_not_connect_what_the_new_server_does_not_know() -> None:
    machine, first = connected()
    (second,), _ = machine.subscribe([request("y")])
    machine.on_negotiated(0.0, second, negotiated("y"))
    machine.tick(20.0)
    machine.on_negotiated(21.0, first, negotiated(pair=OTHER))
    assert (
        reasons(machine.on_negotiation_failed(21.0, second, AWAY)) == []
    )  # reported by the missing heartbeat a moment ago
    assert machine.on_heartbeat(22.0, CHANNEL) == []
    assert [machine.state(id) for id in (first, second)] == [
        SubscriptionState.CONNECTED,
        SubscriptionState.HEARTBEAT_LOST,
    ]
    assert machine.tick(22.0) == [Negotiate((second,))]
    machine.on_heartbeat(30.0, CHANNEL)
    assert reasons(machine.on_negotiation_failed(31.0, second, AWAY)) == ["API_CantConnectToDevice"]


@pytest.mark.spec("TG-46")
def test_a_device_that_is_found_at_another_server_leaves_the_first_one_and_its_counters() -> None:
    """It is reported once, however many listen"""
    machine, first = connected()
    (second,), _ = machine.subscribe([request()])
    machine.on_negotiated(0.0, second, negotiated())
    machine.tick(20.0)
    moved = NegotiatedChannel(negotiated().topic, "tango://h:1/dserver/ds/j", OTHER)
    kinds = [type(action) for action in machine.on_negotiated(21.0, first, moved)]
    assert kinds == [MarkRestarted, Connect, ReportAvailability, ReadValue]
    assert [type(action) for action in machine.on_negotiated(21.0, second, moved)] == [
        Disconnect,
        ReportAvailability,
        ReadValue,
    ]
    assert machine.on_heartbeat(22.0, CHANNEL) == []
    assert [type(action) for action in [*machine.cancel(first), *machine.cancel(second)]] == [
        UnsubscribeTopic, UnsubscribeTopic, Disconnect,
    ]  # fmt: skip


def test_a_server_that_names_another_topic_is_listened_to_there() -> None:
    machine, id = connected()
    machine.tick(20.0)
    kinds = [type(action) for action in machine.on_negotiated(21.0, id, negotiated("y", OTHER))]
    assert kinds == [UnsubscribeTopic, Disconnect, Connect, SubscribeTopic, ReportAvailability, ReadValue]


@pytest.mark.spec("TG-41")
def test_an_ended_connection_is_a_missed_heartbeat_at_once() -> None:
    machine, id = connected()
    actions = machine.on_disconnected(1.0, CHANNEL)
    assert actions[0] == ReportAvailability(id, False)
    assert reasons(actions) == ["API_EventTimeout"]
    assert machine.on_disconnected(1.0, CHANNEL) == machine.on_disconnected(1.0, "other") == []
    assert machine.tick(1.0) == [Negotiate((id,))]
    machine.on_negotiation_failed(1.0, id, AWAY)
    assert machine.on_heartbeat(1.5, CHANNEL) == []  # of before
    assert machine.state(id) is SubscriptionState.HEARTBEAT_LOST
    assert reasons(machine.tick(11.0)) == ["API_EventTimeout"]
    assert Connect(CHANNEL, PAIR, HEARTBEATS, True) in machine.on_negotiated(12.0, id, negotiated())
    assert machine.tick(21.0) == []


def test_the_heartbeat_of_an_unknown_channel_is_nothing() -> None:
    machine, _ = connected()
    assert machine.on_heartbeat(1.0, "tango://h:1/dserver/other/i") == []
    assert (
        machine.on_confirmed(1.0, "other")
        == machine.on_confirmation_failed(1.0, "other", AWAY, unreachable=True, unsupported=False)
        == []
    )


# --- confirmation ------------------------------------------------------------------------------------------


def alive(machine: SubscriptionMachine, start: int, end: int) -> list[tuple[float, Action]]:
    """Heartbeats each 9 s; what was to be done."""
    done: list[tuple[float, Action]] = []
    for now in range(start, end):
        if now % 9 == 0:
            machine.on_heartbeat(float(now), CHANNEL)
        done += [(float(now), action) for action in machine.tick(float(now))]
    return done


@pytest.mark.spec("TG-37")
def test_the_whole_channel_is_confirmed_each_200_seconds_with_the_names_of_its_topics() -> None:
    machine, first = connected()
    (second,), _ = machine.subscribe([request("y")])
    machine.on_negotiated(0.0, second, negotiated("y"))
    what = (Confirmation("a/b/c", "x", "idl5_change"), Confirmation("a/b/c", "y", "idl5_change"))
    assert alive(machine, 1, 300) == [(200.0, ConfirmSubscription(CHANNEL, (first, second), what))]
    machine.on_confirmed(300.0, CHANNEL)
    assert [now for now, _ in alive(machine, 300, 502)] == [500.0]


@pytest.mark.spec("TG-37")
def test_a_failed_confirmation_is_told_and_tried_again_with_the_next_check() -> None:
    """Servers that reject it silently would end the events after 600 s."""
    machine, id = connected()
    alive(machine, 1, 201)
    assert machine.on_confirmation_failed(201.0, CHANNEL, AWAY, unreachable=False, unsupported=False) == [
        ReportError(id, AWAY)
    ]
    assert [now for now, _ in alive(machine, 201, 213)] == [211.0]
    assert machine.on_confirmation_failed(212.0, CHANNEL, AWAY, unreachable=True, unsupported=False) == []


@pytest.mark.spec("TG-37")
def test_what_a_server_refuses_to_confirm_is_told_alone_and_tried_again_with_the_next_check() -> None:
    machine, first = connected()
    (second,), _ = machine.subscribe([request("y")])
    machine.on_negotiated(0.0, second, negotiated("y"))
    alive(machine, 1, 201)
    assert machine.on_confirmed(201.0, CHANNEL, {second: AWAY, 99: AWAY}) == [ReportError(second, AWAY)]
    assert [now for now, _ in alive(machine, 201, 213)] == [211.0]
    assert machine.on_confirmed(212.0, CHANNEL) == []
    assert [now for now, _ in alive(machine, 213, 413)] == [412.0]
    assert machine.state(first) is machine.state(second) is SubscriptionState.CONNECTED


def test_a_server_without_the_command_is_negotiated_with_again_and_nothing_is_read() -> None:
    machine, id = connected()
    alive(machine, 1, 201)
    machine.on_confirmation_failed(201.0, CHANNEL, AWAY, unreachable=False, unsupported=True)
    assert alive(machine, 201, 300) == [(201.0, Negotiate((id,)))]
    assert machine.on_negotiated(300.0, id, negotiated()) == []
    assert machine.on_negotiation_failed(300.0, id, AWAY) == [ReportError(id, AWAY)]
    assert machine.state(id) is SubscriptionState.CONNECTED
    assert alive(machine, 300, 402) == [(401.0, Negotiate((id,)))]


def test_repr_tells_the_states() -> None:
    machine, _ = connected()
    machine.subscribe([request("y")])
    assert repr(machine) == "<SubscriptionMachine 1 negotiating, 1 connected, 1 channels>"
    assert repr(SubscriptionMachine()) == "<SubscriptionMachine none, 0 channels>"


# --- whatever happens --------------------------------------------------------------------------------------


@dataclass
class World:
    """What a shell that obeys would have."""

    calls: list[int] = field(default_factory=list)  # negotiations under way
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


class AnyLife(RuleBasedStateMachine):
    """Servers that come and go as they like, and two devices with three attributes each that move from one to another;
    the model is a shell that obeys."""

    def __init__(self) -> None:
        super().__init__()
        self.machine, self.world, self.now = SubscriptionMachine(), World(), 0.0
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
        return NegotiatedChannel(
            f"tango://h:1/a/b/{device}/{attribute}.change", f"tango://h:1/dserver/d/{server}", pair
        )

    @rule(device=st.sampled_from([0, 1]))
    def move(self, device: int) -> None:
        self.server_of[device] = 1 - self.server_of[device]

    @rule(server=st.sampled_from("01"), attribute=st.sampled_from("xyz"))
    def subscribe(self, server: str, attribute: str) -> None:
        request = SubscriptionRequest(server, f"a/b/{server}", attribute, EventType.CHANGE)
        ids, actions = self.machine.subscribe([request])
        self.requests[ids[0]] = request
        self.ids += ids
        self.world.do(actions)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.ids))
        self.world.do(self.machine.cancel(id))
        assert self.machine.state(id) is SubscriptionState.CANCELLED

    @precondition(lambda self: self.world.calls)
    @rule(data=st.data(), good=st.booleans())
    def answer(self, data: st.DataObject, good: bool) -> None:
        id = self.world.calls.pop(data.draw(st.integers(0, len(self.world.calls) - 1)))
        before = self.machine.state(id)
        if good:
            self.world.do(self.machine.on_negotiated(self.now, id, self._agreement(id)))
        else:
            self.world.do(self.machine.on_negotiation_failed(self.now, id, AWAY))
        assert (
            self.machine.state(id)
            is TABLE[before][MachineEvent.NEGOTIATED if good else MachineEvent.NEGOTIATION_FAILED]
        )

    @precondition(lambda self: self.world.confirming)
    @rule(how=st.sampled_from(["good", "some", "away", "unknown", "refused"]))
    def confirm(self, how: str) -> None:
        channel = self.world.confirming.pop()
        if how == "good":
            self.world.do(self.machine.on_confirmed(self.now, channel))
        elif how == "some":
            self.world.do(self.machine.on_confirmed(self.now, channel, dict.fromkeys(self.ids[::2], AWAY)))
        else:
            unreachable, unsupported = how == "away", how == "unknown"
            found = self.machine.on_confirmation_failed(
                self.now, channel, AWAY, unreachable=unreachable, unsupported=unsupported
            )
            self.world.do(found)

    @rule(server=st.sampled_from("01"))
    def beat(self, server: str) -> None:
        self.world.do(self.machine.on_heartbeat(self.now, f"tango://h:1/dserver/d/{server}#dbase=no"))

    @rule(server=st.sampled_from("01"))
    def end_connection(self, server: str) -> None:
        self.world.do(self.machine.on_disconnected(self.now, f"tango://h:1/dserver/d/{server}"))

    @rule(server=st.sampled_from([0, 1]))
    def restart(self, server: int) -> None:
        self.generation[server] = 1 - self.generation[server]

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 11.0, 250.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.world.do(self.machine.tick(self.now))

    @rule()
    def sleep_as_told(self) -> None:
        at = self.machine.next_deadline()
        if at < math.inf:
            self.now = max(self.now, at)
            self.world.do(self.machine.tick(self.now))
            assert self.machine.next_deadline() > self.now or self.world.confirming

    @invariant()
    def who_lives_is_heard_or_asked_for(self) -> None:
        """No subscription is forgotten: it is connected, or a call is under way, or there is a time to try again."""
        for id in self.ids:
            state = self.machine.state(id)
            listens = id in self.world.topics
            if state is SubscriptionState.CANCELLED:
                assert not listens
            elif state is SubscriptionState.CONNECTED:
                assert listens
            elif state in (SubscriptionState.NEGOTIATING, SubscriptionState.RECONNECTING):
                assert id in self.world.calls
            else:
                assert self.machine.next_deadline() < math.inf

    @invariant()
    def connections_are_there_for_who_listens_and_for_nobody_else(self) -> None:
        agreed = [self.machine.negotiated(id) for id in self.world.topics]
        assert self.world.connected.keys() == {found.channel for found in agreed if found is not None}
        assert None not in agreed


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = examples(150, stateful_step_count=40)
