"""The order of log queries at engines: behind their records, few at a time, and hostile clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import Extension, Feature, read, write
from mama_spark.malamute.protocol.log_query import (
    LogQuery,
    LogQueryAnswer,
    parse_answer,
)
from mama_spark.services.malamute_broker.engines.commands import AnswerQuery
from mama_spark.services.malamute_broker.session.settings import SessionSettings
from mama_spark.services.malamute_broker.session.state_machine import ServerMachine
from mama_spark.services.malamute_broker.session.streams import log_query_server

from tests.support.malamute.log_queries import QUESTIONS, RECORD, bounds
from tests.support.tiers import examples


class Everything:
    """A catalog that has every stream."""

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        return [b"a", b"b"]

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        return None if stream != b"none" else LogQueryAnswer(0, StatusCode.FAILED, b"there is no such stream")


class MachineHarness:
    """A machine, its clients, and the questions that its engines have."""

    def __init__(self, **values: Any) -> None:
        self.machine = ServerMachine(SessionSettings(**values), catalog=Everything())

    def open(self, name: str, features: Feature = Feature.LOG) -> Any:
        command = wire.Open(name.encode(), write(Extension(features=features)))
        self.machine.receive(name.encode(), wire.encode(command), 0.0)
        self.machine.take_output()
        return self.machine.clients.by_identity[name.encode()]

    def ask(self, name: str, *questions: LogQuery) -> None:
        for question in questions:
            ping = wire.encode(wire.Ping(write(Extension(question=question.pack()))))
            self.machine.receive(name.encode(), ping, 0.0)

    def at_engines(self) -> list[tuple[bytes, Any, LogQuery]]:
        orders = self.machine.take_commands()
        found = []
        for stream, commands in orders.items():
            if stream in self.machine.streams.opening:
                self.machine.opened(stream, True)
                self.machine.command_done(stream)
            found += [(stream, one.client, one.query) for one in commands if isinstance(one, AnswerQuery)]
        return found

    def answers(self) -> list[LogQueryAnswer | bytes]:
        """What went out: answers, and contents of records."""
        out = self.machine.take_output()
        found: list[LogQueryAnswer | bytes] = []
        for _, frames in out:
            command = wire.decode(frames)
            if isinstance(command, wire.Pong):
                answer = parse_answer(read(command.trailing).answer)
                assert answer is not None
                found.append(answer)
            else:
                assert isinstance(command, wire.StreamDeliver)
                found.append(command.content[0])
        return found


def test_a_client_that_did_not_announce_it_asks_nothing() -> None:
    room = MachineHarness()
    room.open("plain", Feature.ACKS)
    room.ask("plain", bounds(1))
    assert room.at_engines() == []
    assert [wire.decode(frames) for _, frames in room.machine.take_output()] == [wire.Pong()]


def test_an_answer_comes_behind_its_records_and_says_whose_it_is() -> None:
    room = MachineHarness()
    client = room.open("c")
    room.ask("c", bounds(7), bounds(8))
    assert [question.number for _, _, question in room.at_engines()] == [7, 8]
    room.machine.query_answered(b"s", client, LogQueryAnswer(7), [RECORD, RECORD])
    room.machine.query_answered(b"s", client, LogQueryAnswer(8), [])
    assert room.answers() == [b"one", b"one", LogQueryAnswer(7), LogQueryAnswer(8)]


def test_an_engine_has_few_questions_at_a_time_and_a_client_may_wait_with_few() -> None:
    room = MachineHarness()
    client = room.open("c")
    room.ask("c", *(bounds(i) for i in range(log_query_server.MAX_OPEN + 3)))
    refused = room.answers()
    assert [answer.number for answer in refused if isinstance(answer, LogQueryAnswer)] == [16, 17, 18]
    assert {answer.reason for answer in refused if isinstance(answer, LogQueryAnswer)} == {
        b"too many questions at a time"
    }
    asked = room.at_engines()
    seen = len(asked)
    assert seen == log_query_server.MAX_AT_ENGINE
    while asked:
        _, _, question = asked.pop(0)
        room.machine.query_answered(b"s", client, LogQueryAnswer(question.number), [])
        more = room.at_engines()
        seen += len(more)
        asked += more
        assert len(asked) <= log_query_server.MAX_AT_ENGINE
    assert seen == log_query_server.MAX_OPEN
    room.ask("c", bounds(99))
    assert len(room.at_engines()) == 1, "those that were answered do not count"


def test_nothing_is_asked_for_a_client_whose_socket_takes_no_more() -> None:
    room = MachineHarness()
    client = room.open("c")
    room.ask("c", bounds(0))
    room.at_engines()
    room.machine.output.block(client, [b"x"])
    room.machine.query_answered(b"s", client, LogQueryAnswer(0), [RECORD])
    room.ask("c", bounds(1), bounds(2))
    assert room.at_engines() == []
    other = room.open("other")
    room.ask("other", bounds(3))
    assert [found for _, found, _ in room.at_engines()] == [other]
    kept = []
    while (frames := room.machine.deliveries.next_for(client)) is not None:
        kept.append(frames)
    assert kept[1] == RECORD
    assert len(kept) == 3
    room.machine.unblock(client)
    assert [question.number for _, _, question in room.at_engines()] == [1, 2]


def test_who_leaves_is_forgotten_and_makes_room() -> None:
    room = MachineHarness()
    client = room.open("c")
    room.ask("c", *(bounds(i) for i in range(10)))
    room.at_engines()
    room.machine.receive(b"c", wire.encode(wire.Close()), 0.0)
    room.machine.take_output()
    other = room.open("other")
    room.ask("other", bounds(50))
    for i in range(log_query_server.MAX_AT_ENGINE):
        room.machine.query_answered(b"s", client, LogQueryAnswer(i), [RECORD])
    assert room.answers() == []
    assert [found for _, found, _ in room.at_engines()] == [other]
    assert client not in room.machine.queries._open


def test_readers_that_come_and_go_leave_nothing_at_an_engine_that_does_not_answer() -> None:
    room = MachineHarness()
    room.open("first")
    room.ask("first", *(bounds(i) for i in range(log_query_server.MAX_AT_ENGINE)))
    room.at_engines()
    for n in range(100):
        room.open(f"c{n}")
        room.ask(f"c{n}", *(bounds(i) for i in range(16)))
        room.machine.receive(b"c%d" % n, wire.encode(wire.Close()), 0.0)
    assert sum(map(len, room.machine.queries._queued.values())) == 0
    assert room.at_engines() == []


def test_questions_to_an_engine_that_died_are_answered_so() -> None:
    room = MachineHarness()
    blocked, client = room.open("blocked"), room.open("c")
    room.machine.output.block(blocked, [b"x"])
    room.ask("blocked", bounds(1))
    room.ask("c", *(bounds(i) for i in range(6)))
    room.at_engines()
    room.machine.stream_lost(b"s", "the disk is gone")
    answers = room.answers()
    assert [(a.number, a.code, a.reason) for a in answers if isinstance(a, LogQueryAnswer)] == [
        (i, StatusCode.INTERNAL_ERROR, b"the disk is gone") for i in range(6)
    ]
    room.machine.deliveries.next_for(blocked)
    room.machine.unblock(blocked)
    (late,) = room.answers()
    assert isinstance(late, LogQueryAnswer)
    assert (late.number, late.code) == (1, StatusCode.INTERNAL_ERROR)
    assert client.connected


def test_a_reader_opens_no_more_streams_than_there_may_be() -> None:
    room = MachineHarness(streams=2)
    room.open("c")
    room.ask("c", bounds(1, b"a"), bounds(2, b"b"), bounds(3, b"c"), bounds(4, b"none"))
    reasons = [(a.number, a.reason) for a in room.answers() if isinstance(a, LogQueryAnswer)]
    assert reasons == [(3, b"too many streams"), (4, b"there is no such stream")]


@examples(300)
@given(st.lists(st.binary(max_size=60) | QUESTIONS.map(LogQuery.pack), max_size=30))
def test_whatever_is_asked_the_machine_goes_on(packed: list[bytes]) -> None:
    room = MachineHarness()
    room.open("c")
    for one in packed:
        room.machine.receive(b"c", wire.encode(wire.Ping(write(Extension(question=one)))), 0.0)
    assert len(room.at_engines()) <= len(packed)
    room.machine.take_output()
    room.machine.receive(b"c", wire.encode(wire.Ping()), 0.0)
    assert len(room.machine.output) > 0
