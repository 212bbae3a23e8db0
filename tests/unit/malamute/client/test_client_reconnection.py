"""Pings, silence, and what the client says again over a new connection."""

from __future__ import annotations

import pytest
from mama_spark.errors import ConfigError, Unavailable
from mama_spark.malamute.client.state_machine import ClientMachine, ClientSettings
from mama_spark.malamute.client.states import ClientState
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Error, Ok, Pong
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, read, write

from tests.support.malamute.client_machine import ALL, FAR, connected, said, told


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


def test_what_the_answer_to_a_ping_of_its_own_acknowledges_is_told_with_the_next_call() -> None:
    machine = connected(ALL)
    machine.tick(1.0)
    first, second = AckRun(StoreOutcome.STORED, 2, 1), AckRun(StoreOutcome.STORED, 1, 3)
    call = machine.ping(1.5, FAR)
    told(machine, *(Pong(write(Extension(acks=(run,)))) for run in (first, second)))
    assert call.extension.acks == (first, second)


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
