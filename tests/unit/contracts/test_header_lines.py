"""Names and values of headers that no bridge sends are found, however many fine ones stand beside them."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import PublishError
from mama_spark.contracts.headers import HeaderLines, bad_values, reject_lines
from mama_spark.contracts.message import HEADERS_TYPE

from tests.support.tiers import examples

texts = st.text(st.sampled_from("az~é \t:\r\n\0\x7f\x1f"), max_size=4)


@examples(100)
@given(values=st.lists(st.none() | texts, max_size=8), cut=st.integers(0, 8))
def test_values_with_line_breaks_or_nul_and_nulls_are_bad(values: list[str | None], cut: int) -> None:
    found = bad_values(pa.array(values, pa.string()).slice(cut)).to_pylist()
    assert found == [v is None or re.search("[\x00\r\n]", v) is not None for v in values[cut:]]


@examples(100)
@given(names=st.lists(texts, min_size=1, max_size=6))
def test_names_that_are_empty_or_have_a_blank_colon_or_control_character_are_bad(names: list[str]) -> None:
    maps = pa.array([[(name, ["v"])] for name in names], HEADERS_TYPE)
    bad: dict[int, PublishError] = {}
    reject_lines(HeaderLines.of(maps), bad)
    assert sorted(bad) == [i for i, name in enumerate(names) if not name or re.search("[\x00-\x20:\x7f]", name)]
