"""The first value of a header is the same whether a message comes with few others or with many."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.message import HEADERS_TYPE
from mama_spark.packing.pack_headers import FEW_HEADERS, first_values

from tests.support.tiers import examples

NAMES = ("Mama-Pack", "Mama-Pack-Rows", "never there")
ENTRIES = st.lists(
    st.tuples(st.sampled_from([*NAMES[:2], "other"]), st.lists(st.text(max_size=3), max_size=2)), max_size=4
)


@examples(60)
@given(st.lists(st.none() | ENTRIES, min_size=1, max_size=6), st.integers(0, 2))
def test_first_values_of_few_and_of_many(maps: list[list[tuple[str, list[str]]] | None], skipped: int) -> None:
    expected = [
        [next((values[0] for key, values in entries or [] if key == name and values), None) for entries in maps]
        for name in NAMES
    ]
    times = FEW_HEADERS + 1
    for some in (pa.array(maps, HEADERS_TYPE), pa.array(maps * times, HEADERS_TYPE)):
        cut = some.slice(skipped)
        for name, found, wanted in zip(NAMES, first_values(cut, *NAMES), expected, strict=True):
            assert found.type == pa.string(), name
            assert found.to_pylist() == (wanted * (len(some) // len(maps)))[skipped:], name
