"""Ids that occur twice, and the filter that finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import BadRow, DoubledId, PublishError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.publishing.ids import seen_ids
from mama_spark.publishing.ids.bloom_filter import BloomFilter
from mama_spark.publishing.ids.doubled_ids import DoubledIdCheck
from mama_spark.publishing.ids.seen_ids import SeenIds
from xxhash import xxh3_128_digest

from tests.support.tables import each

# --- ids that came before are found exactly, in bounded memory, and only among rows that are sent ---------------------


def digests(numbers: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.frombuffer(b"".join(xxh3_128_digest(b"%d" % n) for n in numbers), np.uint8).reshape(len(numbers), 16)


def batch(ids: list[str], streams: list[str] | None = None) -> MessageBatch:
    return MessageBatch.of([f"t.{i}" for i in ids], [b"x"] * len(ids), ids=ids, streams=streams)


def doubled(
    check: DoubledIdCheck, one: MessageBatch, rejected: list[tuple[int, PublishError]] | None = None
) -> list[int]:
    rows = check.check(one, rejected or [])[1]
    return [] if rows is None else rows.tolist()


@given(st.lists(st.lists(st.integers(0, 60), max_size=40), max_size=12), st.sampled_from([4, 32, 1_000]))
def test_what_came_before_is_found_exactly_also_in_the_file(batches: list[list[int]], run: int) -> None:
    seen, known = SeenIds(run=run), set[int]()
    for numbers in batches:
        expected = []
        for n in numbers:
            expected.append(n in known)
            known.add(n)
        assert seen.add(digests(numbers)).tolist() == expected
    seen.close()


def test_ids_that_share_half_of_their_digest_are_two_ids() -> None:
    seen = SeenIds()
    halves = np.array([[7, 1], [7, 2], [7, 1]], np.uint64)
    assert seen.add(halves.view(np.uint8)).tolist() == [False, False, True]


def test_memory_is_bounded_and_no_id_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_ids, "FILTER_BYTES", (1 << 10, 1 << 12))  # far too small: the runs decide
    seen = SeenIds(str(tmp_path), run=1_000)
    for start in range(0, 20_000, 500):
        assert not seen.add(digests(list(range(start, start + 500)))).any()
        assert seen.nbytes <= (1 << 12) + 16 * 1_000
    assert seen.add(digests(list(range(0, 20_000, 7)))).all()
    assert list(tmp_path.iterdir()) == [], "the file has no name, so that nothing is left of a killed worker"
    seen.close()


def test_a_file_that_cannot_be_written_fails_with_what_to_do(tmp_path: Path) -> None:
    seen = SeenIds(str(tmp_path / "none"), run=4)
    with pytest.raises(Unavailable, match=r"16 bytes a row in .*none to recognise doubled ids; make room .* TMPDIR"):
        seen.add(digests(list(range(10))))


def test_a_disk_without_any_room_fails_with_what_to_do(tmp_path: Path) -> None:
    """In a process of its own: Python looks for a folder that it can write to, once a process, and finds none."""
    script = (
        "import numpy as np, os, resource, signal\n"
        "from mama_spark.contracts.errors import Unavailable\n"
        "from mama_spark.publishing.ids.seen_ids import SeenIds\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try:\n"
        "    SeenIds(run=4).add(np.arange(160, dtype=np.uint8).reshape(10, 16))\n"
        "except Unavailable as e:\n"
        "    os.write(1, str(e).encode())\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    made = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, check=False
    )
    assert f"16 bytes a row in {tmp_path} to recognise doubled ids" in made.stdout.decode(), made.stderr


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
