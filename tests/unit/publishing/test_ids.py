"""Ids: the format (golden values), the two laws, and bounded memory."""

from __future__ import annotations

import itertools
import random
import struct

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.publishing.ids.ids import IdMaker, digest, parse, texts

from tests.support.tables import each

Row = tuple[str, bytes, dict[str, list[str]] | None]


def batch_of(rows: list[Row]) -> MessageBatch:
    return MessageBatch.of([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def ids_of(rows: list[Row], cuts: list[int] | None = None, maker: IdMaker | None = None) -> list[str]:
    maker = maker or IdMaker("q", 3, 1)
    whole = batch_of(rows)
    out: list[str] = []
    edges = [0, *sorted(cuts or []), len(rows)]
    for a, b in itertools.pairwise(edges):
        out += maker.ids(whole.slice(a, b - a)).to_pylist()
    return out


def slow_hash(row: Row) -> str:
    """The contract of the docstring, written down a second time."""
    topic, payload, headers = row
    text = struct.pack("<I", len(topic.encode())) + topic.encode()
    entries = sorted((headers or {}).items(), key=lambda e: e[0].encode())
    text += struct.pack("<I", len(entries))
    for name, values in entries:
        text += struct.pack("<I", len(name.encode())) + name.encode() + struct.pack("<I", len(values))
        for value in values:
            text += struct.pack("<I", len(value.encode())) + value.encode()
    return str(xxhash.xxh3_128_hexdigest(text + payload))


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
rows_strategy = st.lists(
    st.tuples(
        st.sampled_from(["a", "ab", "é.x", ""]),
        st.binary(max_size=4),
        st.none() | st.dictionaries(words, st.lists(words, max_size=3), max_size=3),
    ),
    max_size=40,
)


def test_golden_ids_pin_version_1_of_the_format() -> None:
    rows: list[Row] = [
        ("flights.JFK.AA", b"hello", None),
        ("flights.JFK.AA", b"hello", {"b": ["2", "3"], "a": ["1"]}),
        ("flights.JFK.AA", b"hello", {}),
        ("é", b"", {"ü": [""]}),
        ("flights.JFK.AA", b"\x00" * 3000, None),
    ]
    assert ids_of(rows) == [
        "q-3-1-d2c78e2cb41c4eb38c37e2e3f18405bf-0",
        "q-3-1-36c811a0ac4ab25996192ada939d414b-0",
        "q-3-1-d2c78e2cb41c4eb38c37e2e3f18405bf-1",
        "q-3-1-a84317c97d4d409e1521c6acc92995da-0",
        "q-3-1-8202ba3837246db3ce0312c567c0bff3-0",
    ]


@given(rows_strategy, st.sampled_from([0, 4096]))
def test_hash_is_the_documented_one_for_any_row(rows: list[Row], longer: int) -> None:
    rows = [(topic, payload + bytes(longer), headers) for topic, payload, headers in rows]
    assert [i.split("-")[3] for i in ids_of(rows)] == [slow_hash(r) for r in rows]


@each("size", [0, 5, 100, 5_000, 1 << 20])
def test_hash_does_not_depend_on_how_long_payloads_are_read(size: int) -> None:
    rows: list[Row] = [("t", bytes([i]) * size, {"k": ["v"]}) for i in range(3)]
    for kind in (pa.binary(), pa.large_binary()):
        batch = batch_of(rows)
        batch = MessageBatch(batch.topics, batch.payloads.cast(kind), batch.headers)
        assert [bytes(d).hex() for d in digest(batch)] == [slow_hash(r) for r in rows]


@given(rows_strategy, st.lists(st.integers(0, 40), max_size=4), st.randoms(use_true_random=False))
def test_no_id_twice_and_any_order_gives_the_same_set(rows: list[Row], cuts: list[int], rng: random.Random) -> None:
    rows = rows + rows[: len(rows) // 2]
    edges = [min(c, len(rows)) for c in cuts]
    first = ids_of(rows, edges)
    assert len(set(first)) == len(rows)
    shuffled = rng.sample(rows, len(rows))
    assert set(ids_of(shuffled)) == set(first)


def test_equal_rows_of_two_streams_keep_their_ids_in_any_order() -> None:
    streams = ["a", "b", "a", "c", "b", "a"]
    first = IdMaker("q", 0, 0).ids(MessageBatch.of(["t"] * 6, [b"x"] * 6, streams=streams)).to_pylist()
    again = IdMaker("q", 0, 0).ids(MessageBatch.of(["t"] * 6, [b"x"] * 6, streams=streams[::-1])).to_pylist()
    assert sorted(zip(streams, first, strict=True)) == sorted(zip(streams[::-1], again, strict=True))
    assert len(set(first)) == 6
    assert [i.rsplit("-", 1)[1] for i in first] == ["0", "0", "1", "0", "1", "2"]


def test_streams_stand_before_all_else_in_the_hash() -> None:
    batch = MessageBatch.of(["t"], [b"x"], [{"h": ["v"]}], streams=["ü"])
    expected = xxhash.xxh3_128_hexdigest(b"\2\0\0\0\xc3\xbc" + b"\1\0\0\0t" + b"\1\0\0\0" + b"\1\0\0\0h"
                                  + b"\1\0\0\0" + b"\1\0\0\0v" + b"x")  # fmt: skip
    assert bytes(digest(batch)[0]).hex() == expected


def test_a_retry_with_shuffled_rows_keeps_each_id_with_its_content() -> None:
    rng = random.Random(5)
    rows: list[Row] = [(f"t.{i % 7}", b"%d" % (i % 3000), None) for i in range(20_000)]
    first = dict(zip(ids_of(rows, [1000, 9000]), rows, strict=True))
    rng.shuffle(rows)
    second = dict(zip(ids_of(rows, [5000]), rows, strict=True))
    assert first == second


def test_equal_rows_are_numbered_from_zero() -> None:
    rows: list[Row] = [("t", b"x", None)] * 5000
    assert [int(i.rsplit("-", 1)[1]) for i in ids_of(rows, [1, 2, 700])] == list(range(5000))


def test_null_headers_empty_headers_and_no_header_column_are_the_same() -> None:
    rows: list[Row] = [("t", b"x", None), ("t", b"x", {})]
    without = IdMaker("q", 3, 1).ids(MessageBatch.of(["t", "t"], [b"x", b"x"])).to_pylist()
    assert ids_of(rows) == without


@pytest.mark.parametrize("size", [1, 5_000])
def test_null_elements_of_bad_rows_are_tolerated_and_change_no_other_row(size: int) -> None:
    payloads = [b"1" * size, b"2" * size, b"3" * size]
    good = MessageBatch.of(["t", "t", "t"], payloads, [{"a": ["1"]}, None, {"b": ["2"]}])
    bad = MessageBatch(
        pa.array(["t", None, "t"], pa.string()).dictionary_encode(),
        pa.array([payloads[0], None, payloads[2]], pa.binary()),
        pa.array([[("a", ["1"])], [("k", None)], [("b", ["2"])]], HEADERS_TYPE),
    )
    wanted, got = IdMaker("q", 0, 0).ids(good).to_pylist(), IdMaker("q", 0, 0).ids(bad).to_pylist()
    assert (got[0], got[2]) == (wanted[0], wanted[2])
    assert len(set(got)) == 3


@pytest.mark.parametrize("size", [1, 5_000])
def test_texts_that_are_no_utf8_are_hashed_as_they_are(size: int) -> None:
    text, raw = pa.map_(pa.string(), pa.list_(pa.string())), pa.map_(pa.binary(), pa.list_(pa.binary()))
    headers = pa.array([[(b"\xff", [b"\xfe", b"\xfe"])], [(b"\xff", [b"\xfd"])]], raw).view(text)
    topics, payloads = pa.array(["t", "t"]).dictionary_encode(), pa.array([b"x" * size] * 2)
    one, other = digest(MessageBatch(topics, payloads, headers))
    head = b"\1\0\0\0t" + b"\1\0\0\0" + b"\1\0\0\0\xff"
    values = [b"\2\0\0\0" + b"\1\0\0\0\xfe" * 2, b"\1\0\0\0" + b"\1\0\0\0\xfd"]
    assert [bytes(one), bytes(other)] == [xxhash.xxh3_128_digest(head + v + b"x" * size) for v in values]


def test_an_empty_batch_has_no_ids() -> None:
    empty = IdMaker("q", 0, 0).ids(batch_of([]))
    assert empty.type == pa.string()
    assert len(empty) == 0


@each("memory", [4096, 1 << 16, 1 << 20])
def test_no_id_twice_however_small_the_memory(memory: int) -> None:
    rng = np.random.default_rng(memory)
    maker = IdMaker("q", 0, 0, memory)
    held = maker.nbytes
    seen: set[str] = set()
    total = 0
    for round_ in range(60):
        distinct = int(rng.choice([1, 3, 500, 20_000]))
        values = rng.integers(0, distinct, 2_000)
        if round_ % 5 == 0:
            values = np.arange(2_000) + round_ * 10_000
        batch = MessageBatch.of(["t"] * 2_000, [b"%d" % v for v in values])
        seen.update(maker.ids(batch).to_pylist())
        total += 2_000
    assert len(seen) == total
    assert maker.nbytes == held <= memory


@each("prefix", ["a\r\nb", "a\x00", "\x7f"])
def test_a_prefix_that_could_inject_a_header_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="control characters"):
        IdMaker(prefix, 0, 0)


def test_prefix_may_be_any_text() -> None:
    (one,) = IdMaker("Größe-ß", 7, 2).ids(MessageBatch.of(["t"], [b"x"])).to_pylist()
    assert one.startswith("Größe-ß-7-2-")


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 4096 bytes"):
        IdMaker("q", 0, 0, memory=4095)


def test_ids_can_be_taken_apart_and_joined_again() -> None:
    maker = IdMaker("q-1.x", 5, 12)
    batch = MessageBatch.of(["t"] * 4, [b"a", b"b", b"a", b"a"])
    ids = maker.ids(batch)
    taken = parse([text.encode() for text in ids.to_pylist()], len(maker.prefix))
    assert taken.rows.tolist() == [0, 1, 2, 3]
    assert taken.partitions.tolist() == [12] * 4
    assert taken.numbers.tolist() == [0, 0, 1, 2]
    assert taken.digests.tolist() == digest(batch).tolist()
    assert texts(maker.prefix, taken.partitions, taken.digests, taken.numbers).equals(ids)


def test_ids_of_another_form_are_left_out() -> None:
    good = b"q-5-0-" + b"0" * 32 + b"-3"
    taken = parse([good + b"-dlq", good, b"q-5-x", b"q-5-0-" + b"G" * 32 + b"-0", b"q-5-"], 4)
    assert taken.rows.tolist() == [1]
    assert taken.numbers.tolist() == [3]
    assert len(parse([], 4).rows) == 0
