"""Which sends a permission violation refers to."""

from __future__ import annotations

import pyarrow as pa
from mama_spark.nats.publish.answers import LatestSends


def topics(*names: str) -> pa.DictionaryArray:
    return pa.array(names).dictionary_encode()


def test_sends_to_a_denied_subject_are_found_once() -> None:
    sent = LatestSends()
    sent.add(5, topics("a", "b", "a"))
    sent.add(8, topics("b", "a"))
    assert sent.take("a", exact=True).tolist() == [5, 7, 9]
    assert sent.take("a", exact=True).tolist() == []
    assert sent.take("b", exact=True).tolist() == [6, 8]


def test_a_subject_in_lower_case_is_that_of_every_spelling() -> None:
    sent = LatestSends()
    sent.add(0, topics("A.b", "a.B", "c"))
    assert sent.take("a.b", exact=True).tolist() == []
    assert sent.take("a.b", exact=False).tolist() == [0, 1]


def test_old_sends_are_forgotten() -> None:
    sent = LatestSends()
    for first in range(0, 400_000, 1_000):
        sent.add(first, topics(*["a"] * 1_000))
    found = sent.take("a", exact=True)
    assert (found[0], found[-1]) == (267_000, 399_999)
