"""The bridge `malamute` through a broker that knows no extension, clause by clause: what it can do there, and what it
says that it cannot."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from mama_spark.contracts.bridge import Ack, EventKind
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.bridge import MalamuteBridge, MalamuteSettings
from mama_spark.malamute.bridge.pool import POOL
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.options import SinkOptions
from mama_spark.testing.bridge_suite import TIMEOUT, publish

from tests.support.malamute.plain_broker import OPEN, PING, SEND, WRITE, PlainBroker


@pytest.fixture
def plain() -> Iterator[PlainBroker]:
    with PlainBroker() as broker:
        yield broker
        POOL.clear()


def bridge_of(plain: PlainBroker, link: dict[str, Any] | None = None, **values: Any) -> MalamuteBridge:
    settings = ConnectionSettings((plain.url,), **(link or {}))
    bridge = MalamuteBridge(MalamuteSettings(settings, **{"stream": "st", **values}))
    bridge.open()
    return bridge


def batch(n: int, **columns: Any) -> MessageBatch:
    return MessageBatch.of([f"t.{i % 3}" for i in range(n)], [b"%d" % i for i in range(n)], **columns)


@pytest.mark.spec("ML-15")
def test_the_pong_behind_a_chunk_says_accepted_and_sends_have_no_byte_that_the_protocol_does_not_know(
    plain: PlainBroker,
) -> None:
    """Subject = topic, the value is the one content frame; one PING a chunk acknowledges it."""
    bridge = bridge_of(plain)
    able = bridge.capabilities
    answers = publish(bridge, batch(3000, ids=[f"{i}" for i in range(3000)]), first=7)
    bridge.close()
    assert (able.ack, able.sequence, able.dedup, able.headers) == (Ack.ACCEPTED, False, False, False)
    assert not answers.error
    assert sorted(answers.sequence) == list(range(7, 3007))
    assert set(answers.sequence.values()) == {-1}
    assert not any(answers.duplicate.values())
    assert 3 <= len(plain.commands(PING)) < 3000 / 10
    assert plain.commands(SEND) == [[b"\xaa\xa8\x07\x03t.%d" % (i % 3), b"%d" % i] for i in range(3000)]
    assert plain.commands(WRITE) == [[b"\xaa\xa8\x05\x02st"]]
    ((opening,),) = plain.commands(OPEN)
    assert opening.startswith(b"\xaa\xa8\x01\x08MALAMUTE\x00\x01\x00"), "the extension stands behind the last field"


def test_dedup_is_off_with_one_warning_a_connection(plain: PlainBroker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mama_spark"):
        for _ in range(3):
            bridge_of(plain).close()
        (said,) = [r.getMessage() for r in caplog.records]
        assert "this broker carries no ids, so dedup is off: a resend may be delivered twice" in said
        caplog.clear()
        POOL.clear()
        bridge_of(plain, dedup=False).close()
        assert not caplog.records


def test_dead_letters_need_headers_so_a_topic_for_them_is_refused_before_the_first_row(plain: PlainBroker) -> None:
    o = SinkOptions.parse({"url": plain.url, "stream": "s", "onError": "deadletter", "deadLetterTopic": "dead"})
    bridge = MalamuteBridge(MalamuteSettings.from_options(o))
    with pytest.raises(ConfigError, match="dead letters have headers, which this broker does not carry"):
        bridge.open()
    assert plain.commands(WRITE) == []


def test_a_broker_of_another_kind_in_the_middle_of_a_write_ends_it(plain: PlainBroker) -> None:
    """Headers and ids that were promised when the write began would be lost without a word."""
    ours = Broker(BrokerSettings("tcp://127.0.0.1:*"))
    ours.start()
    urls = (ours.endpoint.replace("tcp", "mlp"), plain.url)
    bridge = MalamuteBridge(MalamuteSettings(ConnectionSettings(urls), "st"))
    try:
        bridge.open()
        assert bridge.capabilities.headers
        publish(bridge, batch(1))
    finally:
        ours.stop()
    kinds: list[EventKind] = []
    until = time.monotonic() + TIMEOUT
    while EventKind.CLOSED not in kinds and time.monotonic() < until:
        events = bridge.poll(0.1).events
        kinds += [event.kind for event in events]
    assert "a broker of another kind answers" in events[-1].info
    assert bridge.send(batch(1), 1) == 0
    bridge.close()
