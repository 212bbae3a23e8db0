"""Packs of nothing but values are read together in one copy, and say what each of them says when it is read alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.packing.codec import ArrowCodec, values_of_packs
from mama_spark.packing.format import BadPack
from mama_spark.packing.ipc import read_pack

from tests.support.tiers import examples

values = st.lists(st.binary(min_size=13, max_size=40), min_size=1, max_size=6)


def packs_of(lists: list[list[bytes]], nullable: bool = True) -> list[bytes]:
    schema = pa.schema([pa.field("value", pa.binary(), nullable)])
    codec = ArrowCodec(schema)
    columns = [pa.RecordBatch.from_arrays([pa.array(some, pa.binary())], schema=schema) for some in lists]
    return [codec.encode(rows, np.array([0, rows.num_rows]))[0].as_py() for rows in columns]


def alone(payload: bytes, rows: int) -> list[bytes] | None:
    try:
        return read_pack(pa.py_buffer(payload), rows)["value"].to_pylist()  # type: ignore[no-any-return]
    except BadPack:
        return None


KINDS = [pa.binary(), pa.binary_view()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("nullable", [True, False])
@examples(40)
@given(lists=st.lists(values, min_size=1, max_size=5), data=st.data())
def test_packs_as_this_project_writes_them_are_read_together(
    nullable: bool, kind: pa.DataType, lists: list[list[bytes]], data: st.DataObject
) -> None:
    payloads = pa.array([b"left out", b"short", *packs_of(lists, nullable)], kind)[1:]
    at = np.array(sorted(data.draw(st.sets(st.integers(1, len(lists)), min_size=1))))
    found = values_of_packs(payloads, at, np.array([len(lists[i - 1]) for i in at.tolist()]))
    assert found is not None
    found.validate(full=True)
    assert found.to_pylist() == [value for i in at.tolist() for value in lists[i - 1]]


@examples(150)
@given(lists=st.lists(values, min_size=1, max_size=3), kind=st.sampled_from(KINDS), data=st.data())
def test_a_changed_pack_is_read_as_it_would_be_alone_or_left_to_that(
    lists: list[list[bytes]], kind: pa.DataType, data: st.DataObject
) -> None:
    payloads, rows = packs_of(lists), [len(some) for some in lists]
    one = data.draw(st.integers(0, len(lists) - 1))
    changed = bytearray(payloads[one])
    for place in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=3)):
        changed[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    payloads[one] = bytes(changed[: data.draw(st.sampled_from([len(changed), len(changed) - 1]))])
    rows[one] += data.draw(st.sampled_from([0, 0, 1, -1]))
    found = values_of_packs(pa.array(payloads, kind), np.arange(len(rows)), np.array(rows))
    if found is not None:
        found.validate(full=True)
        assert found.to_pylist() == [
            v for p, n in zip(payloads, rows, strict=True) for v in (alone(p, n) or [b"cannot be read"])
        ]


def test_offsets_that_overflow_are_left_to_the_reader_that_says_why() -> None:
    (payload,) = packs_of([[b"x" * 20] * 3])
    end = len(payload) - 8 - 64  # three values of 20 octets, padded to 64
    for offsets in ((0, 2**31 - 1, -(2**31) + 20, -(2**31) + 40), (0, 20, 40, 80), (0, 40, 20, 60), (1, 20, 40, 60)):
        wrong = payload[: end - 16] + np.array(offsets, np.int32).tobytes() + payload[end:]
        assert len(wrong) == len(payload)
        assert values_of_packs(pa.array([wrong], pa.binary()), np.array([0]), np.array([3])) is None
    assert values_of_packs(pa.array([payload], pa.binary()), np.array([0]), np.array([3])) is not None
