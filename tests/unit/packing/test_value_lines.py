"""Packs of lines are read together in one copy, and have the lines that Python's split finds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.packing.gathering.payload_places import PayloadPlaces
from mama_spark.packing.gathering.value_lines import values_of_lines

from tests.support.memory import peak_of
from tests.support.tables import each
from tests.support.tiers import examples

WINDOW = 1 << 18  # octets that the search takes at a time

short = st.binary(max_size=14)  # 12 octets are the longest that a view contains
long = st.builds(lambda octet, size: octet * size, st.binary(min_size=1, max_size=1), st.integers(13, 9_000))
payloads = st.one_of(st.lists(short, max_size=6), st.lists(short | long, max_size=6), st.lists(long, max_size=3)).map(
    b"\n".join
)
KINDS = [pa.binary(), pa.binary_view(), None]


def places_of(found: list[bytes], kind: pa.DataType | None, before: int = 0) -> PayloadPlaces:
    """The places of payloads in an array of which the first ones are left out, or by themselves."""
    if kind is None:
        return PayloadPlaces.of_each(found)
    column = pa.array([b"left\nout, longer than a view", b"\n", *found, b"behind"], kind)
    return PayloadPlaces.of(column[before:], np.arange(2 - before, 2 - before + len(found)))


def check(found: list[bytes], announced: list[int], places: PayloadPlaces) -> None:
    values, there = values_of_lines(places, np.array(announced, np.int64))
    values.validate(full=True)
    lines = [payload.split(b"\n") for payload in found]
    assert there.tolist() == [*map(len, lines)]
    assert values.to_pylist() == [
        line for some, n in zip(lines, announced, strict=True) if len(some) == n for line in some
    ]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@examples(80)
@given(found=st.lists(payloads, min_size=1, max_size=6), before=st.integers(0, 2), data=st.data())
def test_lines_are_those_of_a_split_where_as_many_are_announced(
    kind: pa.DataType | None, found: list[bytes], before: int, data: st.DataObject
) -> None:
    wrong = st.sampled_from([0, 0, 0, 1, -1, 1_000_000])
    announced = [max(1, payload.count(b"\n") + 1 + data.draw(wrong)) for payload in found]
    check(found, announced, places_of(found, kind, before))


@each("size", [0, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW - 1, 2 * WINDOW])
def test_lines_end_where_the_parts_of_a_search_meet(size: int) -> None:
    whole = bytes(size)
    cut = bytearray(whole)
    for at in (0, WINDOW - 2, WINDOW - 1, WINDOW, 2 * WINDOW - 1, size - 1):
        if 0 <= at < size:
            cut[at] = 10
    for found in ([whole], [bytes(cut)], [whole, b"", bytes(cut), b"a\nb"]):
        check(found, [payload.count(b"\n") + 1 for payload in found], places_of(found, pa.binary_view()))


def test_a_few_short_lines_among_long_ones_are_right_in_every_place() -> None:
    found = [
        b"\n".join([one, b"x" * 20_000, *many, b"y" * 20_000, one])
        for one in (b"", b"a", b"twelve octet", b"thirteen octe")
        for many in ([], [one], [b"", b"12", b"123456789012"])
    ]
    for kind in KINDS:
        check(found, [payload.count(b"\n") + 1 for payload in found], places_of(found, kind))


def read_lines_that_nobody_announced() -> None:
    for announced in (1, 1_000_000):
        values, there = values_of_lines(PayloadPlaces.of_each([b"\n" * (16 << 20)]), np.array([announced]))
        assert (len(values), there.tolist()) == (0, [(16 << 20) + 1])


def test_lines_that_nobody_announced_take_no_memory() -> None:
    assert max(peak_of(read_lines_that_nobody_announced)) < 32 << 20, (
        "the payload is half; places of lines would take 128 MB"
    )
