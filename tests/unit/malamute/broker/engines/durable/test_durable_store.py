"""The durable engine: ids, retention and replay."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from mama_spark.malamute.broker.engines import ack_tracker
from mama_spark.malamute.broker.engines.ack_tracker import MOST_RUNS, AckTracker, OutcomeRuns
from mama_spark.malamute.broker.engines.durable import engine as durable
from mama_spark.malamute.broker.engines.durable import store as durable_store
from mama_spark.malamute.protocol.extensions import AckRun, Extension, StoreOutcome, write

from tests.support.malamute.durable_engine import SECOND, Make
from tests.support.malamute.stored_engine_suite import numbered

# --- ids that the durable engine remembers, and for how long ----------------------------------------------------------


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


@pytest.mark.parametrize("jump", [0, -3600, 3600])
def test_an_id_counts_for_the_window_and_no_longer_although_the_clock_is_set(engines: Make, jump: int) -> None:
    one = engines(dedup_window="60s", max_messages=1)
    one.publish(b"x", ids=True)
    one.set += jump * SECOND
    one.now += 59 * SECOND
    assert one.publish(b"x", b"z", ids=True)[0].outcome is StoreOutcome.DUPLICATE
    one.now += 2 * SECOND
    assert one.publish(b"x", ids=True) == (AckRun(StoreOutcome.STORED, 1, 3),)
    if jump == 0:
        one.now += 61 * SECOND
        one.publish(b"later")
        with closing(sqlite3.connect(one.engine.store.path)) as db:
            assert db.execute("SELECT count(*) FROM ids").fetchone() == (0,), "the store forgets them too"


def test_an_id_of_a_clock_that_was_ahead_counts_for_the_window_and_no_longer(engines: Make) -> None:
    one = engines(dedup_window="60s")
    one.publish(b"x", ids=True)
    one.engine.close()
    two = engines(dedup_window="60s", now=one.now - 3600 * SECOND)
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


# --- limits of a durable stream: messages, bytes, age ----------------------------------------------------------------


def test_retention_by_count(engines: Make) -> None:
    one = engines(max_messages=10)
    for _ in range(3):
        one.publish(*numbered(7))
    assert one.replayed() == list(range(12, 22))


def test_retention_by_bytes(engines: Make) -> None:
    one = engines(max_bytes=1000)
    for _ in range(5):
        one.publish(*[b"s"] * 5, content=b"x" * 93)  # and the sender's 6
    assert one.replayed() == list(range(16, 26))
    one.publish(b"s", content=b"x" * 5000)
    assert one.replayed(client="later") == [26], "the newest stays, whatever its size"
    assert one.engine.store.stored_bytes == 5007


def test_retention_by_age_also_while_nothing_happens(engines: Make) -> None:
    one = engines(max_age="10s")
    one.publish(*numbered(3))
    one.now += 8 * SECOND
    one.publish(*numbered(3))
    one.now += 4 * SECOND
    assert one.engine.idle() == 1.0
    assert one.replayed() == [4, 5, 6]
    one.now += 100 * SECOND
    one.drain()
    assert one.replayed(client="later") == [6], "the newest stays"


def test_a_new_limit_on_a_large_store_is_reached_in_steps(engines: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_store, "MAX_REMOVED", 50)
    one = engines()
    one.publish(*numbered(500))
    one.engine.close()
    two = engines(max_messages=10)
    two.publish(b"x")
    assert two.engine.store.first == 51
    two.drain()
    assert two.replayed() == list(range(492, 502))


def test_numbers_go_on_after_everything_was_removed(engines: Make) -> None:
    one = engines()
    one.publish(*numbered(3))
    one.engine.store.trim(100)
    one.engine.close()
    two = engines()
    assert two.publish(b"x") == (AckRun(StoreOutcome.STORED, 1, 4),)


# --- the durable engine's replay: order, small pieces, turns, and credit ----------------------------------------------


def test_times_never_fall_although_the_clock_does(engines: Make) -> None:
    one = engines()
    one.publish(b"a")
    one.set -= 100 * SECOND
    one.publish(b"b")
    one.engine.close()
    two = engines(now=one.now + one.set)
    two.publish(b"c")
    two.replayed()
    two.engine.compile("x", b"", 0)
    two.engine.flush()
    times = [d.extension.time for d in two.got if d.extension is not None]
    assert times == [one.now] * 3


def test_a_large_store_is_replayed_in_small_pieces_while_commands_go_on(
    engines: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded, and messages published meanwhile follow in order."""
    monkeypatch.setattr(durable, "REPLAY_BYTES", 20_000)
    one = engines()
    for _ in range(10):
        one.publish(*numbered(100), content=b"x" * 1000)
    one.engine.compile("r", b"", 0)
    found: list[int] = []
    published = 1000
    while not found or found[-1] < published:
        before = len(found)
        if len(found) < 500:
            one.publish(b"new", content=b"x" * 1000)
            published += 1
        else:
            one.engine.idle()
        found += one.delivered()
        assert len(found) - before <= 21
    assert found == list(range(1, published + 1))


def test_readers_behind_take_turns(engines: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "REPLAY_ROWS", 100)
    monkeypatch.setattr(durable, "TURN_ROWS", 60)
    one = engines()
    one.publish(*numbered(1000))
    for who in ("a", "b", "c"):
        one.engine.compile(who, b"", 0)
    for _ in range(3):
        one.engine.flush()
    counts = [len(one.delivered(who)) for who in ("a", "b", "c")]
    assert min(counts) >= 60, counts


def test_a_slow_reader_costs_no_memory(engines: Make) -> None:
    one = engines()
    one.engine.compile("r", b"")
    one.engine.credit("r", 1)
    for _ in range(20):
        one.publish(*numbered(100), content=b"x" * 1000)
    assert one.delivered() == [1]
    engine = one.engine
    assert (len(engine._accepted), len(engine._acks), len(engine._behind)) == (0, 0, 1)


# --- outcomes of messages -----------------------------------------------------------------------------------------

STORED, DUPLICATE, REFUSED = StoreOutcome.STORED, StoreOutcome.DUPLICATE, StoreOutcome.REFUSED


# --- outcomes of messages ------------------------------------------------------------------------------------------


def test_a_failed_transaction_corrects_what_was_written_down_for_it_and_nothing_else() -> None:
    book = AckTracker()
    for sequence in (1, 2, 3):
        book.add("a", STORED, sequence)
    early = book.take("a")
    book.settle()
    for sequence in (4, 5):
        book.add("b", STORED, sequence)
    book.add("c", DUPLICATE, 3)
    book.add("c", DUPLICATE, 4)
    asked = book.take("b")
    book.refuse(4)
    assert early.acks() == (AckRun(STORED, 3, 1),)
    assert asked.acks() == (AckRun(STORED, 1, 4), AckRun(REFUSED, 1))
    book.refuse(3)
    assert asked.acks() == (AckRun(REFUSED, 1), AckRun(REFUSED, 1))
    assert book.take("c").acks() == (AckRun(DUPLICATE, 1, 3), AckRun(REFUSED, 1))


def test_an_answer_never_grows_beyond_its_field() -> None:
    """65,535 bytes; two publishers that alternate make a run of every message."""
    runs = OutcomeRuns()
    for sequence in range(1, 40_000, 2):
        runs.add(STORED, sequence)
    acks = runs.acks()
    assert len(acks) <= MOST_RUNS
    assert write(Extension(acks=acks))
    assert sum(run.count for run in acks) == 20_000
    assert {run.outcome for run in acks} == {STORED}
    assert acks[-1].last == 39_999, "what is not decided yet keeps its number"


def test_who_never_asks_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_tracker, "MOST_CLIENTS", 3)
    book = AckTracker()
    for client in range(10):
        book.add(client, STORED, client + 1)
    assert len(book) == 3
    assert book.take(9).acks() == (AckRun(STORED, 1, 10),)
    assert book.take(0).acks() == ()
