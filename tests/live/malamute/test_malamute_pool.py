"""Connections to a Malamute broker: leased, kept warm, given up."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.bridge import MalamuteBridge, MalamuteSettings
from mama_spark.malamute.bridge.pool import KNOWN_FOR, POOL
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.testing.bridge_suite import publish
from mama_spark.testing.waiting import eventually

from tests.support.malamute.plain_broker import CLOSE, OPEN, WRITE, PlainBroker


@pytest.fixture
def plain() -> Iterator[PlainBroker]:
    with PlainBroker() as broker:
        yield broker
        POOL.clear()


def publish_one(plain: PlainBroker, stream: str = "st", **options: Any) -> None:
    bridge = MalamuteBridge(MalamuteSettings(ConnectionSettings((plain.url,), **options), stream))
    bridge.open()
    assert not publish(bridge, MessageBatch.of(["t"], [b"x"])).error
    bridge.close()


def test_micro_batches_share_a_connection_and_what_it_knows_of_the_stream(plain: PlainBroker) -> None:
    for _ in range(5):
        publish_one(plain)
    assert (len(plain.commands(OPEN)), len(plain.commands(WRITE))) == (1, 1)
    publish_one(plain, "other")
    publish_one(plain, "other")
    assert (len(plain.commands(OPEN)), len(plain.commands(WRITE))) == (1, 2)
    assert [stream for stream, _, _ in plain.sent] == ["st"] * 5 + ["other"] * 2


def test_two_at_a_time_and_other_options_have_connections_of_their_own(plain: PlainBroker) -> None:
    first = MalamuteBridge(MalamuteSettings(ConnectionSettings((plain.url,)), "st"))
    first.open()
    publish_one(plain)
    first.close()
    assert len(plain.commands(OPEN)) == 2
    publish_one(plain, ping=0.9)
    assert len(plain.commands(OPEN)) == 3


def test_what_was_told_of_a_stream_is_believed_for_a_minute(
    plain: PlainBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_one(plain)
    assert KNOWN_FOR == 60.0
    monkeypatch.setattr("mama_spark.malamute.bridge.pool.KNOWN_FOR", 0.0)
    publish_one(plain)
    assert (len(plain.commands(OPEN)), len(plain.commands(WRITE))) == (1, 2)


def test_a_connection_that_is_not_what_it_was_is_not_given_out(plain: PlainBroker) -> None:
    publish_one(plain, ping=0.05)
    plain.forget()  # the next PING gets ERROR 500
    eventually(lambda: len(plain.commands(OPEN)) == 2, "the client has opened again")
    publish_one(plain, ping=0.05)
    assert len(plain.commands(OPEN)) == 3


def test_a_connection_with_answers_under_way_is_closed_not_kept(plain: PlainBroker) -> None:
    bridge = MalamuteBridge(MalamuteSettings(ConnectionSettings((plain.url,)), "st"))
    bridge.open()
    assert bridge.send(MessageBatch.of(["t"] * 10, [b"x"] * 10), 0) == 10
    bridge.close()
    assert len(plain.sent) == 10, "CLOSE stands behind them"
    assert len(plain.commands(CLOSE)) == 1


def test_a_forked_process_makes_its_own_connection(plain: PlainBroker) -> None:
    """Also where it closes a bridge that the parent has opened: with the thread of its connection."""
    publish_one(plain)
    opened = MalamuteBridge(MalamuteSettings(ConnectionSettings((plain.url,)), "st"))
    opened.open()

    def work() -> None:
        opened.close()
        publish_one(plain)

    fork = get_context("fork").Process(target=work)
    fork.start()
    fork.join(60)
    assert fork.exitcode == 0
    opened.close()
    publish_one(plain)
    assert len(plain.commands(OPEN)) == 2
    assert len(plain.sent) == 3
