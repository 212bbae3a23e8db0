"""Rows that an attempt before has stored: the protocol, and how they are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.batch_ledger import Marker
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import Int64s
from mama_spark.contracts.record_log import Bounds
from mama_spark.publishing.exactly_once import protocol as p
from mama_spark.publishing.exactly_once.found_rows import Distinct, FoundRows, Keys, free_numbers, keys_of
from mama_spark.publishing.exactly_once.matching import MOST_CLAIMED, Claim, decode_claim, encode_claim
from mama_spark.publishing.exactly_once.protocol import (
    Attempt,
    BatchMarker,
    BatchTurn,
    Step,
    TaskMarker,
    TaskTurn,
    Turn,
)

from tests.support.tables import each

# --- what an attempt does with the markers that it finds, for every state of both -------------------------------------

ME = Attempt("query", 7, "r2", 3, "me", "query-7-", "one message a row")
BATCH = BatchMarker(7, ("r2",), "query-7-", "one message a row", "2026", 100)
TASK = TaskMarker(7, "r2", "me", 100)


def taken(turn: Turn, stored: BatchMarker | TaskMarker | None, *, end: float) -> tuple[list[object], float]:
    """What a turn writes until it has come to an end, with the seconds it waits; nobody else writes."""
    marker, now, written = (
        Marker(int(stored is not None), b"" if stored is None else p.encode(stored)),
        0.0,
        list[object](),
    )
    while True:
        step = turn.step(marker, now)
        if isinstance(step, Step):
            return [*written, step], now
        assert now < end
        if isinstance(step, float):
            now += min(step, 0.5)
        else:
            written.append(step)
            marker = Marker(marker.revision + 1, p.encode(step))


NEW = replace(BATCH, after=180)
OLD = replace(BATCH, runs=("r1",))
SEIZED = replace(BATCH, runs=("r1", "r2"), open=False)
OPENED = replace(SEIZED, open=True, until=200)


@each(
    ("stored", "written", "waited"),
    [
        (None, [NEW, Step.GO], 0.0),
        (replace(BATCH, batch=6), [NEW, Step.GO], 0.0),
        (replace(OLD, batch=6, open=False), [NEW, Step.GO], 0.0),
        (BATCH, [Step.GO], 0.0),
        (replace(BATCH, runs=("r1", "r2")), [Step.GO], 0.0),
        (replace(BATCH, batch=8), [Step.OLDER], 0.0),
        (OLD, [SEIZED, OPENED, Step.GO], 5.0),
        (replace(OLD, open=False), [SEIZED, OPENED, Step.GO], 5.0),
        (SEIZED, [OPENED, Step.GO], 5.0),
        # the stream was restored from a copy that is older than the batch
        (replace(OLD, after=190), [replace(SEIZED, after=180), replace(OPENED, after=180), Step.GO], 5.0),
        (replace(BATCH, after=190), [replace(BATCH, after=180), Step.GO], 0.0),
    ],
)
def test_a_run_takes_a_batch_from_an_earlier_one_when_a_lease_has_passed(
    stored: BatchMarker | None, written: list[object], waited: float
) -> None:
    turn = BatchTurn(ME, 5.0, Bounds(1, 180, "2026"), lambda: 200)
    assert taken(turn, stored, end=9.0) == (written, waited)
    assert turn.last == (200 if waited else 180)


def test_a_run_gives_up_a_batch_that_a_later_one_has() -> None:
    turn = BatchTurn(ME, 5.0, Bounds(1, 180, "2026"), lambda: 200)
    with pytest.raises(p.Superseded, match="another run of the same write has taken batch 7 over"):
        turn.step(Marker(1, p.encode(replace(BATCH, runs=("r2", "r3")))), 0.0)


@each(
    ("stored", "written", "waited"),
    [
        (None, [TASK, Step.GO], 0.0),
        (replace(TASK, batch=6), [TASK, Step.GO], 0.0),
        (replace(TASK, run="r1"), [TASK, Step.GO], 0.0),
        (TASK, [Step.GO], 0.0),
        (replace(TASK, owner="other", released=True, renewed=3), [TASK, Step.GO], 0.0),
        (replace(TASK, owner="other"), [TASK, Step.GO], 5.0),
        (replace(TASK, owner="other", after=130, released=True), [TASK, Step.GO], 0.0),  # as above
    ],
)
def test_an_attempt_takes_a_partition_from_another_one_when_a_lease_has_passed(
    stored: TaskMarker | None, written: list[object], waited: float
) -> None:
    turn = TaskTurn(ME, 5.0, 100, 0.0)
    assert taken(turn, stored, end=9.0) == (written, waited)
    assert (turn.began, turn.repeated) == (waited, stored is not None and stored.owner == "other")


@each(
    ("stored", "written", "before"),
    [
        (None, ("b", "c"), ()),
        (replace(TASK, run="r1", servers=("a",)), ("b", "c"), ()),  # who opened the batch has waited for it
        (replace(TASK, owner="other", released=True, servers=("a", "b")), ("a", "b", "c"), ("a", "b")),
        (replace(TASK, owner="other", released=True), ("b", "c"), ()),
    ],
)
def test_a_marker_names_the_servers_of_its_owner_and_those_that_are_not_waited_for_yet(
    stored: TaskMarker | None, written: tuple[str, ...], before: tuple[str, ...]
) -> None:
    turn = TaskTurn(ME, 5.0, 100, 0.0, ("b", "c"))
    assert taken(turn, stored, end=9.0) == ([replace(TASK, servers=written), Step.GO], 0.0)
    assert turn.before == before


def test_a_run_waits_for_the_servers_of_all_partitions_of_the_runs_before() -> None:
    tasks = [
        replace(TASK, servers=("a", "b")),
        replace(TASK, run="r1", servers=("b", "c")),
        replace(TASK, batch=6, servers=("d",)),
    ]
    markers = [Marker(1, p.encode(task)) for task in tasks]
    assert p.servers_of([*markers, Marker(0, b"")], 7) == ("a", "b", "c")


def test_a_marker_that_is_renewed_is_not_taken() -> None:
    turn = TaskTurn(ME, 5.0, 100, 0.0)
    for n in range(20):
        found = p.encode(replace(TASK, owner="other", renewed=n))
        assert turn.step(Marker(n + 1, found), 4.0 * n) == 5.0


def test_markers_survive_their_encoding() -> None:
    for batch in (BATCH, OPENED):
        assert p.batch_marker(p.encode(batch)) == batch
    for task in (TASK, replace(TASK, servers=("a", "b"))):
        assert p.task_marker(p.encode(task)) == task
    without = orjson.dumps({name: value for name, value in orjson.loads(p.encode(TASK)).items() if name != "servers"})
    assert p.task_marker(without) == TASK
    assert p.batch_marker(b"") is None
    assert p.task_marker(b"") is None


@each("value", [b"x", b"[]", b"{}", b'{"batch": "x", "after": 1}'])
def test_what_is_no_marker_is_an_error_that_shows_it(value: bytes) -> None:
    for read in (p.batch_marker, p.task_marker):
        with pytest.raises(ConfigError, match="not a marker of mama-spark"):
            read(value)
    with pytest.raises(ConfigError, match="not a claim of mama-spark"):
        decode_claim(value)


def test_keys_have_plain_tokens() -> None:
    assert ME.key("S", "task", 3) == "query.S.task.3"
    assert replace(ME, write="app 1.x/>").key("S", "batch").split(".")[1:] == ["S", "batch"]
    assert p.token("a.b") != p.token("a b")


def test_other_ids_or_packs_than_before_are_refused() -> None:
    p.check_same_write(ME, BATCH)
    with pytest.raises(ConfigError, match="Set option idPrefix as it was"):
        p.check_same_write(ME, replace(BATCH, prefix="other-7-"))
    with pytest.raises(ConfigError, match="was begun as pack=lines"):
        p.check_same_write(ME, replace(BATCH, form="pack=lines of values"))


# --- each stored row matches one row, and the ids of the others are free ----------------------------------------------

#: Contents that share 64 bits of their hash, so that the other bits must tell them apart.
CONTENTS = [(1, 0), (1, 1), (2, 0), (3, 0), (3, 7)]
contents = st.lists(st.sampled_from(CONTENTS), max_size=30)


def keys(some: list[tuple[int, int]]) -> Keys:
    return Keys(np.array([high for high, _ in some], np.uint64), np.array([low for _, low in some], np.uint32))


def table(stored: list[tuple[int, int]], run: int = 4, partition: int = 0) -> FoundRows:
    """Stored one after another behind sequence 100, with numbers by content."""
    found, seen = FoundRows(100, run), Counter[tuple[int, int]]()
    for i, content in enumerate(stored):
        one = np.array([seen[content]], np.int64)
        seen[content] += 1
        found.add(keys([content]), np.array([101 + i]), np.array([partition]), one)
    found.finish()
    return found


def matched(found: FoundRows, wanted: list[tuple[int, int]]) -> Int64s:
    return found.take(found.plan(Distinct.of(keys(wanted)))).sequence


@given(contents, contents, st.integers(0, 30))
def test_each_stored_row_serves_one_row_of_its_content(
    stored: list[tuple[int, int]], wanted: list[tuple[int, int]], cut: int
) -> None:
    found = table(stored)
    first, second = wanted[:cut], wanted[cut:]
    sequences = [int(s) for some in (first, second) if some for s in matched(found, some)]
    used = [s for s in sequences if s >= 0]
    assert len(set(used)) == len(used)
    assert all(stored[s - 101] == row for s, row in zip(sequences, first + second, strict=True) if s >= 0)
    assert Counter(stored[s - 101] for s in used) == Counter(stored) & Counter(wanted)


@given(contents, st.lists(st.tuples(st.integers(0, 2), contents), max_size=5))
def test_tasks_that_follow_one_log_of_claims_never_use_one_row_twice(
    stored: list[tuple[int, int]], steps: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    """However the rows are cut into runs: each task has read them by itself."""
    tables, log, used = [table(stored, run) for run in (1, 3, 100)], list[Claim](), list[int]()
    read = [0, 0, 0]
    for task, wanted in steps:
        while wanted:
            while read[task] < len(log):
                claim = log[read[task]]
                tables[task].claim(claim.contents, mine=claim.partition == task)
                read[task] += 1
            plan = tables[task].plan(Distinct.of(keys(wanted)))
            new = plan.claims()
            if not len(new.keys):
                used += [int(s) for s in tables[task].take(plan).sequence if s >= 0]
                break
            made = decode_claim(encode_claim(Claim(7, "run", task, new.head(MOST_CLAIMED))))
            assert made is not None
            log.append(made)
    assert len(set(used)) == len(used)
    wanted_in_all = Counter(row for _, wanted in steps for row in wanted)
    assert Counter(stored[s - 101] for s in used) == Counter(stored) & wanted_in_all


@given(contents, contents, st.integers(1, 3))
def test_a_repeated_task_gets_what_its_first_attempt_has_claimed(
    stored: list[tuple[int, int]], wanted: list[tuple[int, int]], others: int
) -> None:
    first, again = table(stored), table(stored)
    if not wanted:
        return
    plan = first.plan(Distinct.of(keys(wanted)))
    claimed = plan.claims()
    expected = sorted(first.take(plan).sequence.tolist())
    again.claim(claimed, mine=True)
    again.claim(Distinct.of(keys(CONTENTS * others)), mine=False)
    assert sorted(matched(again, wanted).tolist()) == expected


@given(st.sets(st.integers(0, 12)), st.integers(1, 8))
def test_numbers_of_what_is_published_are_those_that_are_not_stored(taken: set[int], n: int) -> None:
    free = [number for number in range(40) if number not in taken][:n]
    assert free_numbers(np.arange(n), np.array(sorted(taken), np.int64)).tolist() == free


def test_numbers_are_those_of_ids_of_one_partition() -> None:
    found = table([(1, 0), (1, 0), (1, 1)], partition=3)
    assert {i: some.tolist() for i, some in found.numbers(keys([(2, 0), (1, 0), (1, 1)]), 3).items()} == {
        1: [0, 1],
        2: [0],
    }
    assert found.numbers(keys([(1, 0)]), 4) == {}


@each(("partition", "number", "each"), [(0, 0, 18), (255, 63, 18), (256, 64, 20), (65_536, 16_384, 24)])
def test_a_row_takes_24_bytes_at_most(partition: int, number: int, each: int) -> None:
    found, chance, n = FoundRows(0), np.random.default_rng(1), 20_000
    for start in range(0, 5 * n, n):
        digests = chance.integers(0, 256, (n, 16), np.uint8)
        columns = np.full(n, partition), np.full(n, number)
        found.add(keys_of(digests), np.arange(start + 1, start + n + 1), *columns)
    found.finish()
    last = keys_of(digests[-1:])
    assert len(found) == 5 * n
    assert found.nbytes == each * len(found)
    one = found.take(found.plan(Distinct.of(last)))
    assert (one.sequence.tolist(), one.partition.tolist(), one.number.tolist()) == ([5 * n], [partition], [number])
    assert found.plan(Distinct.of(last)).want.tolist() == [1], "it matches one row"


def test_a_claim_has_a_bounded_number_of_contents() -> None:
    some = Distinct.of(keys([(n, 0) for n in range(40_000)])).head(MOST_CLAIMED)
    made = decode_claim(encode_claim(Claim(7, "run", 0, some)))
    assert made is not None
    assert len(made.contents.keys) == MOST_CLAIMED == 16_384
    assert decode_claim(b"") is None
