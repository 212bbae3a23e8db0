"""Questions about the messages of a stream: their encoding, answers, order and limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from mama_spark.malamute.broker.broker.engine_selector import EngineSelector, name_of
from mama_spark.malamute.broker.configuration import EngineChoice
from mama_spark.malamute.broker.engines.commands import AnswerQuery
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.broker.session import log_queries
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.broker.session.state_machine import ServerMachine
from mama_spark.malamute.client.state_machine import ClientMachine
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol import log_query as qu
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Extension, Feature, read, write
from mama_spark.malamute.protocol.log_query import (
    LogQuery,
    LogQueryAnswer,
    Op,
    Selection,
    parse_answer,
    parse_numbers,
    parse_query,
)

from tests.support.malamute.client_machine import connected
from tests.support.malamute.session_machine import Catalog
from tests.support.tables import each
from tests.support.tiers import examples

NAMES = st.binary(max_size=20).map(lambda raw: raw.replace(b"\0", b"?"))
U63, U32 = st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1)
TEXTS = st.lists(st.binary(max_size=20), max_size=4).map(tuple)
RECORD = wire.encode(wire.StreamDeliver(b"s", b"", b"t", [b"one"]))


NO_TEXT, NOTHING_CHOSEN = st.just(b""), st.just((Selection.ALL, ()))


def questions(
    op: Op, *numbers: st.SearchStrategy[int], text: Any = NO_TEXT, chosen: Any = NOTHING_CHOSEN
) -> st.SearchStrategy[LogQuery]:
    """:param chosen: kind of selection and its texts"""
    return st.builds(
        lambda n, stream, values, text, some: LogQuery(op, n, stream, values, text, *some),
        U32, NAMES, st.tuples(*numbers), text, chosen,
    )  # fmt: skip


SELECTIONS = st.tuples(st.sampled_from((Selection.SUBJECTS, Selection.PATTERNS)), TEXTS)
QUESTIONS = st.one_of(
    *(questions(op, U63, U63, U32, U32, chosen=SELECTIONS) for op in (Op.FETCH, Op.STANDING, Op.BLOCK)),
    questions(Op.MATCH, U63, U63, U32, chosen=st.tuples(st.just(Selection.SUBJECTS), TEXTS)),
    questions(Op.IDS, U63, U63, U32, U32, text=NAMES,
              chosen=TEXTS.map(lambda texts: (Selection.PATTERNS if texts else Selection.ALL, texts))),
    st.builds(lambda n, text: LogQuery(Op.NAMES, n, b"", (), text), U32, NAMES),
    questions(Op.BOUNDS), questions(Op.AT, st.integers(-(2**63), 2**63 - 1)), questions(Op.MISSING, U63, U63),
    questions(Op.TRIM, U63, text=NAMES),
)  # fmt: skip


def bounds(number: int, stream: bytes = b"s") -> LogQuery:
    return LogQuery(Op.BOUNDS, number, stream)


# --- log queries and answers on the wire ------------------------------------------------------------------------------


@given(QUESTIONS)
def test_any_question_survives_the_wire(question: LogQuery) -> None:
    assert parse_query(question.pack()) == question


@given(U32, st.sampled_from(StatusCode), NAMES, NAMES, st.binary(max_size=50))
def test_any_answer_survives_the_wire(number: int, code: int, reason: bytes, identity: bytes, body: bytes) -> None:
    answer = LogQueryAnswer(number, code, reason, identity, body)
    assert parse_answer(answer.pack()) == answer


def test_the_layout_is_fixed() -> None:
    assert LogQuery(Op.BOUNDS, 1, b"st").pack().hex() == "02" + "00000001" + "02" + "7374"
    assert LogQuery(Op.FETCH, 2, b"s", (1, 2, 3, 4), b"", Selection.SUBJECTS, (b"ab",)).pack().hex() == (
        "06" + "00000002" + "0173" + "0000000000000001" + "0000000000000002" + "00000003" + "00000004"
        + "01" + "0002" + "6162"
    )  # fmt: skip
    assert LogQueryAnswer(3, 300, b"no", b"i", b"x").pack().hex() == "00000003" + "012c" + "026e6f" + "0169" + "78"
    frame = wire.encode(wire.Ping(write(Extension(question=b"?"))))[0]
    assert frame.hex() == "aaa802" + "4d5301" + "0a0001" + "3f"


@examples(500)
@given(st.binary(max_size=60), st.sampled_from([b"", *(bytes([op]) for op in Op)]))
def test_what_is_no_question_or_answer_is_not_understood_and_raises_nothing(raw: bytes, op: bytes) -> None:
    for parse in (parse_query, parse_answer, qu.number_of):
        parse(op + raw)


@given(QUESTIONS, st.data())
def test_a_question_cut_short_is_not_understood_or_a_whole_one(question: LogQuery, data: st.DataObject) -> None:
    packed = question.pack()
    found = parse_query(packed[: data.draw(st.integers(0, len(packed) - 1))])
    assert found is None or (found.op, found.numbers) == (question.op, question.numbers)


def test_what_does_not_fit_is_not_asked() -> None:
    for bad in (
        LogQuery(Op.BOUNDS, 1, b"x" * 256),
        LogQuery(Op.AT, 1, b"s", (2**63,)),
        LogQuery(Op.TRIM, 1, b"s", (-1,)),
        LogQuery(Op.FETCH, 1, b"s", (0, 1, 1, 1), b"", Selection.SUBJECTS, (b"x" * 1000,) * 66),
    ):
        with pytest.raises(BadFrame):
            bad.pack()


def test_names_come_in_pages() -> None:
    names = sorted(b"%0200d" % i for i in range(1000))
    found: list[bytes] = []
    after, more = b"", True
    while more:
        body = qu.names_body(names, after)
        assert len(body) < 65_535
        more, page = bool(body[0]), qu.parse_texts(body[1:])
        found += page
        after = page[-1]
    assert found == names


# --- the client finds the answers to its log queries ------------------------------------------------------------------


def asking() -> ClientMachine:
    return connected(Feature.LOG)


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


# --- the order of log queries at engines: behind their records, few at a time, and hostile clients --------------------


class Everything(Catalog):
    """A catalog that has every stream."""

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        return [b"a", b"b"]

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        return None if stream != b"none" else LogQueryAnswer(0, StatusCode.FAILED, b"there is no such stream")


class MachineHarness:
    """A machine, its clients, and the questions that its engines have."""

    def __init__(self, **values: Any) -> None:
        self.machine = ServerMachine(SessionSettings(**values), Everything())

    def open(self, name: str, features: Feature = Feature.LOG) -> Any:
        command = wire.Open(name.encode(), write(Extension(features=features)))
        self.machine.receive(name.encode(), wire.encode(command), 0.0)
        self.machine.clients.take_output()
        return self.machine.clients.by_identity[name.encode()]

    def ask(self, name: str, *questions: LogQuery) -> None:
        for question in questions:
            ping = wire.encode(wire.Ping(write(Extension(question=question.pack()))))
            self.machine.receive(name.encode(), ping, 0.0)

    def at_engines(self) -> list[tuple[bytes, Any, LogQuery]]:
        orders = self.machine.streams.take_commands()
        found = []
        for stream, commands in orders.items():
            if stream in self.machine.streams.opening:
                self.machine.opened(stream, True)
                self.machine.command_done(stream)
            found += [(stream, one.client, one.query) for one in commands if isinstance(one, AnswerQuery)]
        return found

    def answers(self) -> list[tuple[int, int, bytes] | bytes]:
        """What went out: number, code and reason of answers, and contents of records."""
        found: list[tuple[int, int, bytes] | bytes] = []
        for _, frames in self.machine.clients.take_output():
            command = wire.decode(frames)
            if isinstance(command, wire.StreamDeliver):
                found.append(command.content[0])
            elif isinstance(command, wire.Pong) and (answer := parse_answer(read(command.trailing).answer)):
                found.append((answer.number, answer.code, answer.reason))
        return found


def test_a_client_that_did_not_announce_it_asks_nothing() -> None:
    room = MachineHarness()
    room.open("plain", Feature.ACKS)
    room.ask("plain", bounds(1))
    assert room.at_engines() == []
    assert [wire.decode(frames) for _, frames in room.machine.clients.take_output()] == [wire.Pong()]


def test_an_answer_comes_behind_its_records_and_says_whose_it_is() -> None:
    room = MachineHarness()
    client = room.open("c")
    room.ask("c", bounds(7), bounds(8))
    assert [question.number for _, _, question in room.at_engines()] == [7, 8]
    room.machine.queries.answered(b"s", client, LogQueryAnswer(7), [RECORD, RECORD])
    room.machine.queries.answered(b"s", client, LogQueryAnswer(8), [])
    assert room.answers() == [b"one", b"one", (7, StatusCode.SUCCESS, b""), (8, StatusCode.SUCCESS, b"")]


def test_an_engine_has_few_questions_at_a_time_and_a_client_may_wait_with_few() -> None:
    room = MachineHarness()
    client = room.open("c")
    room.ask("c", *(bounds(i) for i in range(log_queries.MAX_OPEN + 3)))
    refused = StatusCode.FAILED, b"too many questions at a time"
    assert room.answers() == [(n, *refused) for n in (16, 17, 18)]
    asked = room.at_engines()
    seen = len(asked)
    assert seen == log_queries.MAX_AT_ENGINE
    while asked:
        _, _, question = asked.pop(0)
        room.machine.queries.answered(b"s", client, LogQueryAnswer(question.number), [])
        more = room.at_engines()
        seen += len(more)
        asked += more
        assert len(asked) <= log_queries.MAX_AT_ENGINE
    assert seen == log_queries.MAX_OPEN
    room.ask("c", bounds(99))
    assert len(room.at_engines()) == 1, "those that were answered do not count"


def test_nothing_is_asked_for_a_client_whose_socket_takes_no_more() -> None:
    room = MachineHarness()
    client, most = room.open("c"), log_queries.MAX_AT_ENGINE
    room.ask("c", *(bounds(n) for n in range(most + 1)))
    room.at_engines()
    room.machine.clients.block(client, [b"x"])
    room.machine.queries.answered(b"s", client, LogQueryAnswer(0), [RECORD])
    room.ask("c", bounds(most + 1))
    assert room.at_engines() == [], "neither what waits for the engine nor what comes"
    other = room.open("other")
    room.ask("other", bounds(99))
    assert [found for _, found, _ in room.at_engines()] == [other]
    kept = []
    while (frames := room.machine.deliveries.next_for(client)) is not None:
        kept.append(frames)
    assert kept[1] == RECORD
    assert len(kept) == 3
    room.machine.unblock(client)
    for n in range(1, most):
        room.machine.queries.answered(b"s", client, LogQueryAnswer(n), [])
    assert [question.number for _, _, question in room.at_engines()] == [most, most + 1]


def test_a_stream_that_a_blocked_client_asks_is_not_idle() -> None:
    room = MachineHarness(stream_idle=30.0)
    client, idle = room.open("c"), room.machine.streams.idle
    room.ask("c", bounds(0))
    room.at_engines()
    room.machine.queries.answered(b"s", client, LogQueryAnswer(0), [])
    assert [idle(now) for now in (0.0, 100.0)] == [[], [b"s"]]
    room.machine.clients.block(client, [b"x"])
    room.ask("c", bounds(1))
    assert [idle(now) for now in (200.0, 300.0)] == [[], []]


def test_who_leaves_is_forgotten_and_makes_room() -> None:
    room = MachineHarness()
    client = room.open("c")
    room.ask("c", *(bounds(i) for i in range(10)))
    room.at_engines()
    room.machine.receive(b"c", wire.encode(wire.Close()), 0.0)
    room.machine.clients.take_output()
    other = room.open("other")
    room.ask("other", bounds(50))
    for i in range(log_queries.MAX_AT_ENGINE):
        room.machine.queries.answered(b"s", client, LogQueryAnswer(i), [RECORD])
    assert room.answers() == []
    assert [found for _, found, _ in room.at_engines()] == [other]
    assert client not in [asker for asker, _ in room.machine.streams[b"s"].asked]


def test_questions_to_an_engine_that_died_are_answered_so() -> None:
    room = MachineHarness()
    blocked, client = room.open("blocked"), room.open("c")
    room.machine.clients.block(blocked, [b"x"])
    room.ask("blocked", bounds(1))
    room.ask("c", *(bounds(i) for i in range(6)))
    room.at_engines()
    room.machine.stream_lost(b"s", "the disk is gone")
    assert room.answers() == [(i, StatusCode.INTERNAL_ERROR, b"the disk is gone") for i in range(6)]
    room.machine.deliveries.next_for(blocked)
    room.machine.unblock(blocked)
    assert room.answers() == [(1, StatusCode.INTERNAL_ERROR, b"the stream was lost")]
    room.ask("c", *(bounds(i) for i in range(log_queries.MAX_OPEN)))
    assert room.answers() == [], "those that were answered do not count"
    assert client.connected


def test_a_reader_opens_no_more_streams_than_there_may_be() -> None:
    room = MachineHarness(streams=2)
    room.open("c")
    room.ask("c", bounds(1, b"a"), bounds(2, b"b"), bounds(3, b"c"), bounds(4, b"none"))
    assert room.answers() == [
        (3, StatusCode.FAILED, b"too many streams"), (4, StatusCode.FAILED, b"there is no such stream")
    ]  # fmt: skip


@examples(300)
@given(st.lists(st.binary(max_size=60) | QUESTIONS.map(LogQuery.pack), max_size=30))
def test_whatever_is_asked_the_machine_goes_on(packed: list[bytes]) -> None:
    room = MachineHarness()
    room.open("c")
    for one in packed:
        room.machine.receive(b"c", wire.encode(wire.Ping(write(Extension(question=one)))), 0.0)
    assert len(room.at_engines()) <= len(packed)
    room.machine.clients.take_output()
    room.machine.receive(b"c", wire.encode(wire.Ping()), 0.0)
    assert len(room.machine.clients.outgoing) > 0


# --- what the durable engine and the catalogue of streams answer to log queries, in bounded steps ---------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableEngine]:
    engine = DurableEngine(b"s", {"folder": str(tmp_path_factory.mktemp("streams"))})
    engine.start()
    for i in range(3000):
        engine.accept("w", b"w", b"t.%d" % (i % 3), [b"x" * 1000], Extension())
    engine.flush()
    yield engine
    engine.close()


def fetch(engine: DurableEngine, *numbers: int, **values: Any) -> tuple[int, list[list[bytes]]]:
    answer, records = engine.ask(LogQuery(Op.FETCH, 1, b"s", numbers, **values))
    assert answer.code == StatusCode.SUCCESS, answer.reason
    return parse_numbers(answer.body, 2)[0][0], records


def test_a_fetch_is_bounded_whatever_was_asked_for(engine: DurableEngine) -> None:
    reached, records = fetch(engine, 0, 2**63 - 1, 2**32 - 1, 2**32 - 1)
    assert reached == len(records) == -(-qu.FETCH_BYTES // 1000)
    assert fetch(engine, 0, 3000, 10, 2**31)[0] == 10
    assert fetch(engine, 0, 3000, 0, 0)[0] == 1, "one at least, or nobody would come on"
    assert fetch(engine, 2990, 2**40, 4096, 2**31) == (3000, fetch(engine, 2990, 3000, 4096, 2**31)[1])
    assert fetch(engine, 5000, 6000, 4096, 2**31)[1] == []
    assert fetch(engine, 20, 10, 4096, 2**31)[1] == []


def test_a_fetch_of_what_is_rare_looks_at_a_bounded_number(
    engine: DurableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qu, "LOOK", 100)
    reached, records = fetch(engine, 0, 3000, 4096, 2**31, selection=Selection.SUBJECTS, texts=(b"nowhere",))
    assert (100 <= reached < 3000, records) == (True, [])


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(QUESTIONS.filter(lambda q: q.op not in (Op.NAMES, Op.TRIM)))
def test_whatever_is_asked_the_engine_answers(engine: DurableEngine, question: LogQuery) -> None:
    answer, records = engine.ask(question)
    assert answer.number == question.number
    assert len(answer.body) < 65_000
    assert sum(len(frame) for frames in records for frame in frames) < 2 * qu.FETCH_BYTES
    assert parse_answer(answer.pack()) is not None


def test_what_is_missing_is_told_in_bounded_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DurableEngine(b"s", {"folder": str(tmp_path)})
    engine.start()
    for _ in range(1000):
        engine.accept("w", b"w", b"t", [b"x"])
    engine.flush()
    engine.store._db.execute("DELETE FROM messages WHERE sequence % 2 = 0")
    monkeypatch.setattr(qu, "MOST_RANGES", 50)
    monkeypatch.setattr(qu, "LOOK", 300)
    found: list[int] = []
    after, steps = 0, 0
    while after < 1000:
        answer, _ = engine.ask(LogQuery(Op.MISSING, 1, b"s", (after, 1000)))
        (after, *edges), _ = parse_numbers(answer.body, len(answer.body) // 8)
        assert len(edges) <= 100
        found += [n for low, high in zip(edges[::2], edges[1::2], strict=True) for n in range(low, high + 1)]
        steps += 1
    engine.close()
    assert found == list(range(2, 1001, 2))
    assert steps == 10


@each(
    ("pattern", "name"),
    [
        (b"^orders$", b"orders"), (rb"^md\.eu$", b"md.eu"), (b"^a-b_c/d$", b"a-b_c/d"), (b"^$", b""),
        (b"orders", None), (b"^orders", None), (b"^md.eu$", None), (b"^a|b$", None), (rb"^\d$", None), (b"^a*$", None),
    ],
)  # fmt: skip
def test_a_pattern_that_is_a_name(pattern: bytes, name: bytes | None) -> None:
    assert name_of(pattern) == name


def test_a_configuration_that_names_a_stream_twice_means_the_first(tmp_path: Path) -> None:
    durable = EngineChoice(b"^a$", "durable", {"folder": str(tmp_path)})
    catalog = EngineSelector([EngineChoice(b"^a$", "simple"), durable])
    assert catalog.names([b"a"]) == []
    refusal = catalog.refusal(b"a", False)
    assert refusal is not None
    assert refusal.code == StatusCode.FAILED
