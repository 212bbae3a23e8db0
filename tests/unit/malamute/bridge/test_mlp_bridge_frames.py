"""Frames, outcomes, refusals and headers of the bridge to Malamute."""

from __future__ import annotations

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
from mama_spark.malamute.bridge import frames as fr
from mama_spark.malamute.bridge import log_queries, pool, records
from mama_spark.malamute.bridge.bridge import _Chunk, _report_outcomes
from mama_spark.malamute.bridge.pool import WritableStream
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.client.calls import Call, CallFailed, passes, refused
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol.commands import Ping, StatusCode, StreamSend, decode, encode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, StoreOutcome, read, write
from mama_spark.options import SinkOptions

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
def test_columns_and_codec_make_the_same_octets(
    rows: list[tuple[Any, ...]], with_headers: bool, with_ids: bool, cut: int
) -> None:
    topics, payloads, pairs, ids = map(list, zip(*rows, strict=True))
    batch = MessageBatch.of(topics, payloads, pairs if with_headers else None, ids if with_ids else None)
    cut = min(cut, len(rows) - 1)
    made = fr.frames(batch.slice(cut, len(rows) - cut))
    expected = [one(t, p, h if with_headers else None, i if with_ids else "") for t, p, h, i in rows[cut:]]
    assert [list(frames) for frames in made] == expected
    for frames, (_, _, h, i) in zip(made, rows[cut:], strict=True):
        command = decode(frames)
        assert isinstance(command, StreamSend)
        found = read(command.trailing)
        assert found.message_id == (i.encode() if with_ids else b"")
        assert len(found.headers) == (sum(map(len, (h or {}).values())) if with_headers else 0)


def test_topics_of_other_rows_of_the_batch_are_not_looked_at() -> None:
    batch = MessageBatch.of(["a", "x" * 4900, "b"], [b"1", b"2", b"3"], ids=["i", "j", "k"])
    assert [row for row, _ in fr.check(batch, carries=True)] == [1]
    assert [f[1] for f in fr.frames(batch.slice(0, 1)) + fr.frames(batch.slice(2, 1))] == [b"1", b"3"]


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
    assert "256 octets" in str(bad[3])
    assert sorted(dict(fr.check(batch, carries=False))) == [1, 2, 3], "ids do not travel, so they may be anything"


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
    assert (s.stream, s.acks, s.dedup, s.connection.urls) == (
        "prices",
        False,
        False,
        ("mlp://one:1", "mlp://two/prices"),
    )
    assert "q" * 40 not in repr(s)
    assert "q" * 40 not in repr(o)
    login = SinkOptions.parse({"url": "mlp://h/a", "stream": "b", "user": "u", "password": "secret"})
    assert MalamuteSettings.from_options(login).stream == "b", "the option wins"
    assert "secret" not in repr(MalamuteSettings.from_options(login))


@each(
    ("options", "text"),
    [
        ({"url": "mlp://h/s", "token": "x"}, "option token is for NATS, and the url is of Malamute"),
        ({"url": "mlp://h/s", "curveServerKey": "short"}, "40 characters"),
        ({"url": "mlp://h/s", "curvePublicKey": "p" * 40}, "go together"),
        ({"url": "mlp://h/s", "curvePublicKey": "p" * 40, "curveSecretKey": "q" * 40}, "needs curveServerKey"),
        ({"url": "mlp://u:p@h/s"}, "holds a login, in mlp://.*@h/s: give it by the options user and password"),
        ({"url": "mlp://h/a,mlp://h/b"}, "different streams"),
        ({"url": "mlp://h", "stream": "x" * 256}, "at most 255"),
        ({"url": "mlp://h", "user": "u"}, "user and password"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MalamuteSettings.from_options(SinkOptions.parse(options))


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

    def refuses(settings: object, timeout: float) -> None:
        raise refusal

    monkeypatch.setattr(pool.POOL, "checkout", refuses)
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
            patch.setattr(records, "_STEPS", steps)
            column = records.records(frames).headers
        found.append(None if column is None else column.to_pylist())
    assert found[1:] == found[:1] * 2
