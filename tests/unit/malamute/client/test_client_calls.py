"""Calls of the client: each is answered, refused or ended at its deadline, and none shifts another's answer."""

from __future__ import annotations

import pytest
from mama_spark.errors import ClientClosed, Unavailable
from mama_spark.malamute.client.calls import CallFailed, NoStream
from mama_spark.malamute.client.state_machine import ClientMachine
from mama_spark.malamute.client.states import ClientState
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong, encode

from tests.support.malamute.client_machine import FAR, connected, do, told


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
    assert machine.registered.reads == {}
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
    assert (slow.done, slow.error, machine.registered.stream) == (True, None, b"s")


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
