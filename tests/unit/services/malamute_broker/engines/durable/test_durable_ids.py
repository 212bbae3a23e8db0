"""Ids that the durable engine remembers, and for how long."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from mama_spark.malamute.protocol.extensions import AckRun, StoreOutcome
from mama_spark.malamute.protocol.log_query import LogQuery, Op, numbers, parse_numbers
from mama_spark.testing.stored_engine_suite import numbered

from tests.support.malamute.durable_engine import SECOND, Make


def test_ids_are_known_after_a_restart_also_those_of_removed_messages(engines: Make) -> None:
    one = engines(max_messages=2)
    one.publish(*numbered(5), ids=True)
    one.engine.close()
    two = engines(max_messages=2)
    two.publish(b"6", ids=True)
    two.engine.close()
    three = engines(max_messages=2)
    assert three.publish(*numbered(7), ids=True) == (
        AckRun(StoreOutcome.DUPLICATE, 6, 1),
        AckRun(StoreOutcome.STORED, 1, 7),
    )


def test_an_id_counts_for_the_window_and_no_longer(engines: Make) -> None:
    one = engines(dedup_window=60, max_messages=1)
    one.publish(b"x", ids=True)
    one.now += 59 * SECOND
    assert one.publish(b"x", b"z", ids=True)[0].outcome is StoreOutcome.DUPLICATE
    one.now += 2 * SECOND
    assert one.publish(b"x", ids=True) == (AckRun(StoreOutcome.STORED, 1, 3),)
    one.now += 61 * SECOND
    one.publish(b"later")
    with closing(sqlite3.connect(one.engine.store.path)) as db:
        assert db.execute("SELECT count(*) FROM ids").fetchone() == (0,), "the store forgets them too"


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_an_id_counts_for_the_window_although_the_clock_is_set(engines: Make, jump: int) -> None:
    one = engines(dedup_window=60, max_messages=1)
    one.publish(b"x", ids=True)
    one.set += jump * SECOND
    one.now += 59 * SECOND
    assert one.publish(b"x", b"z", ids=True)[0].outcome is StoreOutcome.DUPLICATE
    one.now += 2 * SECOND
    assert one.publish(b"x", ids=True) == (AckRun(StoreOutcome.STORED, 1, 3),)


def test_an_id_of_a_clock_that_was_ahead_counts_for_the_window_and_no_longer(engines: Make) -> None:
    one = engines(dedup_window=60)
    one.publish(b"x", ids=True)
    one.engine.close()
    two = engines(dedup_window=60, now=one.now - 3600 * SECOND)
    assert two.publish(b"x", ids=True)[0].outcome is StoreOutcome.DUPLICATE
    two.now += 61 * SECOND
    assert two.publish(b"x", ids=True)[0].outcome is StoreOutcome.STORED


def test_no_more_ids_are_remembered_than_allowed(engines: Make) -> None:
    one = engines(dedup_ids=3)
    one.publish(*numbered(5), ids=True)
    assert [run.outcome for run in one.publish(b"5", b"1", ids=True)] == [StoreOutcome.DUPLICATE, StoreOutcome.STORED]
    assert len(one.engine._ids) <= 4


def test_a_window_of_nothing_switches_deduplication_off(engines: Make) -> None:
    one = engines(dedup_window=0)
    assert one.publish(b"x", b"x", ids=True) == (AckRun(StoreOutcome.STORED, 2, 1),)


def test_an_id_is_surely_known_for_less_than_the_window_where_there_are_too_many(engines: Make) -> None:
    one = engines(dedup_window=60, dedup_ids=100)

    def certain() -> float:
        (answer, _) = one.engine.ask(LogQuery(Op.DEDUP, 1, b"st"))
        return parse_numbers(answer.body, 1)[0][0] / SECOND

    assert certain() == 60
    for _ in range(15):
        one.publish(*(b"%d.%d" % (one.now, n) for n in range(10)), ids=True)
        one.now += SECOND
    assert 9 < certain() < 12, "each second ten, of which 100 are remembered"
    one.now += 100 * SECOND
    assert certain() == 60
    one.engine.close()
    assert engines(dedup_window=60, dedup_ids=0).engine.ask(LogQuery(Op.DEDUP, 1))[0].body == numbers(0)
