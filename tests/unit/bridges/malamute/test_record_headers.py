"""Headers of fetched messages: the same whether they are decoded step by step or in a loop over a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.bridges.malamute import records
from mama_spark.malamute.protocol.extensions import Extension, write

from tests.support.tiers import examples

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
