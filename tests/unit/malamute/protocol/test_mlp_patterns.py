"""Matching of subjects: the recorded cases, every row of the reference's table, and patterns meant to stall."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.protocol import patterns
from mama_spark.malamute.protocol.patterns import BadPattern, Matcher, Pattern

from tests.support.tables import each
from tests.support.tiers import EXPLORE
from tests.support.vectors import vectors

VECTORS = vectors("malamute")
MATCHES = [case for v in VECTORS if v["kind"] == "match" for case in v["input"]]


def matches(pattern: str, subject: str) -> bool:
    """The result of Pattern and Matcher, which must be equal."""
    one = Pattern(pattern.encode()).search(subject.encode())
    many = Matcher()
    many.add(pattern.encode())
    assert bool(many.match(subject.encode())) is one
    return one


@each("case", MATCHES)
def test_recorded_matches(case: dict[str, Any]) -> None:
    assert matches(case["pattern"], case["subject"]) is case["match"]


#: What the reference and Python's re.search agree on: literals, wildcards, anchors, groups, classes, lazy forms.
COMMON = [
    ("t.mp", "tamp", True), ("^temp", "temp.x", True), ("a.*b", "a--b", True), ("a.*?b", "ab", True),
    ("a.+?b", "ab", False), ("(ab|cd)e", "cde", True), (r"a\.b", "axb", False), (r"\D", "123", False),
    (r"\s", "a b", True), (r"\S", "  ", False), ("[ab]c", "bc", True), ("[^a]b", "ab", False),
    ("x$", "xy", False), ("x?y", "y", True),
]  # fmt: skip


@each(("pattern", "subject", "expected"), COMMON)
def test_what_the_reference_and_python_agree_on(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


#: A backslash at the end, which the reference takes: what it was seen to match.
OPEN_ESCAPES = [
    ("\\", "a", False), ("\\", "a\\b", False), ("a\\", "a", False), ("a\\", "a\\b", False), (".\\", "b", False),
    ("\\\\", "a\\b", True), ("\\\\", "b", False), ("a|b\\", "a", True), ("a|b\\", "b", False),
]  # fmt: skip


@each(("pattern", "subject", "expected"), OPEN_ESCAPES)
def test_a_backslash_at_the_end_is_taken(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


#: Where the reference's matcher and Python's differ: what ours does. Ours is the regular expression that it says it is.
TABLE = [
    ("", "", True), (".*", "", True), ("()", "", True),  # an empty subject is a subject
    ("^", "", True), ("a", "", False),
    ("$", "abc", True),  # the end, of any subject
    ("[a-c]", "b", True), ("[a-c]", "-", False), (r"[\d]", "7", True),  # ranges and classes in brackets
    ("a.?b", "ab", True), ("a.?b", "axb", True), ("a.?b", "axxb", False),  # gives back
    (r"\w", "_", True), (r"\W", "_", False), (r"\w", "\u00e9", False),  # ASCII with underscore
    (r"\a", "a", False), (r"\a", "\a", True), (r"^\Aa", "ba", False), (r"\Aa", "ab", True),  # BEL, start of text
    (r"\x61", "a", True), ("a{2,3}b", "aab", True), ("a{2,3}b", "ab", False),
    (r"\bfoo\b", "a foo b", True), (r"\bfoo\b", "afoo", False),
    ("(?i)ABC", "abc", True), ("(?:ab)+c", "ababc", True),
    ("^a|b", "xb", True), ("^(a|b)", "xb", False),  # the anchor belongs to its branch
    ("x$", "x\n", False), (r"x\z", "x", True),  # the end is the end
]  # fmt: skip


@each(("pattern", "subject", "expected"), TABLE)
def test_where_the_reference_and_python_differ(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


REFUSED = ["[", "(", ")", "a)", "*", "+", "a**", "(a*)*", "(a*)+", "(|a)*", "()*", "(a?){3}", "((b|a*)){2,}"]
UNSUPPORTED = ["(?=a)", "(?!a)", "(?<=a)", r"(a)\1", r"a\Z", "a{1,1001}", "(a{1,1000}){1,1000}", "a{600}"]


@each("pattern", REFUSED + UNSUPPORTED)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(BadPattern) as caught:
        Pattern(pattern.encode())
    assert "pattern" in str(caught.value)


@each("pattern", ["(a+)*", "(ab*)*", r"\(a*\)*", "[(]*", "[])(]*", r"\Q(a*)*\E", "((a*)b)*", "[[:alpha:](]*", "(a*)?"])
def test_patterns_that_only_look_like_a_repeated_empty_group_are_taken(pattern: str) -> None:
    Pattern(pattern.encode())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("(a+)+$", False), ("(x+x+)+y", False), (".*a.{200}", True), ("(.*a){20}", True), ("(a|a)+$", False),
     ("(a{1,15}){1,15}b", False)],
)  # fmt: skip
def test_patterns_that_stall_a_backtracking_matcher_only_cost_the_subject(
    pattern: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these takes centuries where alternatives are tried one after another (fatal inputs of the reference)."""
    monkeypatch.setattr(patterns, "CHUNK", 20)
    subject = b"a" * 254 + b"!"
    assert Pattern(pattern.encode()).search(subject) is expected
    many = Matcher()
    for n in range(patterns.CHUNK + 1):
        many.add(pattern.encode() + b"|%d" % n)
    assert (pattern.encode() + b"|0" in many.match(subject)) is expected
    assert pattern.encode() + b"|17" in many.match(b"17" + subject)


def test_octets_that_are_no_text_are_matched() -> None:
    assert Pattern(b"^\xff.\xfe$").search(b"\xff\x80\xfe")
    assert not Pattern(b"^..$").search("\u20ac".encode())  # three octets, not one character


def test_patterns_of_many_chunks() -> None:
    many, count = Matcher(), 10_000 if EXPLORE else 4 * patterns.CHUNK + 1
    for n in range(count):
        many.add(b"^dev%d\\." % n)
    assert len(many) == count
    for n in (77, patterns.CHUNK, count - 1):
        assert many.match(b"dev%d.temp" % n) == [b"^dev%d\\." % n]
    assert many.match(b"dev.temp") == []


def test_patterns_come_and_go() -> None:
    many = Matcher()
    for text in (b"a", b"a", b"b", b"."):
        many.add(text)
    assert sorted(many.match(b"ab")) == [b".", b"a", b"b"]
    many.discard(b"a")
    many.discard(b"a")
    assert b"a" not in many
    assert sorted(many.match(b"ab")) == [b".", b"b"]
    many.discard(b"b")
    many.discard(b".")
    assert many.match(b"ab") == []
    assert len(many) == 0


def test_a_refused_pattern_changes_nothing() -> None:
    many = Matcher()
    many.add(b"a")
    with pytest.raises(BadPattern):
        many.add(b"(")
    assert many.match(b"a(") == [b"a"]


def test_patterns_that_are_too_large_together_are_matched_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """RE2 says so when it compiles them, or says nothing and finds nothing: both are noticed."""
    texts = [b".*%c.{%d}" % (97 + n % 26, 50 + n) for n in range(60)]
    subject = b"abcdefghijklmnopqrstuvwxyz" * 9
    expected = {text for text in texts if Pattern(text).search(subject)}
    assert expected
    for memory in (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 23):
        monkeypatch.setattr(patterns, "_CHUNK_MEMORY", memory)
        many = Matcher()
        for text in texts:
            many.add(text)
        assert set(many.match(subject)) == expected, memory


@given(st.binary(max_size=30), st.binary(max_size=40))
def test_any_octets_are_a_pattern_or_refused(text: bytes, subject: bytes) -> None:
    try:
        pattern = Pattern(text)
    except BadPattern:
        return
    many = Matcher()
    many.add(text)
    assert bool(many.match(subject)) is pattern.search(subject)


@given(st.text(alphabet="ab()|*+?{},[]^$\\.12", max_size=20), st.text(alphabet="ab12(", max_size=20))
def test_any_text_full_of_operators_is_a_pattern_or_refused(text: str, subject: str) -> None:
    try:
        Pattern(text.encode()).search(subject.encode())
    except BadPattern:
        return
