"""Runs of fields: they make reading faster and change nothing of what is read."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.mama.messages import omnm
from mama_spark.mama.messages.field_runs import MOST_RUNS
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg

from tests.support.tiers import examples

#: Fields whose heads begin alike, differ in type, or have no name.
FIELDS = [
    (FieldType.U8, "a", 1, 1),
    (FieldType.U8, "a", 2, 2),
    (FieldType.U32, "a", 1, 3),
    (FieldType.F64, "ab", 1, 4.5),
    (FieldType.STRING, "a", 1, "text"),
    (FieldType.STRING, "", 7, ""),
    (FieldType.CHAR, "", 1, "x"),
    (FieldType.VECTOR_U16, "v", 3, [1, 2]),
    (FieldType.I64, "n" * 80, 9, -1),
]


def message(places: list[int]) -> MamaMsg:
    msg = MamaMsg()
    for place in places:
        msg.add(*FIELDS[place])
    return msg


@examples(200)
@given(st.lists(st.lists(st.integers(0, len(FIELDS) - 1), max_size=12), max_size=12))
def test_messages_that_differ_anywhere_are_read_one_after_the_other(layouts: list[list[int]]) -> None:
    for places in layouts:
        assert omnm.decode(omnm.encode(message(places))) == message(places)


def test_a_run_is_cut_where_messages_differ() -> None:
    def of(*names: str) -> MamaMsg:
        msg = MamaMsg()
        for name in ("first", "second", *names):
            msg.add(FieldType.U8, name, 1000, 1)
        return msg

    one, other = of("third", "fourth"), of("fourth", "third")
    for msg in (one, other, one, other):
        assert omnm.decode(omnm.encode(msg)) == msg
    run = omnm.RUNS.known(omnm.encode(one)[3:12])
    assert run is not None
    assert run.names == ("first", "second")


def test_a_message_that_ends_earlier_than_others_is_read() -> None:
    whole, part = message([3, 1, 2, 0]), message([3, 1])
    for msg in (whole, part, whole):
        assert omnm.decode(omnm.encode(msg)) == msg


def test_heads_of_a_hostile_sender_are_not_all_remembered() -> None:
    chance = random.Random(1)
    for n in range(3 * MOST_RUNS):
        msg = MamaMsg()
        msg.add(FieldType.U8, f"hostile{n}", chance.randrange(65536), 1)
        msg.add(FieldType.STRING, f"{n}", 1, "")
        omnm.decode(omnm.encode(msg))
    assert len(omnm.RUNS) <= MOST_RUNS
