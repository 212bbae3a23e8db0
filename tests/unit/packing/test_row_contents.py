"""The content of a row is the same in every pack, and differs between rows that differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import CorruptPack
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.contracts.record_log import Records
from mama_spark.packing.codec import ArrowCodec, Codec, LinesCodec
from mama_spark.packing.compression import PackCompressor
from mama_spark.packing.format import PACK, PACK_ROWS, PACK_TOPIC
from mama_spark.packing.packer import Rows, packed
from mama_spark.packing.row_contents import contents_of_records, contents_of_rows, row_contents, with_topic_header
from mama_spark.publishing.ids.ids import digest

from tests.support.tables import each

SCHEMA = pa.schema(
    {
        "text": pa.string(), "number": pa.int32(), "flag": pa.bool_(), "list": pa.list_(pa.float64()),
        "map": pa.map_(pa.string(), pa.list_(pa.int8())), "struct": pa.struct({"a": pa.int64(), "b": pa.binary()}),
    }
)  # fmt: skip
texts = st.sampled_from(["", "a", "ab", "b"])
row = st.fixed_dictionaries(
    {
        "text": st.none() | texts,
        "number": st.none() | st.integers(0, 1),
        "flag": st.none() | st.booleans(),
        "list": st.none() | st.lists(st.none() | st.sampled_from([0.0, 1.5]), max_size=2),
        "map": st.none() | st.dictionaries(texts, st.none() | st.lists(st.integers(0, 1), max_size=2), max_size=2),
        "struct": st.none()
        | st.fixed_dictionaries({"a": st.none() | st.integers(0, 1), "b": st.none() | st.just(b"")}),
    }
)
rows = st.lists(row, min_size=1, max_size=6)


def batch_of(some: list[dict[str, Any]]) -> pa.RecordBatch:
    pairs = [{**one, "map": None if one["map"] is None else list(one["map"].items())} for one in some]
    return pa.RecordBatch.from_pylist(pairs, SCHEMA)


@given(rows)
def test_rows_have_equal_contents_if_and_only_if_they_are_equal(some: list[dict[str, Any]]) -> None:
    batch = batch_of(some)
    contents = row_contents(batch).to_pylist()
    for i in range(len(some)):
        assert row_contents(batch.slice(i, 1)).to_pylist() == [contents[i]]
        for j in range(i):
            equal = batch.slice(i, 1).to_pylist() == batch.slice(j, 1).to_pylist()
            assert (contents[i] == contents[j]) == equal


@given(rows, st.integers(1, 6), st.booleans())
def test_a_row_is_recognised_in_another_pack_that_was_read(
    some: list[dict[str, Any]], cut: int, compressed: bool
) -> None:
    batch, codec = batch_of(some), ArrowCodec(SCHEMA)
    numbers, n = np.arange(len(some)), len(some)
    topics = pa.array(["t"] * n).dictionary_encode()
    parts = pa.RecordBatch.from_arrays([pa.array(["ROOT"] * n)], ["Mama-Root"])
    come = Rows(topics, batch, numbers, parts=parts)
    starts = np.unique([*range(0, n, cut), n])
    other = packed(codec, replace(come, columns=codec.normal(batch)), starts)
    sent: MessageBatch = PackCompressor("zstd").compress(other.batch) if compressed else other.batch
    k = len(sent)
    sent = with_topic_header(sent)
    read = Records(np.arange(k), np.zeros(k, np.int64), sent.topics, sent.payloads, sent.headers)
    contents, counts = contents_of_records(codec, read)
    assert counts.tolist() == np.diff(starts).tolist()
    assert digest(contents).tolist() == digest(contents_of_rows(codec, come)).tolist()


VALUES = pa.schema([("value", pa.binary())])
LONG = [b"first of three values", b"second of three values", b"third of three values"]
LINES, ARROW = LinesCodec(), ArrowCodec(VALUES)


def record_of(payload: bytes, form: str, rows: str) -> Records:
    headers = pa.array([[(PACK, [form]), (PACK_ROWS, [rows]), (PACK_TOPIC, ["t"])]], HEADERS_TYPE)
    return Records(np.array([1]), np.array([0]), pa.array(["t"]), pa.array([payload], pa.binary()), headers)


@each("codec", [LINES, ARROW])
@each("kind", [pa.binary(), pa.binary_view()])
def test_rows_of_several_packs_are_decoded_in_their_order(codec: Codec, kind: pa.DataType) -> None:
    rows = pa.record_batch([pa.array(LONG, pa.binary())], schema=VALUES)
    counts = np.array([2, 1])
    payloads = codec.encode(codec.normal(rows), np.array([0, 2, 3])).cast(kind)
    assert codec.decode(payloads, counts).column("value").to_pylist() == LONG
    before = pa.concat_arrays([pa.array([b"before"], kind), payloads])[1:]
    assert codec.decode(before, counts).column("value").to_pylist() == LONG


@each("codec", [LINES, ARROW])
@each("announced", ["2", "4", "0", "-3", "x", "1000000000000000", "99999999999999999999"])
def test_a_pack_with_another_number_of_rows_than_it_announces_is_corrupt(codec: Codec, announced: str) -> None:
    """The number is compared before it costs memory."""
    rows = pa.record_batch([pa.array(LONG, pa.binary())], schema=VALUES)
    (payload,) = codec.encode(codec.normal(rows), np.array([0, 3])).to_pylist()
    good, _ = contents_of_records(codec, record_of(payload, codec.format.value, "3"))
    assert len(good) == 3
    with pytest.raises(CorruptPack, match="cannot be unpacked as it was packed"):
        contents_of_records(codec, record_of(payload, codec.format.value, announced))
