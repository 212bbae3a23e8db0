"""The client's states: every event in every state is a row of the table."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ClientClosed
from mama_spark.malamute.client.calls import Call
from mama_spark.malamute.client.state_machine import ClientMachine
from mama_spark.malamute.client.states import TABLE, ClientAction, ClientEvent, ClientState
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong

from tests.support.malamute.client_machine import FAR, client, connected, said, told
from tests.support.tables import each


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


def test_only_the_steps_of_the_table_change_the_state() -> None:
    """The machine assigns its state in one place."""
    source = Path(inspect.getfile(ClientMachine)).read_text(encoding="utf-8")
    assert re.findall(r"self\.state = (.+)", source) == ["ClientState.START", "step.state"]


def test_the_table_has_a_row_for_each_state() -> None:
    assert {state for state, _, _ in TABLE} == set(ClientState)
