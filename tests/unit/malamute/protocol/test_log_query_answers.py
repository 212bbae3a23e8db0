"""What the durable engine and the catalogue of streams answer to log queries, in bounded steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from mama_spark.malamute.protocol import log_query as qu
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import Extension
from mama_spark.malamute.protocol.log_query import (
    LogQuery,
    Op,
    Selection,
    parse_answer,
    parse_numbers,
)
from mama_spark.services.malamute_broker.broker.stream_catalog import StreamCatalog, name_of
from mama_spark.services.malamute_broker.engines.durable.engine import DurableEngine
from mama_spark.services.malamute_broker.engines.query_answers import MAX_PATTERNS

from tests.support.malamute.log_queries import QUESTIONS
from tests.support.tables import each
from tests.support.tiers import examples


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
    assert reached == len(records) == -(-qu.FETCH_OCTETS // 1000)
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


def test_patterns_are_refused_with_the_reason(engine: DurableEngine) -> None:
    for texts, reason in (
        ((b"(",), b"not a pattern"),
        ((b"x",) * (MAX_PATTERNS + 1), b"more than 256 patterns"),
        ((b"(a*)*",), b"pattern repeats a group"),
    ):
        question = LogQuery(Op.FETCH, 1, b"s", (0, 9, 9, 9), b"", Selection.PATTERNS, texts)
        answer, records = engine.ask(question)
        assert (answer.code, records) == (StatusCode.FAILED, [])
        assert answer.reason.startswith(reason)


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(QUESTIONS.filter(lambda q: q.op not in (Op.NAMES, Op.TRIM)))
def test_whatever_is_asked_the_engine_answers(engine: DurableEngine, question: LogQuery) -> None:
    answer, records = engine.ask(question)
    assert answer.number == question.number
    assert len(answer.body) < 65_000
    assert sum(len(frame) for frames in records for frame in frames) < 2 * qu.FETCH_OCTETS
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
        found += [
            sequence for low, high in zip(edges[::2], edges[1::2], strict=True) for sequence in range(low, high + 1)
        ]
        steps += 1
    engine.close()
    assert found == list(range(2, 1001, 2))
    assert steps == 10


def test_trim_wants_the_very_stream(tmp_path: Path) -> None:
    engine = DurableEngine(b"s", {"folder": str(tmp_path)})
    engine.start()
    engine.accept("w", b"w", b"t", [b"x"])
    engine.flush()
    other, _ = engine.ask(LogQuery(Op.TRIM, 1, b"s", (2,), b"another identity"))
    assert (other.code, engine.store.first) == (StatusCode.FAILED, 1)
    right, _ = engine.ask(LogQuery(Op.TRIM, 1, b"s", (2**40,), other.identity))
    assert (right.code, engine.store.first) == (StatusCode.SUCCESS, 2)
    engine.close()


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
    chosen = [(b"^a$", ("simple", {})), (b"^a$", ("durable", {"folder": str(tmp_path)}))]
    catalog = StreamCatalog(chosen, lambda stream: ("simple", {}))
    assert catalog.names([b"a"]) == []
    refusal = catalog.refusal(b"a", False)
    assert refusal is not None
    assert refusal.code == StatusCode.FAILED
