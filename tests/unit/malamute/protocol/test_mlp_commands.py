"""The MLP codec against recorded bytes, and against arbitrary bytes (ML-20); patterns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol import patterns
from mama_spark.malamute.protocol.commands import BadFrame, Command, ExtraFrames, decode, encode
from mama_spark.malamute.protocol.patterns import BadPattern, Matcher, Pattern

from tests.support.tables import each
from tests.support.tiers import EXPLORE, examples
from tests.support.vectors import vectors

VECTORS = vectors("malamute")

#: fields of the vectors that have another name here
NAMES = {"status_code": "code", "status_reason": "reason"}


def kind(*names: str, layers: set[str] | None = None) -> list[Any]:
    chosen = [v for v in VECTORS if v["kind"] in names and (layers is None or v["layer"] in layers)]
    return [pytest.param(v, id=v["name"]) for v in chosen]


def raw(value: Any) -> Any:
    if isinstance(value, list):
        return [raw(v) for v in value]
    if isinstance(value, dict):
        return bytes.fromhex(value["$hex"])
    return value.encode() if isinstance(value, str) else value


def command_of(decoded: dict[str, Any]) -> Command:
    """The command that the vectors describe."""
    values = {NAMES.get(k, k): raw(v) for k, v in decoded.items()}
    cls = wire.COMMANDS[decoded["id"]]
    for fixed in ("id", "command", "protocol", "version"):
        values.pop(fixed, None)
    return cls(**values)


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(h) for h in vector["hex"]]


@pytest.mark.spec("P1-P18")
@each("vector", kind("frame"))
def test_recorded_frames_are_read_and_written_byte_for_byte(vector: dict[str, Any]) -> None:
    frames, want = frames_of(vector), command_of(vector["decoded"])
    assert type(want).__name__.upper() == vector["decoded"]["command"].replace("CONNECTION ", "").replace(" ", "")
    assert decode(frames) == want
    if vector["encode"] == "exact":
        assert encode(want) == encode(want) == frames


@each("vector", kind("frame"))
def test_every_cut_of_a_good_frame_is_refused(vector: dict[str, Any]) -> None:
    frame, *content = frames_of(vector)
    whole = len(frame) - len(raw(vector["decoded"].get("trailing", "")))
    for size in range(whole):
        with pytest.raises(BadFrame):
            decode([frame[:size], *content])


@each("vector", kind("bad", layers={"frame", "message"}))
def test_bad_frames_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        decode(frames_of(vector))


@each("vector", kind("bad", layers={"server"}))
def test_what_only_a_server_can_refuse_is_read(vector: dict[str, Any]) -> None:
    assert encode(decode(frames_of(vector))) == frames_of(vector)


@each("vector", kind("encode_error"))
def test_what_does_not_fit_is_not_written(vector: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        encode(command_of(vector["decoded"]))


def test_extra_frames_are_flagged_with_the_command_in_front_of_them() -> None:
    with pytest.raises(ExtraFrames) as caught:
        decode([b"\xaa\xa8\x02", b"extra", b""])
    assert caught.value.command == wire.Ping()
    assert "Ping with 2 extra frames" in str(caught.value)


def test_a_nul_is_not_written_and_ends_a_string_that_is_read() -> None:
    with pytest.raises(BadFrame, match="NUL"):
        encode(wire.StreamWrite(b"a\0b"))
    assert decode([b"\xaa\xa8\x05\x03a\0b"]) == wire.StreamWrite(b"a")
    assert decode([b"\xaa\xa8\x05\x01\0tail"]) == wire.StreamWrite(b"", b"tail")
    assert wire.subject_of_send([b"\xaa\xa8\x07\x03a\0b"]) is None, "the short way reads none"


def test_limits_of_strings_and_numbers() -> None:
    name = bytes(range(1, 256))
    assert decode(encode(wire.StreamWrite(name))) == wire.StreamWrite(name)
    assert decode(encode(wire.Credit(65535))) == wire.Credit(65535)
    for bad in (wire.Credit(-1), wire.MailboxSend(b"a", b"s", timeout=2**32), wire.Ok(code=2**16)):
        with pytest.raises(BadFrame, match="does not fit"):
            encode(bad)


def test_the_short_way_to_a_delivery_writes_the_same_frame() -> None:
    for stream, sender, subject in ((b"st", b"", b"t"), (b"s" * 255, b"n" * 255, b"\xff" * 255)):
        assert [wire.deliver_frame(stream, sender, subject)] == encode(wire.StreamDeliver(stream, sender, subject))


STRINGS = st.binary(max_size=255).map(lambda b: b.replace(b"\0", b"0"))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "s": STRINGS, "2": st.integers(0, 2**16 - 1), "4": st.integers(0, 2**32 - 1)
}  # fmt: skip


@st.composite
def commands(draw: st.DrawFn) -> Command:
    cls: Any = wire.COMMANDS[draw(st.integers(1, 18))]
    values = {name: draw(VALUES[kind]) for name, kind in cls.layout}
    if cls.has_content:
        values["content"] = draw(st.lists(st.binary(max_size=20), max_size=4))
    return cls(**values, trailing=draw(st.binary(max_size=20)))  # type: ignore[no-any-return]


@given(commands())
def test_any_command_survives_the_wire(command: Command) -> None:
    frames = encode(command)
    assert decode(frames) == command
    subject = command.subject if isinstance(command, wire.StreamSend) and not command.trailing else None
    assert wire.subject_of_send(frames) == subject, "the short way"


@st.composite
def mutated(draw: st.DrawFn) -> list[bytes]:
    frames = [bytearray(f) for f in encode(draw(commands()))]
    frame = frames[draw(st.integers(0, len(frames) - 1))]
    for _ in range(draw(st.integers(1, 3))):
        if frame:
            frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    return [bytes(f) for f in frames]


@examples(500)
@given(st.one_of(
    st.lists(st.binary(max_size=60), max_size=4), mutated(),
    st.binary(min_size=1, max_size=60).map(lambda rest: [wire.SIGNATURE + rest]),
))  # fmt: skip
def test_any_frames_are_read_or_refused(frames: list[bytes]) -> None:
    try:
        command = decode(frames)
    except BadFrame:
        assert wire.subject_of_send(frames) is None
        return
    subject = wire.subject_of_send(frames)
    assert subject is None or command == wire.StreamSend(subject, frames[1:])


# --- Matching of subjects: the recorded cases, every row of the reference's table, and patterns meant to stall --------


def matches(pattern: str, subject: str) -> bool:
    """The result of Pattern and Matcher, which must be equal."""
    one = Pattern(pattern.encode()).search(subject.encode())
    many = Matcher()
    many.add(pattern.encode())
    assert bool(many.match(subject.encode())) is one
    return one


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
    ("\\", "a\\b", False), ("a\\", "a", False), ("a|b\\", "a", True), ("a|b\\", "b", False),  # an escape left open
]  # fmt: skip


_INPUTS = [case for v in VECTORS if v["kind"] == "match" for case in v["input"]]
RECORDED = [(case["pattern"], case["subject"], case["match"]) for case in _INPUTS]


@each(("pattern", "subject", "expected"), RECORDED + TABLE)
def test_what_a_pattern_matches(pattern: str, subject: str, expected: bool) -> None:
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


def test_bytes_that_are_no_text_are_matched() -> None:
    assert Pattern(b"^\xff.\xfe$").search(b"\xff\x80\xfe")
    assert not Pattern(b"^..$").search("\u20ac".encode())  # three bytes, not one character


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
    with pytest.raises(BadPattern):
        many.add(b"(")
    assert many.match(b"ab(") == []
    assert len(many) == 0


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


OPERATORS = st.text(alphabet="ab()|*+?{},[]^$\\.12", max_size=20).map(str.encode)


@given(st.binary(max_size=30) | OPERATORS, st.binary(max_size=40) | OPERATORS)
def test_any_bytes_are_a_pattern_or_refused(text: bytes, subject: bytes) -> None:
    try:
        pattern = Pattern(text)
    except BadPattern:
        return
    many = Matcher()
    many.add(text)
    assert bool(many.match(subject)) is pattern.search(subject)
