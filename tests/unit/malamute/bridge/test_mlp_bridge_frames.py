"""The bridge to Malamute: frames, outcomes, refusals and headers of what is published, and records of what is read."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.bridge import PollResult
from mama_spark.contracts.errors import (
    BadRow,
    BadTopic,
    ConfigError,
    MamaError,
    NotReady,
    OutcomeUnknown,
    Rejected,
    TooLarge,
    Unavailable,
)
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.topics import compile_filters
from mama_spark.malamute.bridge import frames as fr
from mama_spark.malamute.bridge import log_queries, pool
from mama_spark.malamute.bridge import records as record_columns
from mama_spark.malamute.bridge.bridge import _Chunk, _report_outcomes
from mama_spark.malamute.bridge.log_queries import AHEAD, ReadSession
from mama_spark.malamute.bridge.logs import pattern_of, selection_of
from mama_spark.malamute.bridge.pool import WritableStream
from mama_spark.malamute.bridge.records import block, records
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.client.calls import Call, CallFailed, PendingQuery, passes, refused
from mama_spark.malamute.client.connection import ClientConnection
from mama_spark.malamute.client.connection_settings import ConnectionSettings, endpoint
from mama_spark.malamute.protocol import log_query as qu
from mama_spark.malamute.protocol.commands import Ping, StatusCode, StreamDeliver, StreamSend, encode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, StoreOutcome, read, write
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Selection, numbers
from mama_spark.malamute.protocol.patterns import Pattern
from mama_spark.options import SinkOptions
from mama_spark.testing.log_suite import rows

from tests.support.tables import each
from tests.support.tiers import examples

# --- columns of frames are what the codec makes message by message ----------------------------------------------------

names = st.text("abcXYZ-_", min_size=1, max_size=5)
values = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\0"), max_size=300)
headers = st.none() | st.dictionaries(names, st.lists(values, max_size=3), max_size=3)
message = st.tuples(st.sampled_from(["a", "b.c", "ü"]), st.binary(max_size=20), headers, values)


def one(topic: str, payload: bytes, pairs: dict[str, list[str]] | None, id_: str) -> list[bytes]:
    flat = tuple((k.encode(), v.encode()) for k, all_ in (pairs or {}).items() for v in all_)
    return encode(StreamSend(topic.encode(), [payload], write(Extension(message_id=id_.encode(), headers=flat))))


@examples(60)
@given(st.lists(message, min_size=1, max_size=8), st.booleans(), st.booleans(), st.integers(0, 3))
def test_columns_and_codec_make_the_same_bytes(
    rows: list[tuple[Any, ...]], with_headers: bool, with_ids: bool, cut: int
) -> None:
    topics, payloads, pairs, ids = map(list, zip(*rows, strict=True))
    batch = MessageBatch.of(topics, payloads, pairs if with_headers else None, ids if with_ids else None)
    cut = min(cut, len(rows) - 1)
    made = fr.frames(batch.slice(cut, len(rows) - cut))
    expected = [one(t, p, h if with_headers else None, i if with_ids else "") for t, p, h, i in rows[cut:]]
    assert [list(frames) for frames in made] == expected


def test_rows_are_grouped_by_stream_and_keep_their_order() -> None:
    names = ["b", "a", "b", "c", "a", "b"]
    batch = MessageBatch.of(["t"] * 6, [b""] * 6, streams=names)
    assert [(s, r.tolist()) for s, r in fr.by_stream(batch, "")] == [("b", [0, 2, 5]), ("a", [1, 4]), ("c", [3])]
    assert [(s, r.tolist()) for s, r in fr.by_stream(batch.slice(3, 1), "")] == [("c", [0])]
    none = MessageBatch.of(["t"] * 2, [b""] * 2)
    assert [(s, r.tolist()) for s, r in fr.by_stream(none, "st")] == [("st", [0, 1])]


def test_rows_that_cannot_travel_are_named_with_the_reason() -> None:
    batch = MessageBatch(
        pa.array(["ok", "a b", None, "x" * 256, "é" * 127, "ok", "ok", "ok"], pa.string()).dictionary_encode(),
        pa.array([b""] * 5 + [bytes(fr.MAX_PAYLOAD), b"", b""], pa.binary()),
        None,
        pa.array(["i"] * 6 + ["x" * 65_536, None], pa.string()),
    )
    bad = dict(fr.check(batch, carries=True))
    assert {row: type(error) for row, error in bad.items()} == {
        1: BadTopic, 2: BadTopic, 3: BadTopic, 5: TooLarge, 6: BadRow, 7: BadRow
    }  # fmt: skip
    assert "256 bytes" in str(bad[3])
    assert fr.check(batch.slice(0, 1), carries=True) == [], "the bad topics are in the dictionary only"
    assert [frames[1] for frames in fr.frames(batch.slice(0, 1))] == [b""]
    assert sorted(dict(fr.check(batch, carries=False))) == [1, 2, 3], "ids do not travel, so they may be anything"


def test_rows_of_streams_that_cannot_be_are_refused() -> None:
    batch = MessageBatch.of(["t"] * 6, [b""] * 6, streams=["a", "", "x" * 256, "a\0", "x" * 255, "b"])
    assert [(row, type(error)) for row, error in fr.check(batch, carries=True)] == [(n, BadRow) for n in (1, 2, 3)]
    assert fr.check(batch.slice(4, 2), carries=True) == [], "the others are in the dictionary only"
    null = replace(batch, streams=pa.array([*"abcde", None]).dictionary_encode())
    assert [row for row, _ in fr.check(null, carries=True)] == [5]


def test_a_row_with_more_headers_than_a_message_may_have_is_refused() -> None:
    pairs: list[dict[str, list[str]] | None] = [{"h": ["v"] * 65_536}, {"h": ["v"] * 65_537}]
    found = fr.check(MessageBatch.of(["t", "t"], [b"", b""], pairs), carries=True)
    assert [(row, str(error)) for row, error in found] == [
        (1, "INVALID_ARG: 65,537 headers; a message has at most 65,536")
    ]


def test_headers_are_refused_where_the_broker_does_not_carry_them() -> None:
    batch = MessageBatch.of(["t"] * 3, [b""] * 3, [{"A": ["1"]}, None, {}])
    ((row, error),) = fr.check(batch, carries=False)
    assert row == 0
    assert "carries no headers" in str(error)
    assert fr.check(batch, carries=True) == []
    long = MessageBatch.of(["t"], [b""], [{"A": ["x" * 65_535]}])
    assert [type(e) for _, e in fr.check(long, carries=True)] == [BadRow]


def test_options_become_settings_and_secrets_are_not_shown() -> None:
    keys = {"curveServerKey": "s" * 40, "curvePublicKey": "p" * 40, "curveSecretKey": "q" * 40}
    o = SinkOptions.parse({"url": "mlp://one:1,mlp://two/prices", "dedup": "false", "ackMode": "none", **keys})
    s = MalamuteSettings.from_options(o)
    assert (s.stream, s.acks, s.dedup) == ("prices", False, False)
    assert s.connection.urls == ("mlp://one:1", "mlp://two/prices")
    assert "q" * 40 not in f"{s!r} {o!r}"
    login = SinkOptions.parse({"url": "mlp://h/a", "stream": "b", "user": "u", "password": "secret"})
    assert MalamuteSettings.from_options(login).stream == "b", "the option wins"
    assert "secret" not in repr(MalamuteSettings.from_options(login))


@each(
    ("options", "text"),
    [
        ({"url": "mlp://h/s", "token": "x"}, "option token is for NATS, and the url is of Malamute"),
        ({"url": "mlp://h/s", "curveServerKey": "short"}, "40 characters"),
        ({"url": "mlp://h/s", "curveServerKey": "~" * 40}, "40 characters"),  # no character of Z85
        ({"url": "mlp://h/s", "curveServerKey": "#" * 40}, "40 characters"),  # more than 32 bytes can say
        ({"url": "mlp://h/s", "curvePublicKey": "p" * 40}, "go together"),
        ({"url": "mlp://h/s", "curvePublicKey": "p" * 40, "curveSecretKey": "q" * 40}, "needs curveServerKey"),
        ({"url": "mlp://u:p@h/s"}, "holds a login, in mlp://.*@h/s: give it by the options user and password"),
        ({"url": "mlp://h/a,mlp://h/b"}, "different streams"),
        ({"url": "mlp://h", "stream": "x" * 256}, "at most 255"),
        ({"url": "mlp://h", "user": "u"}, "needs user and password"),
        ({"url": "mlp://h", "user": "u", "password": "p" * 256}, "1 to 255 bytes"),
        ({"url": "mlp://h", "user": "u", "password": "p", "curveServerKey": "x" * 40}, "PLAIN and CURVE"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MalamuteSettings.from_options(SinkOptions.parse(options))


@each(
    ("url", "name"),
    [
        ("mlp://h", "tcp://h:9999"), ("MLP://h:1/stream", "tcp://h:1"), ("tcp://[::1]:5", "tcp://[::1]:5"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)  # fmt: skip
def test_urls_name_endpoints(url: str, name: str) -> None:
    assert endpoint(url) == name


# --- what a PONG says of the messages before it -----------------------------------------------------------------------

ACCEPTED = (AckRun(StoreOutcome.ACCEPTED, 3),)


@each("acks", [(), ACCEPTED])
@each("stored", [False, True])
def test_messages_to_a_stored_stream_are_not_acknowledged_without_an_outcome(
    acks: tuple[AckRun, ...], stored: bool
) -> None:
    """The engine that had them has ended, and another one knows nothing of them."""
    call = Call(Ping(), 0.0)
    call.extension = Extension(acks=acks)
    chunk, polled = _Chunk(np.arange(3), "st", call, WritableStream(None, 0.0, stored)), PollResult()
    _report_outcomes(chunk, 1.0, polled)
    if stored:
        (refusals,) = polled.refusals
        assert (refusals.tokens.tolist(), type(refusals.error)) == ([0, 1, 2], OutcomeUnknown)
        assert not polled.acks
    else:
        assert [ack.tokens.tolist() for ack in polled.acks] == [[0, 1, 2]]
        assert not polled.refusals


# --- A refusal with 502 passes, any other is final, wherever the broker refuses ---------------------------------------


@pytest.mark.parametrize("code", list(StatusCode))
def test_only_an_internal_error_passes(code: StatusCode, monkeypatch: pytest.MonkeyPatch) -> None:
    may_pass = code == 502
    assert passes(code) is may_pass
    assert type(refused(code, "why")) is (Unavailable if may_pass else ConfigError)
    refusal = CallFailed("connecting", code, b"why")
    assert type(pool.stream_error("st", refusal)) is (NotReady if may_pass else Rejected)

    def refuses(connection: ClientConnection, timeout: float) -> None:
        connection.close(0.0)
        raise refusal

    monkeypatch.setattr(ClientConnection, "open", refuses)
    queries = log_queries.LogQueries(MalamuteSettings(ConnectionSettings(("mlp://127.0.0.1:1",))), 1.0)
    with pytest.raises(MamaError, match="why") as caught:
        queries.open()
    assert type(caught.value) is (Unavailable if may_pass else ConfigError)


# --- headers of fetched messages: the same whether they are decoded step by step or in a loop over a message ----------

FIELDS = st.tuples(st.sampled_from([b"a", b"b", b"", b"name"]), st.binary(max_size=3))


@examples(100)
@given(st.lists(st.tuples(st.sampled_from([b"", b"id"]), st.lists(FIELDS, max_size=9)), min_size=1, max_size=4),
       st.binary(max_size=6))  # fmt: skip
def test_long_lists_are_decoded_as_short_ones(
    messages: list[tuple[bytes, list[tuple[bytes, bytes]]]], behind: bytes
) -> None:
    frames = []
    for message_id, headers in messages:
        extension = Extension(sequence=1, time=1, message_id=message_id, headers=tuple(headers))
        frames.append([b"\xaa\xa5\x01\x01s\x01a\x01t" + write(extension) + behind, b"x"])
    found = []
    for steps in (1_000, 2, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_columns, "_STEPS", steps)
            column = records(frames).headers
        found.append(None if column is None else column.to_pylist())
    assert found[1:] == found[:1] * 2


# --- Log records of a Malamute broker: fetched messages as columns, topics as selections, ranges as fetches -----------

BYTES = st.binary(max_size=8).map(lambda raw: raw.replace(b"\0", b"?"))
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6).map(str.encode)
HEADERS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"", "ü".encode()]) | TEXT, TEXT), max_size=4).map(tuple)
MESSAGES = st.builds(
    lambda sender, subject, content, sequence, time, message_id, headers: StreamDeliver(
        b"st", sender, subject, content, write(Extension(None, None, sequence, time, None, (), message_id, headers))
    ),
    BYTES, TEXT, st.lists(st.binary(max_size=5), max_size=3), st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1),
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


def test_bytes_that_are_no_text_are_shown() -> None:
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
    lambda parts, rest: ".".join([*parts, *rest]),
    st.lists(PARTS | st.just("*"), max_size=3),
    st.sampled_from(["", ">"]),
).filter(bool)


@examples(500)
@given(TOPICS, WITH_WILDCARDS)
def test_a_topic_with_wildcards_selects_the_same_here_and_at_the_broker(topic: str, wanted: str) -> None:
    assert Pattern(pattern_of(wanted)).search(topic.encode()) is bool(compile_filters([wanted]).fullmatch(topic))


def test_exact_topics_are_no_patterns_and_topics_go_before_a_pattern() -> None:
    assert selection_of(["a", "b", "a"]) == (Selection.SUBJECTS, (b"a", b"b"))
    assert selection_of(["a", "b.*"], "x") == (Selection.PATTERNS, (b"^a$", rb"^b\.[^.]+$"))
    assert selection_of([], "x") == (Selection.PATTERNS, (b"x",))
    assert selection_of([]) == (Selection.ALL, ())


# --- a range ---------------------------------------------------------------------------------------------------------


class Broker:
    """Answers fetches from sizes of messages, as an engine would."""

    def __init__(self, sizes: list[int], rows: int, size: int) -> None:
        self.sizes, self.rows, self.size = sizes, rows, size

    def answer(self, question: LogQuery) -> tuple[LogQueryAnswer, list[int]]:
        after, up_to, rows, size = question.numbers
        rows, size = min(rows, self.rows), min(size, self.size)
        up_to = min(up_to, len(self.sizes))
        found = []
        for sequence in range(after + 1, up_to + 1):
            found.append(sequence)
            rows, size = rows - 1, size - self.sizes[sequence - 1]
            if rows <= 0 or size <= 0:
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
    broker = Broker([10_000] * 5_000, qu.FETCH_ROWS, qu.FETCH_BYTES)
    session = ReadSession(0, 5_000, Selection.ALL, ())
    asked: list[tuple[int, int]] = []
    while not session.complete:
        for query in session.queries(b"s"):
            asked.append(query.numbers[:2])  # type: ignore[arg-type]
            session.sent(PendingQuery(query, 0.0))
        answer, _ = broker.answer(session.parts[0].pending.query)
        session.take(answer)
    assert len(asked) < 1.25 * 5_000 * 10_000 / qu.FETCH_BYTES
    assert [key for key, same in groupby(sorted(asked)) if len(list(same)) > 1] == []
