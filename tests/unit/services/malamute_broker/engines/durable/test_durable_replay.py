"""The durable engine's replay: order, small pieces, turns, and credit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from mama_spark.services.malamute_broker.engines.durable import engine as durable
from mama_spark.services.malamute_broker.engines.durable.engine import DurableEngine
from mama_spark.testing.stored_engine_suite import StoredEngineHarness, mix_live_and_replay, numbered

from tests.support.malamute.durable_engine import SECOND, Make
from tests.support.tiers import examples


def test_times_never_fall_although_the_clock_does(engines: Make) -> None:
    one = engines()
    one.publish(b"a")
    one.set -= 100 * SECOND
    one.publish(b"b")
    one.engine.close()
    two = engines(now=one.now + one.set)
    two.publish(b"c")
    two.read()
    two.engine.compile("x", b"", 0)
    two.engine.flush()
    times = [d.extension.time for d in two.got if d.extension is not None]
    assert times == [one.now] * 3


def test_a_large_store_is_replayed_in_small_pieces_while_commands_go_on(
    engines: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded, and messages published meanwhile follow in order."""
    monkeypatch.setattr(durable, "REPLAY_OCTETS", 20_000)
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
        found += one.taken()
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
    counts = [len(one.taken(who)) for who in ("a", "b", "c")]
    assert min(counts) >= 60, counts


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_replay_and_live_delivery_have_no_gaps_or_duplicates(tmp_path: Path, seed: int) -> None:
    """Any mix of publishing, subscribing with and without position, credit and idleness."""
    one = StoredEngineHarness(DurableEngine(b"st", {"folder": str(tmp_path / str(seed))}))
    try:
        mix_live_and_replay(one, seed)
    finally:
        one.engine.close()


def test_a_slow_reader_costs_no_memory(engines: Make) -> None:
    one = engines()
    one.engine.compile("r", b"")
    one.engine.credit("r", 1)
    for _ in range(20):
        one.publish(*numbered(100), content=b"x" * 1000)
    assert one.taken() == [1]
    engine = one.engine
    assert (len(engine._accepted), len(engine._acks), len(engine._behind)) == (0, 0, 1)
    assert "1 behind" in repr(engine)
