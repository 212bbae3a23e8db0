"""The client's states: every event in every state is a row of the table, and nothing that a broker says raises."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ClientClosed, Unavailable
from mama_spark.malamute.client.calls import Call, NoStream
from mama_spark.malamute.client.state_machine import ClientMachine
from mama_spark.malamute.client.states import TABLE, ClientAction, ClientEvent, ClientState
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong, encode
from mama_spark.malamute.protocol.extensions import Extension, write

from tests.support.malamute.client_machine import ALL, FAR, client, connected, do, said, told
from tests.support.tables import each
from tests.support.tiers import examples


def brought_to(state: ClientState) -> ClientMachine:
    """A machine that is there by what its application and its broker said."""
    if state is ClientState.START:
        return client()
    if state in (ClientState.CONNECTING, ClientState.FAILED):
        machine = client()
        machine.connect(0.0, FAR)
        told(machine, *([Error(300)] if state is ClientState.FAILED else []))
    else:
        machine = connected()
        if state is ClientState.RECONNECTING:
            told(machine, Error(500))
        elif state is not ClientState.CONNECTED:
            machine.call(wire.StreamWrite(b"s"), FAR)  # what is said to a machine that terminates answers this
            machine.close(FAR)
            told(machine, *([Error(500)] if state is ClientState.CLOSED else []))
    return machine


SAID: dict[ClientEvent, Command] = {
    ClientEvent.OK: Ok(), ClientEvent.REFUSED: Error(300), ClientEvent.INVALID: Error(500), ClientEvent.PONG: Pong(),
    ClientEvent.DELIVERY: wire.StreamDeliver(b"s", b"w", b"x"), ClientEvent.OTHER: wire.Ping(),
    ClientEvent.CONFIRM: wire.Confirm(b"t"),
}  # fmt: skip


def happen(machine: ClientMachine, event: ClientEvent) -> None:
    """By what the application, the connection or the broker does; by the table where only the machine itself knows."""
    if event is ClientEvent.CONNECT:
        machine.connect(0.0, FAR)
    elif event is ClientEvent.CLOSE:
        machine.close(FAR)
    elif event is ClientEvent.SILENCE:
        machine.tick(1000.0)
    elif event is ClientEvent.UNREACHABLE and machine.state is ClientState.CONNECTING:
        machine.tick(2 * FAR)
    elif event is ClientEvent.FINISHED and machine.state is ClientState.TERMINATING:
        told(machine, Ok(), Ok())
    elif event is ClientEvent.MALFORMED:
        machine.receive([b"rubbish"], 0.0)
    elif event in SAID:
        told(machine, SAID[event])
    else:
        machine._step(event)


def effects(machine: ClientMachine) -> dict[ClientAction | None, bool]:
    """What can be seen of each action once a machine that had nothing to send has done it."""
    sent = [type(command) for command in said(machine)]
    return {
        ClientAction.OPEN: sent == [wire.Open] and not machine.reconnects,
        ClientAction.REOPEN: sent == [wire.Open] and machine.reconnects > 0 and not machine.reset,
        ClientAction.RECONNECT: sent == [wire.Open] and machine.reset,
        ClientAction.DELIVER: [type(one) for one in machine.received] == [wire.StreamDeliver],
        ClientAction.CONFIRM: machine.received == [SAID[ClientEvent.CONFIRM]],
        ClientAction.COUNT_MALFORMED: machine.malformed == 1,
        ClientAction.RESTORE: sent == [wire.StreamWrite],
        ClientAction.FAIL: not machine._calls and machine._connect is not None and machine._connect.done,
        ClientAction.END: not machine._calls,
        ClientAction.ANSWER_PING: not machine._calls.has_ping,
        None: not machine.received and not machine.malformed and not machine.reset,
    }


@each("event", list(ClientEvent))
@each("state", list(ClientState))
def test_every_event_in_every_state(state: ClientState, event: ClientEvent) -> None:
    """The machine goes where the table says, and does what it says; what the table leaves out changes nothing."""
    machine = brought_to(state)
    said(machine)
    step = TABLE.step(state, event) if TABLE.allows(state, event) else None
    if step is None and event is ClientEvent.SILENCE:
        happen(machine, event)
    elif step is None:
        with pytest.raises(ClientClosed, match=f"{re.escape(event.value)} while {state.value}"):
            happen(machine, event)
    else:
        if step.action is ClientAction.ANSWER_PING:
            machine.ping(0.0, FAR) if state is ClientState.CONNECTED else machine._calls.add(Call(wire.Ping(), FAR))
        elif step.action is ClientAction.RESTORE:
            machine.registered.stream = b"s"
        said(machine)
        happen(machine, event)
        if step.action is not ClientAction.ANSWER_CALL:  # see test_an_answer_settles_the_oldest_call_in_each_state
            assert effects(machine)[step.action], step
    assert machine.state is (state if step is None else step.state)
    assert step is not None or (machine.out, machine.received, machine.malformed) == ([], [], 0)


@each("state", [ClientState.CONNECTED, ClientState.TERMINATING])
@each("answer", [Ok(), Error(300, b"no")])
def test_an_answer_settles_the_oldest_call_in_each_state(state: ClientState, answer: Command) -> None:
    machine = connected()
    call = machine.call(wire.StreamWrite(b"s"), FAR)
    if state is ClientState.TERMINATING:
        machine.close(FAR)
    told(machine, answer)
    assert call.done
    assert (call.error is None) is isinstance(answer, Ok)
    assert (machine.registered.stream == b"s") is isinstance(answer, Ok)
    assert machine.state is state


# --- Whatever a broker says, the client raises nothing ----------------------------------------------------------------

ANSWERS = st.one_of(
    st.sampled_from([Ok(), Error(500), Error(300), Error(502), Pong(), wire.Ping(), wire.Confirm(b"t")]).map(encode),
    st.just(encode(wire.StreamDeliver(b"s", b"w", b"x", trailing=write(Extension(sequence=4))))),
    st.lists(st.binary(max_size=10), max_size=2),
)


ACTS = st.one_of(
    ANSWERS,
    st.floats(0, 3),
    st.sampled_from([wire.Ping(), wire.Close(), wire.StreamWrite(b"s"), wire.StreamRead(b"s", b"p"), wire.Credit(3),
                     wire.StreamCancel(b"s"), wire.ServiceOffer(b"v", b"p"), wire.StreamSend(b"t"),
                     wire.MailboxSend(b"m", b"s")]),
)  # fmt: skip


@examples(300)
@given(st.lists(ACTS, max_size=40))
def test_nothing_a_broker_says_raises_and_no_call_stays_open(acts: list[Any]) -> None:
    machine, now = client(features=ALL), 0.0
    calls: list[Call] = [machine.connect(now, 20.0)]
    for act in acts:
        if isinstance(act, float):
            now += act
            machine.tick(now)
        elif isinstance(act, list):
            machine.receive(act, now)
        else:
            try:
                made = do(machine, act, now, now + 10)
            except (ClientClosed, Unavailable, NoStream):
                continue
            calls += [] if made is None else [made]
        assert machine.credit.left is not None
        assert machine.credit.left >= 0
    machine.tick(now + 1000)
    assert [call for call in calls if not call.done] == []
