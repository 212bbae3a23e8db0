"""The client finds the answers to its log queries."""

from __future__ import annotations

from mama_spark.malamute.client.state_machine import ClientMachine, ClientSettings
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.extensions import Extension, Feature, write
from mama_spark.malamute.protocol.log_query import (
    LogQueryAnswer,
)

from tests.support.malamute.log_queries import RECORD, bounds


def asking() -> ClientMachine:
    machine = ClientMachine(ClientSettings(features=Feature.LOG))
    machine.connect(0.0, 9.0)
    machine.receive(wire.encode(wire.Ok(trailing=write(Extension(features=Feature.LOG)))), 0.0)
    machine.out.clear()
    return machine


def pong(answer: LogQueryAnswer) -> list[bytes]:
    return wire.encode(wire.Pong(write(Extension(answer=answer.pack()))))


def test_answers_find_their_questions_in_any_order_and_other_pongs_do_not_count() -> None:
    machine = asking()
    one, two = machine.ask(bounds(0), 9.0), machine.ask(bounds(0), 9.0)
    machine.receive(wire.encode(wire.Pong()), 1.0)
    assert not one.done
    machine.receive(RECORD, 1.0)
    machine.receive(pong(LogQueryAnswer(two.query.number)), 1.0)
    assert (two.done, two.records, one.done) == (True, [RECORD], False)
    machine.receive(pong(LogQueryAnswer(one.query.number)), 1.0)
    assert (one.done, one.records) == (True, [])
    assert machine.received == []


def test_what_belongs_to_a_question_that_was_given_up_goes_to_nobody_else() -> None:
    machine = asking()
    one = machine.ask(bounds(0), 2.0)
    machine.tick(2.0)
    assert one.done
    assert one.error is not None
    two = machine.ask(bounds(0), 9.0)
    machine.receive(RECORD, 3.0)
    machine.receive(pong(LogQueryAnswer(one.query.number)), 3.0)
    machine.receive(pong(LogQueryAnswer(two.query.number)), 3.0)
    assert two.records == []


def test_a_question_does_not_outlive_its_connection() -> None:
    machine = asking()
    one = machine.ask(bounds(0), 99.0)
    machine.lost(1.0)
    assert one.done
    assert "connection was lost" in str(one.error)
    assert machine.next_tick() < 99.0
