"""Which filters a consumer is given."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.bridges.nats.subjects import Filters, filters_of
from mama_spark.topics import covers

from tests.support.examples import examples

PATTERNS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens, ">"]), ">"])
)
SUBJECTS = [".".join(s) for n in range(1, 5) for s in product("abc", repeat=n)]


@cache
def matched(pattern: str) -> frozenset[str]:
    filters = Filters([(pattern, "x")])
    return frozenset(s for s in SUBJECTS if filters.owner(s))


def _all(patterns: list[str]) -> frozenset[str]:
    return frozenset().union(*map(matched, patterns))


@examples(60)
@given(st.lists(PATTERNS, min_size=1, max_size=4), st.lists(PATTERNS, min_size=1, max_size=2))
def test_filters_lose_no_subject_of_the_stream_and_none_holds_another(topics: list[str], stream: list[str]) -> None:
    filters = filters_of(topics, stream)
    inside = _all(stream)
    wanted = _all(topics) & inside
    assert _all(filters) & inside == wanted
    assert not [1 for a in filters for b in filters if a != b and covers(a, b)]


@pytest.mark.parametrize(
    ("topics", "stream", "filters"),
    [
        ([], ["a.>"], []),
        (["a.b", "x.y"], ["a.>"], ["a.b"]),
        (["x.y"], ["a.>"], []),
        (["x.y"], [], ["x.y"]),  # a mirror: nobody knows
        (["a.b", "a.*", "a.b"], ["a.>"], ["a.*"]),
        (["*.b", "a.*"], ["a.>"], ["*.b", "a.*"]),
    ],
)
def test_filters(topics: list[str], stream: list[str], filters: list[str]) -> None:
    assert filters_of(topics, stream) == filters
