"""The client's side of MLP: recorded conversations byte for byte, reconnection, and calls that never hang."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.errors import ClientClosed, ConfigError, Unavailable
from mama_spark.malamute.client.calls import Call, CallFailed, NoStream
from mama_spark.malamute.client.state_machine import ClientMachine, ClientSettings
from mama_spark.malamute.client.states import TABLE, ClientAction, ClientEvent, ClientState
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong, decode, encode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, read, write
from mama_spark.services.malamute_broker.engines.commands import AnsweredCommand
from mama_spark.services.malamute_broker.session.client_session import ClientSession
from mama_spark.services.malamute_broker.session.state_machine import ServerMachine

from tests.support.examples import examples

VECTORS: dict[str, dict[str, Any]] = {
    v["name"]: v for v in json.loads((Path(__file__).parents[3] / "vectors" / "malamute.json").read_text())
}
FAR = 1e9
ALL = Feature.CREDIT | Feature.SEQUENCE | Feature.ACKS | Feature.CONFIRM | Feature.HEADERS


def said(machine: ClientMachine) -> list[Command]:
    out, machine.out = machine.out, []
    return [decode(frames) for frames in out]


def told(machine: ClientMachine, *commands: Command, now: float = 0.0) -> None:
    for command in commands:
        machine.receive(encode(command), now)


def connected(features: Feature | None = None, **values: Any) -> ClientMachine:
    machine = ClientMachine(ClientSettings(b"me", features, **values))
    call = machine.connect(0.0, FAR)
    told(machine, Ok(trailing=write(Extension(features=features)) if features else b""))
    assert call.done
    assert call.error is None
    said(machine)
    return machine


def do(machine: ClientMachine, command: Command) -> None:
    """What an application does to make the client say this."""
    match command:
        case wire.Open():
            machine.connect(0.0, FAR)
        case wire.Ping():
            machine.ping(0.0, FAR)
        case wire.Close():
            machine.close(FAR)
        case wire.StreamWrite():
            machine.write(command.stream, FAR)
        case wire.StreamRead():
            machine.read(command.stream, command.pattern, FAR)
        case wire.StreamCancel():
            machine.cancel(command.stream, FAR)
        case wire.StreamSend():
            machine.send(command.subject, command.content)
        case wire.MailboxSend():
            machine.mailbox(command)
        case wire.ServiceSend():
            machine.request(command)
        case wire.ServiceOffer():
            machine.offer(command.address, command.pattern, FAR)
        case wire.Credit():
            machine.give_credit(command.amount)


PROPER = [
    "session_a", "scenario_conversation_streams", "scenario_mailbox_direct", "scenario_service_direct",
    "scenario_duplicate_patterns", "conversation_b_credit_ignored",
]  # fmt: skip


@pytest.mark.parametrize("name", PROPER)
def test_recorded_conversations_byte_for_byte(name: str) -> None:
    """Each client says what the C client said; deliveries reach the application in order."""
    machines: dict[str, ClientMachine] = {}
    deliveries: dict[str, list[Command]] = {}
    for step in VECTORS[name]["steps"]:
        frames = [bytes.fromhex(h) for h in step["hex"]]
        command = decode(frames)
        if isinstance(command, wire.Open):
            machines[step["client"]] = ClientMachine(ClientSettings(command.address))
        machine = machines[step["client"]]
        if step["dir"] == "C>S":
            do(machine, command)
            assert machine.out == [frames]
            machine.out.clear()
        else:
            machine.receive(frames, 0.0)
            if command.id in (8, 10, 13):
                deliveries.setdefault(step["client"], []).append(command)
    for client, machine in machines.items():
        assert machine.received == deliveries.get(client, [])
        assert machine.out == []


@pytest.mark.spec("C7")
def test_the_recorded_reconnection_after_a_restart_byte_for_byte() -> None:
    """The queued PING gets ERROR 500; OPEN, then WRITE, READ and OFFER without waiting."""
    machine = connected()
    machine.settings = ClientSettings(b"rc")
    machine.write(b"out", FAR)
    machine.read(b"in", b"^a", FAR)
    machine.offer(b"svc", b"x", FAR)
    told(machine, Ok(), Ok(), Ok())
    said(machine)
    machine.ping(0.0, FAR)
    for step in VECTORS["session_c_broker_restart"]["steps"]:
        frames = [bytes.fromhex(h) for h in step["hex"]]
        if step["dir"] == "C>S":
            assert machine.out.pop(0) == frames
        else:
            machine.receive(frames, 0.0)
    assert machine.out == []
    assert repr(machine) == "<ClientMachine b'rc' connected, 0 calls>"
    assert machine.reconnects == 1


def brought_to(state: ClientState) -> ClientMachine:
    """A machine that is there by what its application and its broker said."""
    if state is ClientState.START:
        return ClientMachine()
    if state in (ClientState.CONNECTING, ClientState.FAILED):
        machine = ClientMachine()
        machine.connect(0.0, FAR)
        told(machine, *([Error(300)] if state is ClientState.FAILED else []))
    else:
        machine = connected()
        if state is ClientState.RECONNECTING:
            told(machine, Error(500))
        elif state is not ClientState.CONNECTED:
            machine.write(b"s", FAR)  # what is said to a machine that terminates answers this
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


@pytest.mark.parametrize("event", list(ClientEvent))
@pytest.mark.parametrize("state", list(ClientState))
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
            machine.stream = b"s"
        said(machine)
        happen(machine, event)
        if step.action is not ClientAction.ANSWER_CALL:  # see test_an_answer_settles_the_oldest_call_in_each_state
            assert effects(machine)[step.action], step
    assert machine.state is (state if step is None else step.state)
    assert step is not None or (machine.out, machine.received, machine.malformed) == ([], [], 0)


@pytest.mark.parametrize("state", [ClientState.CONNECTED, ClientState.TERMINATING])
@pytest.mark.parametrize("answer", [Ok(), Error(300, b"no")])
def test_an_answer_settles_the_oldest_call_in_each_state(state: ClientState, answer: Command) -> None:
    machine = connected()
    call = machine.write(b"s", FAR)
    if state is ClientState.TERMINATING:
        machine.close(FAR)
    told(machine, answer)
    assert call.done
    assert (call.error is None) is isinstance(answer, Ok)
    assert (machine.stream == b"s") is isinstance(answer, Ok)
    assert machine.state is state


def test_only_the_steps_of_the_table_change_the_state() -> None:
    """The machine assigns its state in one place."""
    source = Path(inspect.getfile(ClientMachine)).read_text(encoding="utf-8")
    assert re.findall(r"self\.state = (.+)", source) == ["ClientState.START", "step.state"]


def test_the_table_has_a_row_for_each_state() -> None:
    assert {state for state, _, _ in TABLE} == set(ClientState)


@pytest.mark.spec("C4")
def test_commands_before_connect_fail_and_say_so() -> None:
    machine = ClientMachine()
    for command in (wire.StreamWrite(b"s"), wire.StreamRead(b"s", b"p"), wire.ServiceOffer(b"s", b"p")):
        with pytest.raises(ClientClosed, match=r"not connected \(start\)"):
            do(machine, command)
    with pytest.raises(NoStream):
        machine.send(b"s")
    with pytest.raises(Unavailable):
        machine.mailbox(wire.MailboxSend(b"a", b"s"))
    assert machine.next_tick() == float("inf")


def test_sending_before_writing_is_refused_here_and_not_by_the_broker() -> None:
    machine = connected()
    machine.write(b"s", FAR)
    with pytest.raises(NoStream):
        machine.send(b"t")
    told(machine, Ok())
    machine.send(b"t")


@pytest.mark.spec("C5")
def test_a_refused_call_has_the_reason_and_the_client_continues() -> None:
    """An invalid pattern"""
    machine = connected()
    call = machine.read(b"s", b"[", FAR)
    told(machine, Error(300, b"no pattern"))
    assert isinstance(call.error, CallFailed)
    assert str(call.error) == "StreamRead was refused with 300: no pattern"
    assert machine.state is ClientState.CONNECTED
    assert machine.reads == {}
    assert repr(call).startswith("<Call StreamRead CallFailed(")


def test_a_refused_open_fails_connect_and_everything_after() -> None:
    machine = ClientMachine()
    call = machine.connect(0.0, FAR)
    told(machine, Error(300, b"who are you"))
    assert isinstance(call.error, CallFailed)
    assert machine.state is ClientState.FAILED
    with pytest.raises(ClientClosed):
        machine.ping(0.0, FAR)


@pytest.mark.spec("C3")
def test_connecting_to_nobody_fails_at_its_deadline() -> None:
    machine = ClientMachine()
    call = machine.connect(0.0, 10.0)
    now = 0.0
    while not call.done:
        assert machine.next_tick() > now
        now = machine.next_tick()
        machine.tick(now)
    assert now == 10.0
    assert isinstance(call.error, Unavailable)
    assert machine.state is ClientState.CLOSED


def test_calls_end_at_their_deadline_although_pongs_arrive() -> None:
    """The C client blocks for ever here."""
    machine = connected()
    call = machine.read(b"s", b"p", 3.0)
    for now in (1.0, 2.0, 3.0):
        machine.receive(encode(wire.StreamDeliver(b"s", b"w", b"x")), now)
        machine.tick(now)
    assert isinstance(call.error, Unavailable)
    told(machine, Ok(), Pong(), now=3.0)
    late = machine.read(b"s", b"q", 9.0)
    told(machine, Pong(), Pong(), Ok(), now=3.0)
    assert late.done
    assert late.error is None


def test_an_answer_that_was_left_out_does_not_shift_the_later_ones() -> None:
    machine = connected()
    silent, ping, read_ = machine.read(b"s", b"p", 1.0), machine.ping(0.0, FAR), machine.read(b"s", b"q", FAR)
    machine.tick(1.0)
    assert isinstance(silent.error, Unavailable)
    told(machine, Pong(), now=1.0)
    assert ping.done
    assert not read_.done
    told(machine, Ok())
    assert read_.error is None
    assert read_.done


def test_a_pong_may_overtake_an_answer_that_takes_its_time() -> None:
    machine = connected()
    slow, ping = machine.write(b"s", FAR), machine.ping(0.0, FAR)
    told(machine, Pong())
    assert ping.done
    assert not slow.done
    told(machine, Ok())
    assert (slow.done, slow.error, machine.stream) == (True, None, b"s")


def test_a_ping_goes_out_each_second_and_silence_means_a_new_connection() -> None:
    machine = connected()
    machine.write(b"out", FAR)
    told(machine, Ok())
    said(machine)
    sent = 0
    for now in (1.0, 2.0, 3.0):
        assert machine.next_tick() <= now
        machine.tick(now)
        sent += said(machine).count(wire.Ping())
    assert sent == 3
    waiting = machine.ping(3.5, FAR)
    call = machine.read(b"in", b"x", FAR)
    machine.tick(4.0)
    assert machine.reset
    assert machine.state is ClientState.RECONNECTING
    assert said(machine) == [wire.Open(b"me")], "what was under way is not said to the new connection"
    assert isinstance(waiting.error, Unavailable)
    with pytest.raises(Unavailable):
        machine.send(b"s")
    told(machine, Ok(), now=5.0)
    assert said(machine) == [wire.StreamWrite(b"out"), wire.StreamRead(b"in", b"x")]
    told(machine, Ok(), Ok(), now=5.0)
    assert call.error is None
    assert call.done


def test_many_reconnections_do_not_make_more_of_what_is_remembered() -> None:
    machine = connected()
    machine.write(b"out", FAR)
    told(machine, Ok())
    for _ in range(5):
        told(machine, Error(500), Ok())
    said(machine)
    told(machine, Error(500), Error(500), Error(500), Ok())
    assert said(machine) == [wire.Open(b"me"), wire.StreamWrite(b"out")]


def test_a_reader_goes_on_from_the_last_sequence_and_gives_its_credit_again() -> None:
    machine = connected(ALL)
    machine.read(b"st", b"p", FAR, after=10)
    machine.give_credit(70_000)
    assert [read(c.trailing).after for c in said(machine) if isinstance(c, wire.StreamRead)] == [10]
    told(machine, Ok())
    told(machine, wire.StreamDeliver(b"st", b"w", b"s", trailing=write(Extension(sequence=12))))
    told(machine, Error(500), Ok(trailing=write(Extension(features=ALL))))
    _, *credits, again = said(machine)
    assert credits == [wire.Credit(65535), wire.Credit(70_000 - 65535 - 1)]
    assert isinstance(again, wire.StreamRead)
    assert read(again.trailing).after == 12


def test_a_broker_without_extensions_gets_none() -> None:
    machine = ClientMachine(ClientSettings(b"me", ALL))
    machine.connect(0.0, FAR)
    (opening,) = said(machine)
    assert isinstance(opening, wire.Open)
    assert read(opening.trailing).features == ALL
    told(machine, Ok())
    machine.read(b"s", b"p", FAR, after=5)
    assert said(machine) == [wire.StreamRead(b"s", b"p")]
    with pytest.raises(ConfigError, match="no confirmations"):
        machine.confirm(b"t")


def test_a_pong_brings_acknowledgements() -> None:
    machine = connected(Feature.ACKS)
    call = machine.ping(0.0, FAR)
    runs = (AckRun(StoreOutcome.STORED, 3, 7),)
    told(machine, Pong(write(Extension(acks=runs))))
    assert call.extension.acks == runs


def test_closing_ends_every_call_and_is_answered_in_its_turn() -> None:
    machine = connected()
    first = machine.write(b"s", FAR)
    close = machine.close(FAR)
    told(machine, Ok())
    assert first.done
    assert not close.done
    told(machine, Ok())
    assert close.done
    assert close.error is None
    assert machine.state is ClientState.CLOSED
    assert machine.close(FAR).done


@pytest.mark.parametrize("answer", [Error(500), None])
def test_closing_does_not_wait_for_a_broker_that_is_gone(answer: Command | None) -> None:
    machine = connected()
    call = machine.ping(0.0, FAR)
    close = machine.close(2.0)
    if answer is not None:
        told(machine, answer)
    machine.tick(4.0)
    assert machine.state is ClientState.CLOSED
    assert call.done
    assert close.done


def test_what_kills_the_c_client_does_not_kill_this_one() -> None:
    machine = connected()
    for frames in ([b"\xaa\xa7\x02"], [b""], [b"\xaa\xa8\x63"], [*encode(Ok()), b"extra"], encode(wire.Credit(1)), []):
        machine.receive(frames, 0.0)
    told(machine, wire.Confirm(b"t"), Ok(), Pong())
    assert machine.received == [wire.Confirm(b"t")]
    assert machine.malformed == 6
    call = machine.ping(0.0, FAR)
    told(machine, Pong())
    assert call.error is None


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
    machine, now = ClientMachine(ClientSettings(b"me", ALL)), 0.0
    calls: list[Call] = [machine.connect(now, 20.0)]
    for act in acts:
        if isinstance(act, float):
            now += act
            machine.tick(now)
        elif isinstance(act, list):
            machine.receive(act, now)
        else:
            try:
                do_with_deadline(machine, act, now, calls)
            except (ClientClosed, Unavailable, NoStream):
                continue
        assert machine.credit.left is not None
        assert machine.credit.left >= 0
    machine.tick(now + 1000)
    assert [call for call in calls if not call.done] == []


def do_with_deadline(machine: ClientMachine, act: Command, now: float, calls: list[Call]) -> None:
    made: Call | None = None
    match act:
        case wire.Ping():
            made = machine.ping(now, now + 10)
        case wire.Close():
            made = machine.close(now + 10)
        case wire.StreamWrite():
            made = machine.write(act.stream, now + 10)
        case wire.StreamRead():
            made = machine.read(act.stream, act.pattern, now + 10)
        case wire.StreamCancel():
            made = machine.cancel(act.stream, now + 10)
        case wire.ServiceOffer():
            made = machine.offer(act.address, act.pattern, now + 10)
        case _:
            do(machine, act)
    if made is not None:
        calls.append(made)


class Pair:
    """A client and a broker; engines take whatever they are given."""

    def __init__(self) -> None:
        self.client, self.broker, self.now, self.identity = (
            ClientMachine(ClientSettings(b"me", ALL)),
            ServerMachine(),
            0.0,
            0,
        )

    def run(self, drop: bool = False) -> None:
        """Everything under way arrives, or is lost."""
        for _ in range(20):
            if self.client.reset:
                self.client.reset = False
                self.identity += 1
            me = b"%d" % self.identity
            out, self.client.out = self.client.out, []
            for frames in [] if drop else out:
                self.broker.receive(me, frames, self.now)
            orders = self.broker.take_commands()
            for stream, commands in orders.items():
                for command in commands:
                    if isinstance(command, AnsweredCommand):
                        self.broker.command_done(stream)
            answers = self.broker.take_output()
            for client, frames in [] if drop else answers:
                if (client.identity if isinstance(client, ClientSession) else client) == me:
                    self.client.receive(frames, self.now)


@examples(100)
@given(st.lists(st.sampled_from(["restart", "lose", "silence", "wait", "write", "read", "send"]), max_size=20))
def test_client_and_broker_find_together_again_whatever_happens(events: list[str]) -> None:
    pair = Pair()
    pair.client.connect(0.0, FAR)
    pair.run()
    for n, event in enumerate(events):
        if event == "restart":
            pair.broker = ServerMachine()
        elif event == "lose":
            pair.run(drop=True)
        elif event in ("silence", "wait"):
            pair.now += 5.0 if event == "silence" else 0.5
            pair.client.tick(pair.now)
            pair.broker.expire(pair.now)
        elif event == "write" and pair.client.state in (ClientState.CONNECTED, ClientState.RECONNECTING):
            pair.client.write(b"s%d" % (n % 3), FAR)
        elif event == "read" and pair.client.state in (ClientState.CONNECTED, ClientState.RECONNECTING):
            pair.client.read(b"r", b"%d" % n, FAR)
        elif event == "send" and pair.client.stream and pair.client.state is ClientState.CONNECTED:
            pair.client.send(b"t")
        pair.run()
    for _ in range(10):
        pair.now += 2.1
        pair.client.tick(pair.now)
        pair.run()
    assert pair.client.state is ClientState.CONNECTED
    me = pair.broker.clients.by_identity[b"%d" % pair.identity]
    assert me.address == b"me"
    assert me.write_stream == pair.client.stream
    assert me.subscriptions == {stream: set(patterns) for stream, patterns in pair.client.reads.items()}
