"""Payloads that their publisher has compressed: rows with what was compressed, or with the reason."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import CorruptPack
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.packing import decompress

from tests.support.memory import peak_of
from tests.support.spark import unpacked_rows
from tests.support.spark.unpacked_rows import Message, records
from tests.support.tables import each

rows = partial(unpacked_rows.rows, decompress="true")


def arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(payload: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(payload)
        return bytes(sink.getvalue())

    return compress


#: Written by other libraries where Python has one.
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "bzip2": bz2.compress,
    "zstd": arrow("zstd"), "br": arrow("brotli"), "lz4": arrow("lz4"), "identity": bytes, "": bytes,
}  # fmt: skip


def compressed(payload: bytes, encoding: str, **headers: str) -> Message:
    return "t", COMPRESS[encoding](payload), {"Content-Encoding": encoding, **headers}


@given(st.lists(st.tuples(st.binary(max_size=300), st.sampled_from([None, *COMPRESS])), min_size=1, max_size=12))
def test_values_are_what_was_compressed_whatever_is_read_with_them(payloads: list[tuple[bytes, str | None]]) -> None:
    messages = [("t", p, None) if e is None else compressed(p, e, k=e) for p, e in payloads]
    found = rows(*messages)
    assert [r["value"] for r in found] == [p for p, _ in payloads]
    assert [r["sequence"] for r in found] == [i + 5 for i in range(len(payloads))]
    plain = ("identity", "")
    kept = [(e, ["Content-Encoding", "k"] if e in plain else ["k"]) for _, e in payloads if e is not None]
    assert [[name for name, _ in r["headers"]] for r in found if r["headers"]] == [names for _, names in kept]
    assert all(r["pack_error"] is None for r in found)


@each("encoding", ["GZIP ", "gzip"])
@each("name", ["Content-Encoding", "content-encoding"])
def test_the_header_is_read_as_clients_write_it(name: str, encoding: str) -> None:
    (found,) = rows(("t", gzip.compress(b"a"), {name: encoding, "Nats-Msg-Id": "m"}))
    assert (found["value"], found["headers"], found["id"]) == (b"a", None, "m")


@each(
    ("payload", "encoding", "reason"),
    [
        (gzip.compress(b"abc" * 100, mtime=0)[:-3], "gzip", "Content-Encoding: gzip: Truncated"),
        (b"no gzip", "gzip", "Content-Encoding: gzip: zlib inflate failed"),
        (gzip.compress(b"abc", mtime=0) + b"more", "gzip", "Content-Encoding: gzip: zlib inflate failed"),
        (b"no zstd", "zstd", "Content-Encoding: zstd: "),
        (b"no lz4 frame", "lz4", "Content-Encoding: lz4: "),
        (b"x", "aes128gcm", "'aes128gcm' is unknown here; known: gzip, "),
        (gzip.compress(bytes(2000), mtime=0), "gzip", "more than 1,000 bytes when decompressed (maxDecompressedBytes)"),
    ],
)
@each("unpack", ["true", "false"])
def test_what_cannot_be_decompressed_is_a_row_with_its_bytes_and_the_reason(
    payload: bytes, encoding: str, reason: str, unpack: str
) -> None:
    bad = ("t", payload, {"Content-Encoding": encoding, "Mama-Pack": "lines;v=1", "Mama-Pack-Rows": "1"})
    good = compressed(b"x" * 1_000, "gzip")
    found = rows(good, bad, bad, good, unpack=unpack, maxDecompressedBytes="1000")
    assert [len(r["value"]) for r in found] == [1_000, len(payload), len(payload), 1_000]
    assert reason in found[1]["pack_error"]
    assert [r["pack_error"] is None for r in found] == [True, False, False, True]
    assert ("Content-Encoding", [encoding]) in found[1]["headers"]
    with pytest.raises(CorruptPack, match="the message with sequence 6 of stream 'S' cannot be read"):
        rows(good, bad, unpack=unpack, maxDecompressedBytes="1000", failOnCorrupt="true")


ONE, OTHER = "Content-Encoding", "content-encoding"


@each(
    ("headers", "known"),
    [([(ONE, ["gzip", "br"])], False), ([(ONE, ["gzip"]), (OTHER, ["br"])], False),
     ([(ONE, ["gzip"]), (OTHER, ["gzip"])], True)],
)  # fmt: skip
def test_several_encodings_are_left_as_they_came_unless_they_are_one_in_both_spellings(
    headers: list[tuple[str, list[str]]], known: bool
) -> None:
    payload = gzip.compress(b"a")
    stored = replace(records(("t", payload, {})), headers=pa.array([headers], HEADERS_TYPE))
    (found,) = unpacked_rows.rows_of(stored, decompress="true")
    if known:
        assert (found["value"], found["pack_error"]) == (b"a", None)
    else:
        assert "Content-Encoding: 'gzip, br' is unknown here" in found["pack_error"]
        assert (found["value"], found["headers"]) == (payload, headers)


def test_a_compressed_pack_is_decompressed_and_unpacked() -> None:
    found = rows(compressed(b"a\nb", "zstd", **{"Mama-Pack": "lines;v=1", "Mama-Pack-Rows": "2"}))
    assert [(r["value"], r["pack_index"], r["headers"]) for r in found] == [(b"a", 0, None), (b"b", 1, None)]


def test_records_that_grow_come_a_few_at_a_time() -> None:
    many = records(*[compressed(bytes(1 << 20), "gzip")] * 40)
    sizes = [some.payloads.nbytes for some, _ in decompress.decompressed(many, 1 << 20)]
    assert sum(sizes) >= 40 << 20
    assert max(sizes) <= decompress.CHUNK_BYTES + (2 << 20)


def read_bomb(bomb: bytes) -> None:
    (found,) = rows(("t", bomb, {"Content-Encoding": "gzip"}), maxDecompressedBytes="100000")
    assert "more than 100,000 bytes" in found["pack_error"]


def test_a_bomb_is_not_decompressed_beyond_the_limit() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    assert max(peak_of(read_bomb, bomb)) < 8 << 20, "1 MB; it would become 64"


def test_without_the_option_nothing_is_looked_at() -> None:
    message = compressed(b"abc", "gzip")
    (found,) = unpacked_rows.rows(message)
    assert (found["value"], found["headers"]) == (message[1], [("Content-Encoding", ["gzip"])])
