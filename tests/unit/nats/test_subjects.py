"""Which filters a consumer is given."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.topics import covers
from mama_spark.nats.subjects import Filters, filters_of, is_request, made_by, may_store, to_allow

from tests.support.tables import each
from tests.support.tiers import examples

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


def calls_of(run: Callable[[], object]) -> int:
    """Number of calls of functions, Python's and others, without those of the garbage collector."""
    counted = 0

    def count(*_: object) -> None:
        nonlocal counted
        counted += 1

    gc.disable()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


@examples(60)
@given(st.lists(PATTERNS, min_size=1, max_size=4))
def test_filters_lose_no_subject_and_none_holds_another(topics: list[str]) -> None:
    filters = filters_of(topics)
    assert _all(filters) == _all(topics)
    assert filters == [t for t in dict.fromkeys(topics) if not any(t != k and covers(k, t) for k in topics)]


def test_filters_are_reduced_at_the_same_cost_for_each_topic() -> None:
    def calls(number: int) -> int:
        topics = ["all.>", *(f"{root}.r{n}" for n in range(number) for root in ("orders", "all"))]
        found: list[str] = []
        counted = calls_of(lambda: found.extend(filters_of(topics)))
        assert found == ["all.>", *(f"orders.r{n}" for n in range(number))]
        return counted

    assert calls(200) <= 20 * calls(10)


@each(
    ("config", "topic", "stores"),
    [
        ({"subjects": ["a.>"]}, "a.b", True),
        ({"subjects": ["a.>"]}, "x.y", False),
        ({"mirror": {"name": "M"}}, "x.y", None),
        ({"subjects": ["a.>"], "sources": [{"name": "M"}]}, "a.*", True),
        ({"subjects": ["a.>"], "sources": [{"name": "M"}]}, "x.y", None),
        ({"subjects": ["a.>"], "subject_transform": {"src": "a.>", "dest": "c.>"}}, "c.*", True),
        ({"subjects": ["a.>"], "subject_transform": {"src": "a.>", "dest": "c.>"}}, "a.b", False),
        ({"subjects": ["a.>"], "subject_transform": {"src": "", "dest": "c.>"}}, "a.b", False),
        ({"subjects": ["a.>"], "subject_transform": {"src": "a.b.>", "dest": "c.>"}}, "a.x", True),
        ({"subjects": ["a.>"], "subject_transform": {"src": "a.b.>", "dest": "c.>"}}, "a.b.c", False),
    ],
)
def test_what_a_stream_may_store(config: dict[str, Any], topic: str, stores: bool | None) -> None:
    assert may_store(config, topic) is stores


@each(
    ("destination", "made"),
    [
        ("a.{{wildcard(1)}}.$2.>", "a.*.*.>"),
        ("a.{{ Partition(3,1) }}.b", "a.*.b"),
        ("a.{{split(1,-)}}.b", "a.>"),
        ("$name.b", "$name.b"),
    ],
)
def test_what_a_transform_makes(destination: str, made: str) -> None:
    assert made_by(destination) == made


def test_the_owner_of_a_topic_is_found_at_the_same_cost_among_any_number_of_filters() -> None:
    def calls(number: int) -> int:
        filters = Filters((f"orders.r{n}.{rest}", f"ORDERS-{n}") for n in range(number) for rest in ("*.new", "all.>"))
        asked = [(f"orders.r{n}.{rest}", f"ORDERS-{n}") for n in (0, number - 1) for rest in ("eu.new", "all.a.b")]
        asked += [("orders.none.eu.new", ""), ("orders.r0.eu.old", "")]
        found: list[str] = []
        counted = calls_of(lambda: found.extend(filters.owner(subject) or "" for subject, _ in asked))
        assert found == [owner for _, owner in asked]
        return counted

    assert calls(1_000) == calls(10)


def test_a_filter_keeps_its_first_owner_and_a_topic_its_last() -> None:
    filters = Filters([("a.*", "one"), ("a.*", "two"), (">", "rest")])
    assert [filters.owner(subject) for subject in ("a.b", "a.b.c", "a")] == ["one", "rest", "rest"]
    filters.add("a.b", "said")
    filters.add("a.b", "said later")
    assert filters.owner("a.b") == "said later"


@each(
    ("subject", "pattern"),
    [
        ("orders.a", "orders.a"),
        ("$JS.API.STREAM.INFO.S", "$JS.API.STREAM.INFO.S"),
        ("$JS.API.CONSUMER.CREATE.S.mama-x1.a.b", "$JS.API.CONSUMER.CREATE.S.>"),
        ("$JS.hub.API.CONSUMER.MSG.NEXT.S.mama-x1", "$JS.hub.API.CONSUMER.MSG.NEXT.S.>"),
        ("_INBOX.x1.*", "_INBOX.>"),
    ],
)
def test_what_to_allow_has_no_name_that_changes_each_time(subject: str, pattern: str) -> None:
    assert to_allow(subject) == pattern


@each(
    ("topic", "carried_out"),
    [
        ("$JS.API.STREAM.DELETE.S", True),
        ("$SYS.REQ.SERVER.PING", True),
        ("theirs.API.STREAM.PURGE.S", True),
        ("theirs.APIS.a", False),
        ("$JS.EVENT.ADVISORY.a", False),
        ("$KV.b.k", False),
        ("$JS.hub.API.$KV.b.k", False),
        ("theirs.API.$KV.b.k", False),
        ("$JS.API.STREAM.DELETE.$KV.b", True),
    ],
)
def test_topics_that_are_requests_to_the_server(topic: str, carried_out: bool) -> None:
    assert is_request(topic, "theirs.API.") is carried_out
