"""One bridge, many streams of our own broker: each message to its own, each answer from its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mama_spark.contracts.bridge import EventKind
from mama_spark.contracts.errors import ConfigError, NotReady, Rejected
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.bridge import MalamuteBridge, MalamuteSettings
from mama_spark.malamute.bridge.pool import MAX_PENDING_WRITES, POOL
from mama_spark.malamute.broker.broker.broker import Broker, EngineChoice
from mama_spark.malamute.broker.engines.durable.store_reader import StoreReader, store_path
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.testing.bridge_suite import TIMEOUT, publish

from tests.support.malamute import malamute_clients
from tests.support.tiers import EXPLORE


def start(folder: Path, bind: str = "", **machine: Any) -> Broker:
    """Streams ``d..`` are durable, ``x..`` cannot be, others are in memory."""
    choices = (
        EngineChoice(b"^d", "durable", {"folder": str(folder)}),
        EngineChoice(b"^x", "durable", {"folder": "/proc/nowhere"}),
    )
    return malamute_clients.start(bind, choices, timeout=60.0, **machine)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = start(tmp_path)
    yield broker
    POOL.clear()
    broker.stop()


def bridge_of(broker: Broker, **values: Any) -> MalamuteBridge:
    bridge = MalamuteBridge(MalamuteSettings(ConnectionSettings((broker.endpoint,)), **values))
    bridge.open()
    return bridge


def batch(streams: list[str], ids: bool = False, first: int = 0) -> MessageBatch:
    numbers = range(first, first + len(streams))
    return MessageBatch.of(
        ["t"] * len(streams), [b"%d" % i for i in numbers], None, [f"i{i}" for i in numbers] if ids else None, streams
    )


def stored(folder: Path, stream: str) -> dict[int, bytes]:
    """The messages of a store by sequence; a broker may have it open."""
    with closing(StoreReader(store_path(folder, stream.encode()))) as store:
        return {row[0]: row[4] for row in store.read(0, 1 << 40, 1 << 20, 1 << 30)}


def test_ids_count_for_one_stream(broker: Broker) -> None:
    bridge = bridge_of(broker)
    answers = publish(bridge, MessageBatch.of(["t"] * 3, [b"x"] * 3, None, ["same"] * 3, ["d1", "d2", "d1"]))
    bridge.close()
    assert [answers.duplicate[t] for t in range(3)] == [False, False, True]


def test_the_stream_of_the_settings_takes_what_names_none(broker: Broker, tmp_path: Path) -> None:
    bridge = bridge_of(broker, stream="d0")
    assert len(publish(bridge, batch(["d1", "d1"]))) == 2
    assert len(publish(bridge, MessageBatch.of(["t"], [b"dead"]), 2)) == 1
    bridge.close()
    assert stored(tmp_path, "d0") == {1: b"dead"}


def test_dead_letters_need_a_stream_of_their_own(broker: Broker) -> None:
    with pytest.raises(ConfigError, match="dead letters need a stream for deadLetterTopic: give the option stream"):
        bridge_of(broker, dead_letters=True)


def test_a_stream_that_the_broker_refuses_costs_its_own_messages_only(tmp_path: Path) -> None:
    broker = start(tmp_path, streams=3)
    bridge = bridge_of(broker)
    names = ["d1", "d2", "d3", "d4", "d1", "d4", "d5"]
    answers = publish(bridge, batch(names))
    again = publish(bridge, batch(names, first=7), 7)
    bridge.close()
    POOL.clear()
    broker.stop()
    assert sorted(answers.sequence) == [0, 1, 2, 4]
    assert sorted(again.sequence) == [7, 8, 9, 11]
    assert {token: type(e) for token, e in answers.error.items()} == {3: Rejected, 5: Rejected, 6: Rejected}
    assert "stream 'd4': StreamWrite was refused with 300: too many streams" in str(answers.error[3])
    assert list(stored(tmp_path, "d1").values()) == [b"0", b"4", b"7", b"11"]


def test_a_stream_whose_engine_does_not_start_is_asked_for_again(broker: Broker, tmp_path: Path) -> None:
    bridge = bridge_of(broker)
    for first in (0, 2):
        answers = publish(bridge, batch(["x1", "d1"], first=first), first)
        assert sorted(answers.sequence) == [first + 1]
        assert isinstance(answers.error[first], NotReady), "not stored, and may be later"
        assert answers.error[first].retryable
        assert not answers.error[first].may_have_landed
    bridge.close()
    assert list(stored(tmp_path, "d1").values()) == [b"1", b"3"]


def test_what_may_have_landed_in_no_known_stream_is_reported_if_that_is_wanted(broker: Broker) -> None:
    """``onUncertain=report``: ids make a resend safe in stored streams alone."""
    for resend in (True, False):
        bridge = bridge_of(broker, resend=resend)
        fragile = bridge.prepare(batch(["d1", "memory"])).non_retriable
        bridge.close()
        assert (fragile is None) if resend else np.asarray(fragile).all()


def test_a_restarted_broker_is_asked_for_every_stream_again(tmp_path: Path) -> None:
    """What it refuses now does not go to the stream that was written to last."""
    broker = start(tmp_path)
    bridge = bridge_of(broker)
    assert len(publish(bridge, batch(["d1", "d2", "d3"])).sequence) == 3
    broker.stop()
    told(bridge, EventKind.DISCONNECTED)
    assert bridge.send(batch(["d1"]), 3) == 0
    broker = start(tmp_path, broker.endpoint, streams=2)
    told(bridge, EventKind.RECONNECTED)
    answers = publish(bridge, batch(["d3", "d2", "d1", "d3"], first=3), 3)
    bridge.close()
    POOL.clear()
    broker.stop()
    assert {token: type(e) for token, e in answers.error.items()} == {5: Rejected}
    for name, expected in {"d1": [b"0"], "d2": [b"1", b"4"], "d3": [b"2", b"3", b"6"]}.items():
        assert list(stored(tmp_path, name).values()) == expected


def told(bridge: MalamuteBridge, kind: EventKind) -> None:
    until = time.monotonic() + TIMEOUT
    while kind not in [event.kind for event in bridge.poll(0.1).events]:
        assert time.monotonic() < until


def test_more_streams_over_one_connection_than_are_asked_for_at_a_time(broker: Broker) -> None:
    bridge = bridge_of(broker)
    streams = 1000 if EXPLORE else 3 * MAX_PENDING_WRITES
    names = [f"m{i % streams}" for i in range(5 * streams)]
    answers = publish(bridge, batch(names))
    bridge.close()
    assert (len(answers.sequence), answers.error) == (len(names), {})
