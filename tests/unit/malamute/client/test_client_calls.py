"""The machine of the Malamute client: its calls, what it says, and what it says again over a new connection."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import ClientClosed, ConfigError, Unavailable
from mama_spark.malamute.client.calls import CallFailed, NoStream
from mama_spark.malamute.client.state_machine import ClientMachine
from mama_spark.malamute.client.states import ClientState
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong, decode, encode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, read, write

from tests.support.malamute.client_machine import ALL, FAR, client, connected, do, said, told
from tests.support.tables import each
from tests.support.vectors import vectors

# Calls of the client: each is answered, refused or ended at its deadline, and none shifts another's answer


def test_sending_before_writing_is_refused_here_and_not_by_the_broker() -> None:
    machine = connected()
    machine.call(wire.StreamWrite(b"s"), FAR)
    with pytest.raises(NoStream):
        do(machine, wire.StreamSend(b"t"))
    told(machine, Ok())
    do(machine, wire.StreamSend(b"t"))


@pytest.mark.spec("C5")
def test_a_refused_call_has_the_reason_and_the_client_continues() -> None:
    """An invalid pattern"""
    machine = connected()
    call = machine.call(wire.StreamRead(b"s", b"["), FAR)
    told(machine, Error(300, b"no pattern"))
    assert isinstance(call.error, CallFailed)
    assert str(call.error) == "StreamRead was refused with 300: no pattern"
    assert machine.state is ClientState.CONNECTED
    assert machine.registered.reads == {}


def test_a_refused_open_fails_connect_and_everything_after() -> None:
    machine = client()
    call = machine.connect(0.0, FAR)
    told(machine, Error(300, b"who are you"))
    assert isinstance(call.error, CallFailed)
    assert str(call.error) == "connecting was refused with 300: who are you"
    assert machine.state is ClientState.FAILED
    with pytest.raises(ClientClosed):
        machine.ping(0.0, FAR)


def test_calls_end_at_their_deadline_although_pongs_arrive() -> None:
    """The C client blocks for ever here."""
    machine = connected()
    call = machine.call(wire.StreamRead(b"s", b"p"), 3.0)
    for now in (1.0, 2.0, 3.0):
        machine.receive(encode(wire.StreamDeliver(b"s", b"w", b"x")), now)
        machine.tick(now)
    assert isinstance(call.error, Unavailable)
    told(machine, Ok(), Pong(), now=3.0)
    late = machine.call(wire.StreamRead(b"s", b"q"), 9.0)
    told(machine, Pong(), Pong(), Ok(), now=3.0)
    assert (late.done, late.error) == (True, None)


def test_an_answer_that_was_left_out_does_not_shift_the_later_ones() -> None:
    machine = connected()
    silent, ping = machine.call(wire.StreamRead(b"s", b"p"), 1.0), machine.ping(0.0, FAR)
    read_ = machine.call(wire.StreamRead(b"s", b"q"), FAR)
    machine.tick(1.0)
    assert isinstance(silent.error, Unavailable)
    told(machine, Pong(), now=1.0)
    assert ping.done
    assert not read_.done
    told(machine, Ok())
    assert (read_.done, read_.error) == (True, None)


def test_closing_ends_every_call_and_is_answered_in_its_turn() -> None:
    machine = connected()
    first = machine.call(wire.StreamWrite(b"s"), FAR)
    close = machine.close(FAR)
    told(machine, Ok())
    assert first.done
    assert not close.done
    told(machine, Ok())
    assert (close.done, close.error) == (True, None)
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


# --- the client's side of MLP: recorded conversations byte for byte, a reconnection among them ------------------------

VECTORS = {v["name"]: v for v in vectors("malamute")}


PROPER = [
    "session_a", "scenario_conversation_streams", "scenario_mailbox_direct", "scenario_service_direct",
    "scenario_duplicate_patterns", "conversation_b_credit_ignored",
]  # fmt: skip


@each("name", PROPER)
def test_recorded_conversations_byte_for_byte(name: str) -> None:
    """Each client says what the C client said; deliveries reach the application in order."""
    machines: dict[str, ClientMachine] = {}
    deliveries: dict[str, list[Command]] = {}
    for step in VECTORS[name]["steps"]:
        frames = [bytes.fromhex(h) for h in step["hex"]]
        command = decode(frames)
        if isinstance(command, wire.Open):
            machines[step["client"]] = client(command.address.decode())
        machine = machines[step["client"]]
        if step["dir"] == "C>S":
            do(machine, command)
            assert machine.out == [frames]
            machine.out.clear()
        else:
            machine.receive(frames, 0.0)
            if command.id in (8, 10, 13):
                deliveries.setdefault(step["client"], []).append(command)
    for name, machine in machines.items():
        assert machine.received == deliveries.get(name, [])
        assert machine.out == []


@pytest.mark.spec("C7")
def test_the_recorded_reconnection_after_a_restart_byte_for_byte() -> None:
    """The queued PING gets ERROR 500; OPEN, then WRITE, READ and OFFER without waiting."""
    machine = connected(address="rc")
    machine.call(wire.StreamWrite(b"out"), FAR)
    machine.call(wire.StreamRead(b"in", b"^a"), FAR)
    machine.call(wire.ServiceOffer(b"svc", b"x"), FAR)
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
    assert (machine.state, len(machine._calls), machine.reconnects) == (ClientState.CONNECTED, 0, 1)


# --- pings, silence, and what the client says again over a new connection ---------------------------------------------


def test_a_ping_goes_out_each_second_and_silence_means_a_new_connection() -> None:
    machine = connected()
    machine.call(wire.StreamWrite(b"out"), FAR)
    told(machine, Ok())
    said(machine)
    sent = 0
    for now in (1.0, 2.0, 3.0):
        assert machine.next_tick() <= now
        machine.tick(now)
        sent += said(machine).count(wire.Ping())
    assert sent == 3
    waiting = machine.ping(3.5, FAR)
    call = machine.call(wire.StreamRead(b"in", b"x"), FAR)
    machine.tick(4.0)
    assert machine.reset
    assert machine.state is ClientState.RECONNECTING
    assert said(machine) == [wire.Open(b"me")], "what was under way is not said to the new connection"
    assert isinstance(waiting.error, Unavailable)
    with pytest.raises(Unavailable):
        do(machine, wire.StreamSend(b"s"))
    told(machine, Ok(), now=5.0)
    assert said(machine) == [wire.StreamWrite(b"out"), wire.StreamRead(b"in", b"x")]
    told(machine, Ok(), Ok(), now=5.0)
    assert (call.done, call.error) == (True, None)


def test_what_the_answer_to_a_ping_of_its_own_acknowledges_is_told_with_the_next_call() -> None:
    machine = connected(ALL)
    machine.tick(1.0)
    first, second = AckRun(StoreOutcome.STORED, 2, 1), AckRun(StoreOutcome.STORED, 1, 3)
    call = machine.ping(1.5, FAR)
    told(machine, *(Pong(write(Extension(acks=(run,)))) for run in (first, second)))
    assert call.extension.acks == (first, second)


def test_many_reconnections_do_not_make_more_of_what_is_remembered() -> None:
    machine = connected()
    machine.call(wire.StreamWrite(b"out"), FAR)
    told(machine, Ok())
    for _ in range(5):
        told(machine, Error(500), Ok())
    said(machine)
    told(machine, Error(500), Error(500), Error(500), Ok())
    assert said(machine) == [wire.Open(b"me"), wire.StreamWrite(b"out")]


def test_a_reader_goes_on_from_the_last_sequence_and_gives_its_credit_again() -> None:
    machine = connected(ALL)
    machine.call(wire.StreamRead(b"st", b"p", write(Extension(after=10))), FAR)
    machine.give_credit(70_000)
    assert [read(c.trailing).after for c in said(machine) if isinstance(c, wire.StreamRead)] == [10]
    told(machine, Ok())
    told(machine, wire.StreamDeliver(b"st", b"w", b"s", trailing=write(Extension(sequence=12))))
    told(machine, Error(500), Ok(trailing=write(Extension(features=ALL))))
    _, *credits, again = said(machine)
    assert credits == [wire.Credit(65535), wire.Credit(70_000 - 65535 - 1)]
    assert isinstance(again, wire.StreamRead)
    assert read(again.trailing).after == 12


def test_a_subscription_that_was_cancelled_does_not_come_back_after_a_reconnect() -> None:
    """Nor does its position, where it is read again."""
    machine = connected(Feature.SEQUENCE)
    for stream in (b"kept", b"left", b"again"):
        do(machine, wire.StreamRead(stream, b".*"))
        told(machine, Ok(), wire.StreamDeliver(stream, b"w", b"s", [], write(Extension(sequence=5))))
    for command in (wire.StreamCancel(b"left"), wire.StreamCancel(b"again"), wire.StreamRead(b"again", b".*")):
        do(machine, command)
        told(machine, Ok())
    said(machine)
    machine.lost(1.0)
    told(machine, Ok(trailing=write(Extension(features=Feature.SEQUENCE))), now=1.0)
    reads = [(one.stream, read(one.trailing).after) for one in said(machine) if isinstance(one, wire.StreamRead)]
    assert reads == [(b"kept", 5), (b"again", None)]


def test_a_broker_without_extensions_gets_none() -> None:
    machine = client(features=ALL)
    machine.connect(0.0, FAR)
    (opening,) = said(machine)
    assert isinstance(opening, wire.Open)
    assert read(opening.trailing).features == ALL
    told(machine, Ok())
    machine.call(wire.StreamRead(b"s", b"p", write(Extension(after=5))), FAR)
    assert said(machine) == [wire.StreamRead(b"s", b"p")]
    with pytest.raises(ConfigError, match="no confirmations"):
        machine.confirm(b"t")
