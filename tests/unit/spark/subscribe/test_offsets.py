"""Offsets of mamasub: where queries begin and batches end."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import Bounds, Continuity
from mama_spark.memory.logs import MemoryLogs
from mama_spark.spark.subscribe.offsets import (
    Loss,
    Offsets,
    ReadRange,
    StreamPosition,
    advance,
    data_lost,
    from_json,
    ranges,
    reconcile,
    requested_offsets,
    share_evenly,
    to_json,
)
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.spark.subscribe.task_ranges import MAX_TASK_ROWS, MIN_TASK_ROWS, split_ranges, task_count
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.spark.memory_harness import FilledLog, reconciled
from tests.support.tables import each

ORDERS = {"ORDERS": Bounds(5, 20, "a")}
starting_offsets = partial(requested_offsets, "startingOffsets")


def at(offsets: Offsets) -> dict[str, int]:
    return {stream: p.next for stream, p in offsets.items()}


@each(
    ("wanted", "begins"),
    [
        ("earliest", 5),
        ("latest", 21),
        *(((("ORDERS", given),), begins) for given, begins in ((7, 7), (21, 21), (-1, 21), (-2, 5), (2, 2), (0, 1))),
    ],
)
def test_a_query_begins_where_it_is_said_as_kafkas_do(wanted: Any, begins: int) -> None:
    """A number is the first sequence to read, -2 the first that is there, -1 the next that comes."""
    assert at(starting_offsets(ORDERS, wanted)) == {"ORDERS": begins}
    assert at(starting_offsets({"NEW": Bounds(1, 0, "a")}, "latest")) == {"NEW": 1}


def test_json_offsets_must_name_just_the_streams_that_are_read_and_what_is_there() -> None:
    with pytest.raises(ConfigError, match=r"startingOffsets must name the streams that are read \(ORDERS\).*TRADES"):
        starting_offsets(ORDERS, (("TRADES", 1),))
    with pytest.raises(ConfigError, match="endingOffsets must name"):
        requested_offsets("endingOffsets", {**ORDERS, "TRADES": Bounds(1, 0, "b")}, (("ORDERS", 1),))
    with pytest.raises(ConfigError, match="'ORDERS' has no sequence 22 yet, its last is 20"):
        starting_offsets(ORDERS, (("ORDERS", 22),))


def test_the_end_is_the_first_sequence_that_is_not_read_and_without_data_the_same_offset() -> None:
    seven, ten = (starting_offsets(ORDERS, (("ORDERS", n),)) for n in (7, 10))
    assert ranges(seven, ten) == [ReadRange("ORDERS", "a", 6, 9)]
    assert ranges(ten, seven) == ranges(ten, ten) == []
    start = starting_offsets(ORDERS, "latest")
    assert to_json(advance(start, ORDERS, None)) == to_json(start)


def test_offsets_survive_json() -> None:
    offsets = {"B": StreamPosition(1, "x"), "A": StreamPosition(18, "y", 3, time=7)}
    text = json.dumps(to_json(offsets))
    assert text == '{"A": {"next": 18, "identity": "y", "from": 3, "time": 7}, "B": {"next": 1, "identity": "x"}}'
    assert from_json(json.loads(text)) == offsets


@each("value", [{"A": 1}, {"A": {"next": 1}}, {"A": {"next": "one", "identity": "x"}}])
def test_offsets_of_another_format_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="does not hold offsets of mamasub"):
        from_json(value)  # type: ignore[arg-type]


def test_first_batch_that_is_run_again_reads_from_where_it_began_although_latest_has_moved() -> None:
    """Spark does not keep the initial offset; asked again after a restart, ``latest`` is somewhere else."""
    began = starting_offsets(ORDERS, "latest")
    end = advance(began, {"ORDERS": Bounds(5, 30, "a")}, None)
    again = starting_offsets({"ORDERS": Bounds(5, 50, "a")}, "latest")
    for start in (began, again, {"ORDERS": StreamPosition(31, "a")}):
        assert ranges(start, end) == [ReadRange("ORDERS", "a", 20, 30)]


def test_a_stream_without_news_has_no_part_in_a_batch() -> None:
    both = {**ORDERS, "TRADES": Bounds(1, 9, "t")}
    first = advance(starting_offsets(both, "earliest"), both, None)
    second = advance(first, {**both, "TRADES": Bounds(1, 12, "t")}, None)
    assert ranges(from_json(to_json(first)), from_json(to_json(second))) == [ReadRange("TRADES", "t", 9, 12)]


# --- losses ----------------------------------------------------------------------------------------------------


@each(
    ("position", "why", "left"),
    [
        (StreamPosition(2, "a", 1), "3 sequences 2 to 4: removed before they were read", 16),
        (StreamPosition(15, "old", 2), "it was deleted and made again", 16),
        # as after a power failure, or when it was restored from an older copy
        (StreamPosition(31, "a", 2), "its last sequence is 20, but the query has read up to 30", 0),
    ],
)
def test_what_is_lost_is_told_and_what_is_left_is_read(position: StreamPosition, why: str, left: int) -> None:
    before = {"ORDERS": position}
    now, (loss,) = reconciled(before, ORDERS)
    assert why in str(loss)
    assert at(now) == {"ORDERS": 21 - left}
    assert ranges(before, now) == []
    assert ranges(before, advance(now, ORDERS, None)) == [ReadRange("ORDERS", "a", 20 - left, 20)][: bool(left)]


def test_stream_whose_sequences_went_back_is_a_loss_and_read_from_what_came_after() -> None:
    for position, state, why in (
        (15, Continuity.REWRITTEN, "went back and were given again"),
        (31, Continuity.SHORTER, "its last sequence is 20"),
    ):
        now, losses = reconcile({"ORDERS": StreamPosition(position, "a", 2, time=7)}, ORDERS, {"ORDERS": (state, 12)})
        assert why in losses[0].why
        assert now == {"ORDERS": StreamPosition(12, "a", 12)}


def test_stream_that_is_gone_keeps_its_place() -> None:
    now, losses = reconciled({"ORDERS": StreamPosition(15, "a", 2)}, {})
    assert now == {"ORDERS": StreamPosition(15, "a", 2)}
    assert "it is gone; sequence 15 was to be read next" in losses[0].why
    assert advance(now, {}, None) == now


def test_stream_that_appears_is_read_from_its_beginning() -> None:
    start = advance(starting_offsets(ORDERS, "latest"), ORDERS, None)
    now, losses = reconciled(start, {**ORDERS, "NEW": Bounds(3, 8, "n")})
    assert losses == []
    end = advance(now, {**ORDERS, "NEW": Bounds(3, 8, "n")}, None)
    assert ranges(start, end) == [ReadRange("NEW", "n", 2, 8)]


def test_error_names_stream_sequences_and_both_ways_out() -> None:
    text = str(data_lost([Loss("ORDERS", ((2, 4), (9, 9)), "removed before they were read")]))
    for part in ("'ORDERS'", "4 sequences 2 to 4, 9", "failOnDataLoss=false", "startingOffsets"):
        assert part in text
    assert "and 3 ranges more" in str(Loss("S", tuple((i, i) for i in range(1, 17, 2)), "gone"))


# --- fair shares and tasks -------------------------------------------------------------------------------------

backlogs = st.dictionaries(st.text("ABCD", min_size=1, max_size=3), st.integers(0, 10_000), max_size=6)


@given(backlogs, st.integers(1, 20_000))
def test_shares_are_fair_and_use_the_whole_limit(backlog: dict[str, int], limit: int) -> None:
    taken = share_evenly(backlog, limit, {stream: StreamPosition(1, "x") for stream in backlog})
    assert sum(taken.values()) == min(limit, sum(backlog.values()))
    assert all(taken[s] <= n for s, n in backlog.items())
    cut = [taken[s] for s, n in backlog.items() if taken[s] < n]
    if cut:  # whoever got less than it wanted got as much as anybody, but for the remainder of the division
        assert min(cut) >= max(taken.values()) - 1


def test_each_stream_gets_its_turn_where_a_limit_is_below_their_number() -> None:
    position = starting_offsets({stream: Bounds(1, 0, "x") for stream in "ABC"}, "earliest")
    for now in range(1, 13):  # one record more of A and of B each time
        bounds = {stream: Bounds(1, last, "x") for stream, last in {"A": now, "B": now, "C": 500}.items()}
        end = advance(position, bounds, 2)
        assert sum(len(r) for r in ranges(position, end)) == 2
        position = end
    assert min(at(position).values()) > 5


lengths = st.lists(st.integers(0, 5_000), min_size=1, max_size=5)


@given(lengths, st.integers(1, 64))
def test_tasks_cover_every_sequence_once_and_in_order(lengths: list[int], n: int) -> None:
    whole = [ReadRange(f"S{i}", "x", 7, 7 + length) for i, length in enumerate(lengths)]
    tasks = split_ranges(whole, n)
    for r in whole:
        mine = [t for t in tasks if t.stream == r.stream]
        assert [s for t in mine for s in range(t.after + 1, t.up_to + 1)] == list(range(r.after + 1, r.up_to + 1))
    assert all(len(t) > 0 for t in tasks)
    assert len(tasks) >= min(n, sum(lengths))
    assert tasks == split_ranges(whole, n)
    few = split_ranges(whole, n, {"S0": 2, "S1": None})
    assert sum(t.stream == "S0" for t in few) == min(2, sum(t.stream == "S0" for t in tasks))


@each(
    ("total", "wanted", "cores", "tasks"),
    [
        (0, None, 4, 1),
        (MIN_TASK_ROWS - 1, None, 4, 1),
        (MIN_TASK_ROWS * 3, None, 8, 3),
        (MIN_TASK_ROWS * 100, None, 4, 4),
        (MAX_TASK_ROWS * 40, None, 4, 40),
        (10, 7, 2, 7),
    ],
)
def test_tasks_are_one_a_core_unless_they_get_too_small_or_too_large(
    total: int, wanted: int | None, cores: int, tasks: int
) -> None:
    assert task_count(total, wanted, cores) == tasks


# --- what a batch reads where a stream was made anew, where rows are counted, and where a query shall end -------------

OLD, NEW = "made yesterday", "made today"


def test_nothing_is_read_between_positions_in_two_streams_of_one_name() -> None:
    assert ranges({"S": StreamPosition(5, OLD)}, {"S": StreamPosition(9, OLD)}) == [ReadRange("S", OLD, 4, 8)]
    assert ranges({"S": StreamPosition(5, OLD)}, {"S": StreamPosition(9, NEW)}) == []
    assert ranges({"S": StreamPosition(50, OLD)}, {"S": StreamPosition(9, NEW, 3)}) == [ReadRange("S", NEW, 2, 8)]


@each(("each", "rows", "n"), [({"S": 10.0}, 100, 10), ({"S": 10.0}, 4, 1), ({}, 100, 100), ({"S": 2.5}, 100, 40)])
def test_a_limit_of_rows_is_one_of_as_many_records_as_have_them(each: dict[str, float], rows: int, n: int) -> None:
    end = advance({"S": StreamPosition(1, OLD)}, {"S": Bounds(1, 1_000, OLD)}, None, rows, each)
    assert end["S"].next == 1 + n
    assert end["S"].rows == round(n * each.get("S", 1.0))


def test_a_query_that_takes_what_there_is_ends_where_the_stream_ended_when_it_began(log: FilledLog) -> None:
    log.put(5)
    stream = log.source().streamReader(SCHEMA)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    log.put(3)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end[log.name]["next"] == 6
    log.put(1)
    assert stream.latestOffset(end, ReadAllAvailable()) == end


def test_it_reads_the_rest_of_a_stream_that_no_topic_leads_to_any_more(
    log: FilledLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.put(2)
    stream = log.source().streamReader(SCHEMA)
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    log.put(3)
    monkeypatch.setattr(MemoryLogs, "names", lambda *_: [])
    later = log.source().streamReader(SCHEMA)
    later.prepareForTriggerAvailableNow()
    end = later.latestOffset(start, ReadAllAvailable())
    assert end[log.name]["next"] == 6
    log.put(1)
    assert later.latestOffset(end, ReadAllAvailable()) == end
