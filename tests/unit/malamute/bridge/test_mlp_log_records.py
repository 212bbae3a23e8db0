"""Log records of a Malamute broker: fetched messages as columns, topics as selections, ranges as fetches."""

from __future__ import annotations

import struct
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.topics import compile_filters
from mama_spark.malamute.bridge.log_queries import AHEAD, ReadSession
from mama_spark.malamute.bridge.logs import pattern_of, selection_of
from mama_spark.malamute.bridge.records import block, records
from mama_spark.malamute.client.calls import PendingQuery
from mama_spark.malamute.protocol import log_query as qu
from mama_spark.malamute.protocol.commands import StreamDeliver, encode
from mama_spark.malamute.protocol.extensions import Extension, read, write
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Selection, numbers
from mama_spark.malamute.protocol.patterns import Pattern
from mama_spark.testing.log_suite import rows

from tests.support.tiers import examples

OCTETS = st.binary(max_size=8).map(lambda octets: octets.replace(b"\0", b"?"))
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6).map(str.encode)
HEADERS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"", "ü".encode()]) | TEXT, TEXT), max_size=4).map(tuple)
MESSAGES = st.builds(
    lambda sender, subject, content, sequence, time, message_id, headers: StreamDeliver(
        b"st", sender, subject, content, write(Extension(None, None, sequence, time, None, (), message_id, headers))
    ),
    OCTETS, TEXT, st.lists(st.binary(max_size=5), max_size=3), st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1),
    TEXT, HEADERS,
)  # fmt: skip


def expected(message: StreamDeliver, extension: Extension) -> tuple[Any, ...]:
    pairs = [(b"Nats-Msg-Id", extension.message_id)] if extension.message_id else []
    headers: dict[str, list[str]] = {}
    for name, value in (*pairs, *extension.headers):
        headers.setdefault(name.decode(), []).append(value.decode())
    payload = b"".join(message.content)
    return extension.sequence, message.subject.decode(), payload, headers or None


@examples(400)
@given(st.lists(MESSAGES, min_size=1, max_size=8))
def test_columns_equal_the_decoded_frames(messages: list[StreamDeliver]) -> None:
    """Compared with the decoder of single messages."""
    found = records([encode(message) for message in messages])
    assert list(rows(found)) == [expected(message, read(message.trailing)) for message in messages]
    assert found.times.tolist() == [read(message.trailing).time for message in messages]
    frames = [encode(message) for message in messages]
    heads, contents = [one[0] for one in frames], [b"".join(one[1:]) for one in frames]
    lengths = struct.pack(f">{2 * len(frames)}I", *map(len, heads), *map(len, contents))
    together = block([b"", lengths, b"".join(heads), b"".join(contents)])
    assert list(rows(together)) == list(rows(found))
    assert together.times.tolist() == found.times.tolist()


@examples(300)
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_what_is_no_block_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(Unavailable):
        block(frames)


@examples(400)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.booleans())
def test_whatever_a_broker_sends_is_taken_or_refused(frames: list[bytes], ours: bool) -> None:
    stamp = write(Extension(sequence=1, time=2))
    messages = [[b"\xaa\xa8\x08\x01s\x00\x01t" + stamp + frame if ours else frame, b""] for frame in frames]
    try:
        found = records(messages)
    except Unavailable:
        assert not ours
    else:
        assert len(list(rows(found))) == len(frames)


def test_octets_that_are_no_text_are_shown() -> None:
    extension = Extension(sequence=1, time=1, message_id=b"\xff", headers=((b"\xfe", b"\xfd"),))
    found = records([encode(StreamDeliver(b"s", b"", b"\xfc", [b""], write(extension)))])
    (row,) = rows(found)
    assert (row.topic, row.headers) == ("\\xfc", {"Nats-Msg-Id": ["\\xff"], "\\xfe": ["\\xfd"]})


def test_a_message_without_its_sequence_is_refused() -> None:
    for trailing in (b"", write(Extension(sequence=1)), write(Extension(time=1, message_id=b"x" * 30))):
        with pytest.raises(Unavailable, match="without its sequence"):
            records([encode(StreamDeliver(b"s", b"", b"t", [b""], trailing))])


# --- topics ----------------------------------------------------------------------------------------------------------

PARTS = st.sampled_from(["a", "b", "ab", "ü", "a+b", "(", "$x", "^", "x y"])
TOPICS = st.lists(PARTS, min_size=1, max_size=4).map(".".join)
WITH_WILDCARDS = st.builds(
    lambda parts, rest: ".".join([*parts, *([">"] if rest else [])]),
    st.lists(PARTS | st.just("*"), min_size=1, max_size=3),
    st.booleans(),
)


@examples(500)
@given(TOPICS, WITH_WILDCARDS)
def test_a_topic_with_wildcards_selects_the_same_here_and_at_the_broker(topic: str, wanted: str) -> None:
    assert Pattern(pattern_of(wanted)).search(topic.encode()) is bool(compile_filters([wanted]).fullmatch(topic))


def test_everything_below_nothing_is_everything() -> None:
    assert Pattern(pattern_of(">")).search(b"a.b")
    assert Pattern(pattern_of("*")).search(b"a")
    assert not Pattern(pattern_of("*")).search(b"a.b")


def test_exact_topics_are_no_patterns_and_topics_go_before_a_pattern() -> None:
    assert selection_of(["a", "b", "a"]) == (Selection.SUBJECTS, (b"a", b"b"))
    assert selection_of(["a", "b.*"], "x") == (Selection.PATTERNS, (b"^a$", rb"^b\.[^.]+$"))
    assert selection_of([], "x") == (Selection.PATTERNS, (b"x",))
    assert selection_of([]) == (Selection.ALL, ())


# --- a range ---------------------------------------------------------------------------------------------------------


class Broker:
    """Answers fetches from sizes of messages, as an engine would."""

    def __init__(self, sizes: list[int], rows: int, octets: int) -> None:
        self.sizes, self.rows, self.octets = sizes, rows, octets

    def answer(self, question: LogQuery) -> tuple[LogQueryAnswer, list[int]]:
        after, up_to, rows, octets = question.numbers
        rows, octets = min(rows, self.rows), min(octets, self.octets)
        up_to = min(up_to, len(self.sizes))
        found = []
        for sequence in range(after + 1, up_to + 1):
            found.append(sequence)
            rows, octets = rows - 1, octets - self.sizes[sequence - 1]
            if rows <= 0 or octets <= 0:
                return LogQueryAnswer(0, body=numbers(sequence, len(self.sizes))), found
        return LogQueryAnswer(0, body=numbers(up_to, len(self.sizes))), found


@examples(400)
@given(st.data())
def test_a_range_is_fetched_once_and_in_order_whatever_the_answers_hold(data: st.DataObject) -> None:
    """Even if the messages of a fetch were removed meanwhile."""
    sizes = data.draw(st.lists(st.integers(0, 30), max_size=60))
    broker = Broker(sizes, data.draw(st.integers(1, 20)), data.draw(st.integers(1, 60)))
    after, up_to = data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70))
    session = ReadSession(after, up_to, Selection.ALL, ())
    found: list[int] = []
    for _ in range(1000):
        if session.complete:
            break
        for query in session.queries(b"s"):
            session.sent(PendingQuery(query, 0.0))
        assert 1 <= len(session.parts) <= AHEAD + 1
        if data.draw(st.integers(0, 9)) == 0:
            session.restart()
            continue
        answer, got = broker.answer(session.parts[0].pending.query)
        session.take(answer)
        found += got
    assert session.complete
    assert found == list(range(after + 1, min(up_to, len(sizes)) + 1))


def test_full_answers_are_asked_for_when_messages_are_large() -> None:
    """At most one in ten fetches is for the remainder of another one."""
    broker = Broker([10_000] * 5_000, qu.FETCH_ROWS, qu.FETCH_OCTETS)
    session = ReadSession(0, 5_000, Selection.ALL, ())
    asked: list[tuple[int, int]] = []
    while not session.complete:
        for query in session.queries(b"s"):
            asked.append(query.numbers[:2])  # type: ignore[arg-type]
            session.sent(PendingQuery(query, 0.0))
        answer, _ = broker.answer(session.parts[0].pending.query)
        session.take(answer)
    assert len(asked) < 1.25 * 5_000 * 10_000 / qu.FETCH_OCTETS
    assert [key for key, same in groupby(sorted(asked)) if len(list(same)) > 1] == []
