"""A stream that is deleted while publishers remember it: made again where that was asked for, and never in silence."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.publishing import outage_reporter
from mama_spark.publishing.resilient_publisher import ResilientPublisher
from mama_spark.testing.bridge_suite import publish
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_servers import Admin


def batch(*numbers: int) -> MessageBatch:
    return MessageBatch.of(["s.a"] * len(numbers), [b"%d" % n for n in numbers], ids=[f"id-{n}" for n in numbers])


def stored(admin: Admin) -> list[int]:
    names = admin.api("STREAM.NAMES").get("streams") or []
    return [int(m.payload) for m in admin.messages("S")] if "S" in names else []


def publish_one(server: NatsServer, n: int, **more: Any) -> None:
    bridge = NatsBridge(NatsSettings((server.url,), create_stream=True, **more))
    bridge.open()
    try:
        bridge.prepare(batch(n))
        assert not publish(bridge, batch(n)).error
    finally:
        bridge.close()


@pytest.mark.parametrize("named", [{"stream": "S"}, {}], ids=["named", "by topic"])
def test_the_next_publisher_on_the_connection_makes_it_again(
    nats_server: NatsServer, admin: Admin, named: dict[str, str]
) -> None:
    for n in (1, 2):
        publish_one(nats_server, n, **named)
        assert stored(admin) == [n]
        admin.api("STREAM.DELETE.S")


@pytest.mark.parametrize("mode", ["message", "batch"])
def test_a_publisher_that_never_gives_up_says_what_it_waits_for(
    nats_server: NatsServer, admin: Admin, mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {"ack_mode": mode, "ordered": mode == "batch"}
    settings = NatsSettings((nats_server.url,), stream="S", create_stream=True, **options)
    writer = ResilientPublisher(lambda: NatsBridge(settings), wait_timeout=1.0)

    def told() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith("the record log takes")]

    try:
        with caplog.at_level(logging.WARNING, "mama_spark"):
            assert writer.write(batch(1))
            assert writer.drain(60)
            assert not told()
            monkeypatch.setattr(outage_reporter, "WARNING_INTERVAL", 0.1)
            admin.api("STREAM.DELETE.S")
            assert writer.write(batch(2, 3))
            eventually(lambda: len(told()) >= 3, "it warns more than once", 60)
            assert all("2 messages wait" in text for text in told())
            assert any("no stream, or no leader" in text for text in told())
            admin.create_stream("S", ["s.>"], allow_batched=True)
            assert writer.drain(60)
            eventually(lambda: told()[-1] == "the record log takes messages again", "it says that it is over", 60)
    finally:
        writer.close()
    order = list if mode == "batch" else sorted  # single messages may be stored while the one before them is refused
    assert order(stored(admin)) == [2, 3]
    assert not any("gives up" in r.getMessage() for r in caplog.records)
