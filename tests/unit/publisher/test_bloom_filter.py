"""The filter that says which keys came before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from mama_spark.publisher.bloom_filter import BloomFilter

from tests.support.tables import each


def keys(n: int, seed: int = 0) -> npt.NDArray[np.uint64]:
    return np.unique(np.random.default_rng(seed).integers(0, 2**63, 2 * n, np.uint64))[:n]


@each("nbytes", [2_816, 1 << 20])
@each("step", [1, 7, 1_000, 5_000])
def test_what_was_added_is_known_at_every_size(nbytes: int, step: int) -> None:
    some, seen = keys(5_000), BloomFilter(nbytes)
    for start in range(0, len(some), step):
        seen.add(some[start : start + step])
        if start % 500 == 0:
            assert seen.add(some[: start + step]).all()
    assert seen.add(some).all()
    assert seen.nbytes == nbytes


def test_few_keys_are_told_apart_exactly_and_many_nearly() -> None:
    some, seen = keys(60_000), BloomFilter(1 << 20)
    early = [seen.add(some[start : start + 100]).any() for start in range(0, 2_000, 100)]
    assert not any(early)
    false = sum(int(seen.add(some[start : start + 1_000]).sum()) for start in range(2_000, 60_000, 1_000))
    assert false < 600
