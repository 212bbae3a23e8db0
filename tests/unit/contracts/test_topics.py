"""One rule says what can be published to, and one what wildcards stand for, compared with a simple oracle; headers."""

from __future__ import annotations

import re
import string
from functools import cache
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import PublishError
from mama_spark.contracts.headers import HeaderLines, bad_values, reject_lines
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.contracts.topics import (
    TopicFilter,
    compile_filters,
    covers,
    is_filter,
    overlap,
    unpublishable,
    why_unpublishable,
)
from mama_spark.malamute.bridge import frames
from mama_spark.malamute.bridge.logs import pattern_of
from mama_spark.malamute.protocol.patterns import Pattern
from mama_spark.memory.bridge import MemoryBridge
from mama_spark.nats.subjects import Filters
from mama_spark.options.values import topic_name, topic_patterns

from tests.support.tables import each
from tests.support.tiers import examples

# --- what can be published to ----------------------------------------------------------------------------------------

BLANKS = {chr(n) for n in range(33)} | {chr(127)}
ANY_TOPIC = st.text(st.sampled_from("ab.*>. \n\0\x7f\u00a0\u2028ü$"), max_size=6) | st.text(max_size=6)


def publishable(topic: str) -> bool:
    return not set(topic) & BLANKS and not {"", "*", ">"} & set(topic.split("."))


@examples(400)
@given(st.lists(ANY_TOPIC, max_size=5))
def test_arrow_and_text_say_what_can_be_published_to(topics: list[str]) -> None:
    wanted = [publishable(topic) for topic in topics]
    assert [not bad for bad in unpublishable(pa.array(topics, pa.string()))] == wanted
    assert [why_unpublishable(topic) is None for topic in topics] == wanted


@examples(200)
@given(ANY_TOPIC)
def test_bridges_and_options_agree(topic: str) -> None:
    batch, fine = MessageBatch.of([topic], [b""]), publishable(topic)
    assert (not frames.check(batch, True)) is fine
    assert (not MemoryBridge("topics").prepare(batch).rejected) is fine
    if topic == topic.strip() and topic:  # an option loses the blanks around it
        try:
            assert topic_name(topic) == topic
        except ValueError:
            assert not fine
        else:
            assert fine


@each(
    ("topic", "why"),
    [
        ("", "empty topic"),
        ("a b..*", "topic 'a b..*' holds a blank or control character"),
        ("a\x7f", r"topic 'a\x7f' holds a blank or control character"),
        ("a..*", "topic 'a..*' has an empty token"),
        ("a.>", "topic 'a.>' has a wildcard"),
        ("a*.>b", None),
    ],
)
def test_the_reason_names_the_topic(topic: str, why: str | None) -> None:
    assert why_unpublishable(topic) == why


def test_null_cannot_be_published_to() -> None:
    assert unpublishable(pa.array([None, "a"], pa.string())).tolist() == [True, False]


@examples(300)
@given(ANY_TOPIC)
def test_a_filter_is_a_topic_with_wildcards_in_their_places(topic: str) -> None:
    *before, last = topic.split(".")
    plain = ".".join("w" if part == "*" else part for part in before) + ("." if before else "")
    expected = publishable(plain + ("w" if last in ("*", ">") else last))
    assert is_filter(topic) is expected
    if topic == topic.strip() and topic and "," not in topic:
        read = expected and not any(len(part) > 1 and set(part) & {"*", ">"} for part in topic.split("."))
        try:
            assert topic_patterns(topic) == (topic,)
        except ValueError:
            assert not read
        else:
            assert read


@each(("topic", "meant"), [("B.t.1*", "B.t.*"), ("a.b>", "a.>"), ("*a.b", "*.b"), ("a>.b", "*.b")])
def test_a_wildcard_that_is_a_piece_of_a_part_is_said_with_what_was_meant(topic: str, meant: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"Read {meant!r}")):
        topic_patterns(topic)


# --- what wildcards stand for ----------------------------------------------------------------------------------------

FILTERS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).flatmap(
    lambda parts: st.sampled_from([".".join(parts), ".".join([*parts, ">"]), ">"])
)
TOPICS = [".".join(parts) for n in range(1, 5) for parts in product("abc", repeat=n)]


def stands_for(wanted: list[str], parts: list[str]) -> bool:
    """The oracle: part by part."""
    if not wanted or not parts:
        return not wanted and not parts
    if wanted == [">"]:
        return True
    return wanted[0] in ("*", parts[0]) and stands_for(wanted[1:], parts[1:])


@cache
def matched(wanted: str) -> frozenset[str]:
    return frozenset(topic for topic in TOPICS if stands_for(wanted.split("."), topic.split(".")))


@examples(100)
@given(FILTERS)
def test_all_forms_of_a_filter_stand_for_the_same_topics(wanted: str) -> None:
    one, compiled, pattern = TopicFilter.parse(wanted), compile_filters(["x", wanted]), Pattern(pattern_of(wanted))
    filters = Filters([(wanted, "owner")])
    assert one.literal is (wanted in TOPICS)
    for topic in TOPICS:
        expected = topic in matched(wanted)
        assert one.matches(topic.split(".")) is expected
        assert bool(compiled.fullmatch(topic)) is expected
        assert bool(pattern.search(topic.encode())) is expected
        assert (filters.owner(topic) is not None) is expected


@given(st.text(string.printable.replace(".", ""), min_size=1, max_size=4), st.sampled_from(["{}", "a.{}", "{}.a"]))
def test_letters_of_expressions_stand_for_themselves(part: str, place: str) -> None:
    topic = place.format(part)
    if part not in ("*", ">"):
        assert compile_filters([topic]).fullmatch(topic)
        assert not compile_filters([topic]).fullmatch(place.format(part + "x"))


@examples(100)
@given(FILTERS, FILTERS)
def test_overlap_and_cover_are_what_the_matched_topics_say(one: str, other: str) -> None:
    a, b = matched(one), matched(other)
    assert overlap(one, other) == overlap(other, one) == bool(a & b)
    assert covers(one, other) == (b <= a)


# --- Names and values of headers that no bridge sends are found, however many fine ones stand beside them -------------

texts = st.text(st.sampled_from("az~é \t:\r\n\0\x7f\x1f"), max_size=4)


@examples(100)
@given(values=st.lists(st.none() | texts, max_size=8), cut=st.integers(0, 8))
def test_values_with_line_breaks_or_nul_and_nulls_are_bad(values: list[str | None], cut: int) -> None:
    found = bad_values(pa.array(values, pa.string()).slice(cut)).to_pylist()
    assert found == [v is None or re.search("[\x00\r\n]", v) is not None for v in values[cut:]]


@examples(100)
@given(names=st.lists(texts, min_size=1, max_size=6))
def test_names_that_are_empty_or_have_a_blank_colon_or_control_character_are_bad(names: list[str]) -> None:
    maps = pa.array([[(name, ["v"])] for name in names], HEADERS_TYPE)
    bad: dict[int, PublishError] = {}
    reject_lines(HeaderLines.of(maps), bad)
    assert sorted(bad) == [i for i, name in enumerate(names) if not name or re.search("[\x00-\x20:\x7f]", name)]
