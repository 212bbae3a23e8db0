"""Log queries and answers on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol import log_query as qu
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Extension, write
from mama_spark.malamute.protocol.log_query import (
    LogQuery,
    LogQueryAnswer,
    Op,
    Selection,
    parse_answer,
    parse_query,
)

from tests.support.malamute.log_queries import NAMES, QUESTIONS, U32
from tests.support.tiers import examples


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
def test_what_is_no_question_or_answer_is_not_understood_and_raises_nothing(octets: bytes, op: bytes) -> None:
    for parse in (parse_query, parse_answer, qu.number_of):
        parse(op + octets)


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
