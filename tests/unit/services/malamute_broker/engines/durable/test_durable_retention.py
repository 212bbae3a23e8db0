"""Limits of a durable stream: messages, octets, age."""

from __future__ import annotations

import pytest
from mama_spark.malamute.protocol.extensions import AckRun, StoreOutcome
from mama_spark.services.malamute_broker.engines.durable import store as durable_store
from mama_spark.testing.stored_engine_suite import numbered

from tests.support.malamute.durable_engine import SECOND, Make


def test_retention_by_count(engines: Make) -> None:
    one = engines(max_messages=10)
    for _ in range(3):
        one.publish(*numbered(7))
    assert one.read() == list(range(12, 22))


def test_retention_by_octets(engines: Make) -> None:
    one = engines(max_octets=1000)
    for _ in range(5):
        one.publish(*[b"s"] * 5, content=b"x" * 93)  # and the sender's 6
    assert one.read() == list(range(16, 26))
    one.publish(b"s", content=b"x" * 5000)
    assert one.read(client="later") == [26], "the newest stays, whatever its size"
    assert one.engine.store.octets == 5007


def test_retention_by_age_also_while_nothing_happens(engines: Make) -> None:
    one = engines(max_age=10)
    one.publish(*numbered(3))
    one.now += 8 * SECOND
    one.publish(*numbered(3))
    one.now += 4 * SECOND
    assert one.engine.idle() == 1.0
    assert one.read() == [4, 5, 6]
    one.now += 100 * SECOND
    one.drain()
    assert one.read(client="later") == [6], "the newest stays"


def test_a_new_limit_on_a_large_store_is_reached_in_steps(engines: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_store, "MAX_REMOVED", 50)
    one = engines()
    one.publish(*numbered(500))
    one.engine.close()
    two = engines(max_messages=10)
    two.publish(b"x")
    assert two.engine.store.first == 51
    two.drain()
    assert two.read() == list(range(492, 502))


def test_replay_from_a_removed_position_begins_with_what_is_there(engines: Make) -> None:
    one = engines(max_messages=3)
    one.publish(*numbered(10))
    assert one.read(after=2) == [8, 9, 10]


def test_numbers_go_on_after_everything_was_removed(engines: Make) -> None:
    one = engines()
    one.publish(*numbered(3))
    one.engine.store.trim(100)
    one.engine.close()
    two = engines()
    assert two.publish(b"x") == (AckRun(StoreOutcome.STORED, 1, 4),)
