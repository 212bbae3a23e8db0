from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.nats.protocol import frames, headers

from tests.support.tables import each

INBOX = frames.ReplySubject(b"_INBOX.x.")
NAMES = st.text("abcXYZ-_09", min_size=1, max_size=5)
VALUES = st.text(st.characters(blacklist_characters="\r\n\x00", blacklist_categories=["Cs"]), max_size=8)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b.c", "é.ü"]),
        st.binary(max_size=300),
        st.none() | st.dictionaries(NAMES, st.lists(VALUES, max_size=3), max_size=3),
        st.text("abc-09é", min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=12,
)
PADDING = st.sampled_from([0, frames.BIG])


def one(topic: str, payload: bytes, pairs: dict[str, list[str]] | None, msg_id: str | None, token: int) -> bytes:
    """A frame by the book, row by row."""
    reply = b"_INBOX.x.%012d" % token
    if pairs is None and msg_id is None:
        return b"PUB %s %s %d\r\n%s\r\n" % (topic.encode(), reply, len(payload), payload)
    lines = ["NATS/1.0"] + ([f"Nats-Msg-Id: {msg_id}"] if msg_id is not None else [])
    lines += [f"{k}: {v}" for k, vs in (pairs or {}).items() for v in vs]
    block = ("\r\n".join(lines) + "\r\n\r\n").encode()
    sizes = (len(block), len(block) + len(payload))
    return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (topic.encode(), reply, *sizes, block, payload)


@given(ROWS, st.booleans(), st.booleans(), st.integers(0, 10**11), st.integers(0, 5), PADDING)
def test_a_batch_is_framed_as_its_rows_would_be(rows, with_headers, with_ids, first, offset, padding) -> None:  # type: ignore[no-untyped-def]
    topics, payloads, pairs, ids = (list(c) for c in zip(*rows, strict=True))
    payloads[-1] += bytes(padding)
    batch = MessageBatch.of(topics, payloads, pairs if with_headers else None, ids if with_ids else None)
    offset = min(offset, len(rows) - 1)
    part = batch.slice(offset, len(rows) - offset)
    wanted = [
        one(t, p, (h or {}) if with_headers else None, i if with_ids else None, first + k)
        for k, (t, p, h, i) in enumerate(list(zip(topics, payloads, pairs, ids, strict=True))[offset:])
    ]
    made = frames.Framer(INBOX).frames(part, first)
    assert b"".join(made.pieces) == b"".join(wanted)
    assert made.size == len(b"".join(made.pieces))


@given(ROWS, st.integers(0, 10**11), PADDING, st.randoms(use_true_random=False))
def test_messages_keep_their_tokens_in_another_order(rows, first, padding, random) -> None:  # type: ignore[no-untyped-def]
    topics, payloads, _, ids = (list(c) for c in zip(*rows, strict=True))
    payloads[0] += bytes(padding)
    order = random.sample(range(len(rows)), len(rows))
    made = frames.Framer(INBOX).frames(MessageBatch.of(topics, payloads, None, ids), first, np.array(order, np.int64))
    wanted = [one(topics[row], payloads[row], None, ids[row], first + row) for row in order]
    assert b"".join(made.pieces) == b"".join(wanted)


@each("first", [0, 9_999, 10_000, 99_999_998, 10**12 - 20_001])
def test_tokens_count_up_over_every_boundary(first: int) -> None:
    made = frames.tokens(first, 20_001).to_pylist()
    assert made == [b"%012d" % i for i in range(first, first + 20_001)]


def test_big_payloads_are_views_of_the_batch_and_not_copies() -> None:
    batch = MessageBatch.of(["a", "b"], [b"x" * frames.BIG, b"small"])
    made = frames.Framer(INBOX).frames(batch, 7)
    assert b"".join(made.pieces) == one("a", b"x" * frames.BIG, None, None, 7) + one("b", b"small", None, None, 8)
    start = batch.payloads.buffers()[2].address
    views = [pa.py_buffer(p).address for p in made.pieces if len(p) == frames.BIG]
    assert views == [start]
    assert made.size == len(b"".join(made.pieces))


def test_a_big_payload_among_many_small_ones_is_framed_with_them() -> None:
    payloads = [b"small"] * 40 + [b"x" * frames.BIG]
    made = frames.Framer(INBOX).frames(MessageBatch.of(["a"] * 41, payloads), 7)
    assert b"".join(made.pieces) == b"".join(one("a", payload, None, None, 7 + i) for i, payload in enumerate(payloads))
    assert len(made.pieces) == 1


@pytest.mark.parametrize("size", [1, frames.BIG])
def test_headers_that_are_no_utf8_are_written_as_they_are(size: int) -> None:
    raw = pa.map_(pa.binary(), pa.list_(pa.binary()))
    pairs = pa.array([[(b"A", [b"\xff", b"\xfe"])]], raw).view(HEADERS_TYPE)
    batch = MessageBatch.of(["a"], [b"x" * size])
    made = frames.Framer(None).frames(MessageBatch(batch.topics, batch.payloads, pairs))
    block = b"NATS/1.0\r\nA: \xff\r\nA: \xfe\r\n\r\n"
    assert b"".join(made.pieces) == b"HPUB a %d %d\r\n%b%b\r\n" % (len(block), len(block) + size, block, b"x" * size)


def test_the_topic_prefixes_follow_the_dictionary() -> None:
    framer = frames.Framer(None)
    for topic in ("a", "bb", "a"):
        assert b"".join(framer.frames(MessageBatch.of([topic], [b"1"])).pieces) == b"PUB %s 1\r\n1\r\n" % topic.encode()


def test_a_null_header_value_is_refused_and_a_null_map_is_none() -> None:
    pairs = pa.array([None, [("A", ["x", None])], [("B", None)]], HEADERS_TYPE)
    batch = MessageBatch.of(["a"] * 3, [b"1"] * 3)
    batch = MessageBatch(batch.topics, batch.payloads, pairs)
    assert sorted(headers.check(batch, 1000)[0]) == [1]
    made = b"".join(frames.Framer(None).frames(batch.slice(0, 1)).pieces)
    assert made == b"HPUB a 12 13\r\nNATS/1.0\r\n\r\n1\r\n"
