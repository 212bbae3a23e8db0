"""Compressed packs are read row for row; what is corrupt or larger than announced is a row with a reason."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.contracts.record_log import Records
from mama_spark.packing.codec import codec_of
from mama_spark.packing.compression import PackCompressor, plain
from mama_spark.packing.format import MAX_PLAIN_BYTES
from mama_spark.packing.packer import Packed, Rows, packed
from mama_spark.packing.unpacked import Unpacked
from mama_spark.packing.unpacker import unpack

from tests.support.memory import peak_of
from tests.support.tables import each
from tests.support.tiers import examples

ENCODINGS = ("lz4", "zstd")
FORMATS = ("lines", "arrow", "typed")


def packs(kind: str, values: list[bytes], per_pack: int) -> Packed:
    column: Any = pa.array(values, pa.binary())
    columns = pa.record_batch({"value": column})
    if kind == "typed":
        columns = pa.record_batch({"n": pa.array(range(len(values))), "text": column})
    starts = np.append(np.arange(0, len(values), per_pack), len(values))
    topics = pa.array(["t"] * len(values)).dictionary_encode()
    codec = codec_of("lines" if kind == "lines" else "arrow", columns.schema)
    return packed(codec, Rows(topics, codec.normal(columns), np.arange(len(values))), starts)


def headers_of(batch: MessageBatch) -> list[dict[str, list[str]]]:
    assert batch.headers is not None
    return [dict(entries) for entries in batch.headers.to_pylist()]


def read(batch: MessageBatch, *, only_typed: bool = False) -> Unpacked:
    n = np.arange(len(batch))
    payloads = batch.payloads.cast(pa.binary_view())
    return unpack(Records(n, n, batch.topics, payloads, batch.headers), only_typed=only_typed)


def rows_of(found: Unpacked) -> list[Any]:
    assert not found.errors
    values: list[Any] = found.values.to_pylist()
    return values + [run.columns.to_pylist() for run in found.typed]


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("kind", FORMATS)
@examples(12)
@given(data=st.data())
def test_compressed_packs_have_the_rows_and_headers_of_the_plain_ones(
    kind: str, name: str, data: st.DataObject
) -> None:
    value = st.binary(max_size=30).map(lambda v: v.replace(b"\n", b"\r") * 20)
    values = data.draw(st.lists(value, min_size=1, max_size=80))
    batch = packs(kind, values, data.draw(st.integers(1, 30))).batch
    small = PackCompressor(name, data.draw(st.none() | st.integers(1, 12))).compress(batch)
    assert (small.sizes() <= batch.sizes()).all()
    before, after = read(batch), read(small)
    assert rows_of(after) == rows_of(before)
    assert after.headers == before.headers
    again = plain(small)
    assert again.headers == batch.headers
    assert rows_of(read(again)) == rows_of(before)


@each("kind", FORMATS)
def test_what_does_not_become_smaller_is_sent_as_it_is(kind: str) -> None:
    noise = random.Random(7).randbytes(3_000).replace(b"\n", b"\r")
    batch = packs(kind, [noise], 1).batch
    assert PackCompressor("zstd", 19).compress(batch) is batch


def one(kind: str, name: str = "zstd", **headers: str | None) -> MessageBatch:
    """A compressed pack of 100 rows with other headers."""
    small = PackCompressor(name).compress(packs(kind, [b"abc" * 30] * 100, 100).batch)
    told = headers_of(small)[0]
    assert told["Mama-Pack"] == ["lines;v=2" if kind == "lines" else "arrow;v=2"]
    for key, value in headers.items():
        told["Mama-Pack-" + key] = [] if value is None else [value]
    return MessageBatch(small.topics, small.payloads, pa.array([list(told.items())], HEADERS_TYPE))


def reason(batch: MessageBatch) -> str:
    found = read(batch)
    assert len(found) == 1
    assert found.values.to_pylist() == batch.payloads.to_pylist()
    return found.errors[0]


@each("kind", FORMATS)
@each("told", [None, "0", "-5", "x", str(MAX_PLAIN_BYTES + 1), "99999999999999999999"])
def test_a_pack_must_announce_its_size(kind: str, told: str | None) -> None:
    assert "Mama-Pack-Bytes" in reason(one(kind, Bytes=told))


@pytest.mark.parametrize("name", ENCODINGS)
def test_lines_of_another_size_than_announced_are_an_error(name: str) -> None:
    right = 100 * 91 - 1
    assert not read(one("lines", name)).errors
    assert "announces 9,098" in reason(one("lines", name, Bytes=str(right - 1)))
    assert "has 9,099 bytes when decompressed and announces 9,100" in reason(one("lines", name, Bytes=str(right + 1)))


@each(("told", "text"), [("br", "unknown"), (None, "unknown"), ("lz4", "lz4")])
def test_lines_of_another_encoding_are_an_error(told: str | None, text: str) -> None:
    assert text in reason(one("lines", Encoding=told))


@each("name", ENCODINGS)
@each("kind", FORMATS)
def test_a_pack_that_is_cut_or_changed_anywhere_is_a_row_with_a_reason_or_read(kind: str, name: str) -> None:
    batch = one(kind, name)
    payload = batch.payloads[0].as_py()
    rng = random.Random(3)
    for end in range(0, len(payload), max(1, len(payload) // 60)):
        cut = MessageBatch(batch.topics, pa.array([payload[:end]], pa.binary()), batch.headers)
        assert reason(cut)
    for _ in range(120):
        changed = bytearray(payload)
        changed[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
        found = read(MessageBatch(batch.topics, pa.array([bytes(changed)], pa.binary()), batch.headers))
        assert len(found) == (1 if found.errors else 100)


@pytest.fixture
def bombs() -> list[tuple[str, bytes]]:
    size = MAX_PLAIN_BYTES + (2 << 20)
    zeros = pa.record_batch({"value": pa.array([bytes(size)])})
    topics = pa.array(["t"]).dictionary_encode()
    rows = Rows(topics, zeros, np.arange(1))
    arrow = PackCompressor("zstd").compress(packed(codec_of("arrow", zeros.schema), rows, np.array([0, 1])).batch)
    lines = pa.Codec("zstd").compress(bytes(size), asbytes=True)
    return [("arrow;v=2", arrow.payloads[0].as_py()), ("lines;v=2", lines)]


def read_bombs(bombs: list[tuple[str, bytes]]) -> None:
    for form, payload in bombs:
        assert len(payload) < 64 << 10
        for told in ("1000", str(MAX_PLAIN_BYTES)):
            headers = [("Mama-Pack", [form]), ("Mama-Pack-Rows", ["1"]), ("Mama-Pack-Bytes", [told]),
                       ("Mama-Pack-Encoding", ["zstd"])]  # fmt: skip
            topics = pa.array(["t"]).dictionary_encode()
            why = reason(MessageBatch(topics, pa.array([payload], pa.binary()), pa.array([headers], HEADERS_TYPE)))
            assert "announces" in why


def test_a_bomb_is_refused_by_what_it_announces(bombs: list[tuple[str, bytes]]) -> None:
    peak = peak_of(read_bombs, bombs)
    assert peak.python < MAX_PLAIN_BYTES + (8 << 20), "one buffer of what may be announced"
    assert peak.arrow < 8 << 20


def test_only_typed_rows_of_compressed_packs_are_asked_for() -> None:
    found = read(one("lines"), only_typed=True)
    assert "value and no columns" in found.errors[0]
    assert len(read(one("typed"), only_typed=True).typed[0].columns) == 100
