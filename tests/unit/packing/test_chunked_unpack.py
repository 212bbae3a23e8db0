"""Packed messages are unpacked in portions of bounded memory: what they make of a few bytes is never made at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.message import HEADERS_TYPE
from mama_spark.packing import announced_rows, unpack, unpack_chunks
from mama_spark.packing.chunked_unpack import CHUNK_BYTES, CHUNK_ROWS
from mama_spark.record_log import Records

from tests.support.memory import arrow_peak_of

Message = tuple[str, bytes, list[tuple[str, list[str]]] | None]


def records(*messages: Message) -> Records:
    topics, payloads, headers = zip(*messages, strict=True)
    n = np.arange(len(messages))
    column = pa.array(headers, HEADERS_TYPE)
    return Records(n + 1, n, pa.array(topics, pa.string()), pa.array(payloads, pa.binary()), column)


def lines(values: list[bytes], *headers: tuple[str, list[str]], topic: str = "t", rows: int | None = None) -> Message:
    own = [("Mama-Pack", ["lines;v=1"]), ("Mama-Pack-Rows", [str(len(values) if rows is None else rows)])]
    return topic, b"\n".join(values), [*own, *headers]


plain = st.builds(
    lambda value, headers: ("p", value, headers), st.binary(max_size=9), st.sampled_from([None, [("a", ["b"])]])
)
some_lines = st.lists(st.binary(max_size=5).map(lambda b: b.replace(b"\n", b"")), min_size=1, max_size=12)
packs = st.builds(lambda values, h: lines(values, *h), some_lines, st.sampled_from([(), (("k", ["v", "w"]),)]))
wrong = st.builds(lambda values: lines(values, rows=len(values) + 1), some_lines)
sizes = st.integers(1, 30)


@given(st.lists(plain | packs | wrong, min_size=1, max_size=12), sizes, sizes, sizes, sizes)
def test_portions_are_all_rows_in_order_whatever_the_limits(
    messages: list[Message], together_bytes: int, together_rows: int, most_rows: int, most_bytes: int
) -> None:
    whole = records(*messages)
    want = unpack(whole)
    limits = {"BATCH_BYTES": together_bytes, "BATCH_ROWS": together_rows, "CHUNK_ROWS": most_rows,
              "CHUNK_BYTES": most_bytes}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(f"mama_spark.packing.chunked_unpack.{name}", value)
        found = list(unpack_chunks(whole))
    sequences = [int(some.sequences[r]) for some, part in found for r in part.records]
    assert sequences == (want.records + 1).tolist()
    assert [i for _, part in found for i in part.index.tolist()] == want.index.tolist()
    assert [v for _, part in found for v in part.values.to_pylist()] == want.values.to_pylist()
    headers = [h for _, p in found for h in ([None] * len(p) if p.headers is None else p.headers.to_pylist())]
    assert headers == ([None] * len(want) if want.headers is None else want.headers.to_pylist())
    first, reasons = 0, {}
    for _, part in found:
        reasons.update({first + row: why for row, why in part.errors.items()})
        first += len(part)
        assert len(part) <= most_rows or not any(h and h[0][0] == "Mama-Pack" for _, _, h in messages)
    assert reasons == want.errors


def test_slices_keep_typed_rows_at_their_places() -> None:
    batch = pa.record_batch({"n": pa.array(range(10), pa.int64())})
    payload = batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0"
    headers = [("Mama-Pack", ["arrow;v=1"]), ("Mama-Pack-Rows", ["10"])]
    found = unpack(records(lines([b"a", b"b"]), ("t", payload, headers), ("t", payload, headers)))
    part = found.slice(5, 17)
    assert [(run.first, run.columns.column("n").to_pylist()) for run in part.typed] == [
        (0, list(range(3, 10))),
        (7, list(range(5))),
    ]
    assert found.slice(0, 2).typed == []


def test_slices_keep_reasons_at_their_rows() -> None:
    found = unpack(records(lines([b"a", b"b"]), lines([b"c"], rows=2), lines([b"d"])))
    assert list(found.errors) == [2]
    assert found.slice(1, 4).errors == {1: found.errors[2]}
    assert found.slice(3, 4).errors == found.slice(0, 2).errors == {}


def unpack_a_bomb_of_headers() -> None:
    """A megabyte that would be 8 GB of headers."""
    bomb = records(lines([b""] * 1_000_000, ("k", ["x" * 8_000]), topic="t" * 100))
    total = 0
    for _, part in unpack_chunks(bomb):
        total += len(part)
        assert len(part) <= CHUNK_ROWS
        if total < 20_000:
            assert part.headers is not None
            assert part.headers.nbytes < 2 * CHUNK_BYTES
    assert total == 1_000_000


def test_headers_that_a_million_empty_rows_share_are_not_copied_at_once() -> None:
    assert arrow_peak_of(unpack_a_bomb_of_headers) < 200 << 20, "of 8 GB"


def test_announced_rows_are_no_more_than_the_bytes_can_hold() -> None:
    found = announced_rows(
        records(lines([b"a"] * 3), lines([b"a"], rows=1_000_000), lines([b"a"], rows=-1), ("p", b"", None))
    )
    assert found.tolist() == [3, 9, 1, 1]
    assert announced_rows(records(("p", b"x", None))).tolist() == [1]
