"""Ids that occur twice, and the filter that finds them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import BadRow, DoubledId, PublishError
from mama_spark.contracts.message import MessageBatch
from mama_spark.publishing.ids.doubled_ids import DoubledIdCheck
from mama_spark.publishing.ids.key_table import BloomFilter

from tests.support.tables import each

# --- ids that came before are found exactly, up to a bound, and only among rows that are sent ---------------------


def batch(ids: list[str], streams: list[str] | None = None) -> MessageBatch:
    return MessageBatch.of([f"t.{i}" for i in ids], [b"x"] * len(ids), ids=ids, streams=streams)


def doubled(
    check: DoubledIdCheck, one: MessageBatch, rejected: list[tuple[int, PublishError]] | None = None
) -> list[int]:
    rows = check.check(one, rejected or [])[1]
    return [] if rows is None else rows.tolist()


@given(st.lists(st.lists(st.integers(0, 3_000), max_size=40), max_size=12), st.sampled_from([1, 500]))
def test_what_came_before_is_found_exactly_also_when_the_table_grows(batches: list[list[int]], times: int) -> None:
    check, known = DoubledIdCheck(reject=False), set[str]()
    for numbers in batches:
        ids = [f"{n + i}" for i in range(times) for n in numbers]
        expected = []
        for row, id_ in enumerate(ids):
            if id_ in known:
                expected.append(row)
            known.add(id_)
        assert doubled(check, batch(ids)) == expected


def test_ids_that_share_half_of_their_digest_are_two_ids() -> None:
    halves = np.array([[7, 1], [7, 2], [7, 1]], np.uint64)
    assert DoubledIdCheck(reject=False)._came_before(halves).tolist() == [False, False, True]


def test_beyond_the_most_ids_rows_are_compared_with_those_alone(caplog: pytest.LogCaptureFixture) -> None:
    check = DoubledIdCheck(reject=False, most=64)
    first, later = [f"{n}" for n in range(64)], [f"{n}" for n in range(64, 128)]
    assert [doubled(check, batch(ids)) for ids in (first, later, later)] == [[], [], []]
    assert doubled(check, batch(first)) == list(range(64)), "none is forgotten"
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "doubled ids are looked for among the first 64 ids of a task"
    ]


def test_doubled_rows_are_counted_with_the_first_example() -> None:
    check = DoubledIdCheck(reject=False)
    assert doubled(check, batch(["a", "b", "a"])) == [2]
    assert doubled(check, batch(["c", "b", "d", "b"])) == [1, 3]
    assert (check.count, check.first) == (3, ("a", "t.a"))


def test_doubled_rows_are_rejected_among_others_in_order() -> None:
    bad: PublishError = BadRow("the value is null")
    rejected, sent = DoubledIdCheck(reject=True).check(batch(["a", "a", "b", "b"]), [(2, bad)])
    assert sent is None
    assert [(row, type(error)) for row, error in rejected] == [(1, DoubledId), (2, BadRow)]


def test_the_id_of_a_row_that_is_not_sent_is_free() -> None:
    check = DoubledIdCheck(reject=False)
    assert doubled(check, batch(["a", "a"]), [(0, BadRow("the value is null"))]) == []
    assert doubled(check, batch(["", "", "a"]), [(0, BadRow("the id is null")), (1, BadRow("the id is null"))]) == [2]
    assert check.first == ("a", "t.a")


def test_an_id_counts_for_its_stream() -> None:
    check = DoubledIdCheck(reject=False)
    assert doubled(check, batch(["a", "a", "a"], ["S", "T", "S"])) == [2]
    assert doubled(check, batch(["Sa", "a"], ["", "T"])) == [1], "names are delimited"


def test_an_empty_batch_changes_nothing() -> None:
    empty = MessageBatch(
        pa.array([], pa.string()).dictionary_encode(), pa.array([], pa.binary()), ids=pa.array([], pa.string())
    )
    assert DoubledIdCheck(reject=True).check(empty, []) == ([], None)


# --- the filter that says which keys came before ----------------------------------------------------------------------


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
