"""A consumer that cannot be made now, and one that cannot be made at all."""

from __future__ import annotations

import logging

import pytest
from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.jetstream.answers import TOO_MANY_CONSUMERS, ApiError, ConsumerInfo, StreamInfo
from mama_spark.nats.read import consumer_course, tail
from mama_spark.nats.read.consumer_course import SubscriptionBroken
from mama_spark.nats.read.log_connection import LogConnection
from mama_spark.nats.read.pull_subscription import PullSubscription
from mama_spark.nats.read.tail import SILENCE, NatsTail
from mama_spark.nats.settings import NatsSettings

STREAM = StreamInfo.of({"config": {"name": "S"}, "created": "then"})


def test_a_lost_delivery_is_noticed_however_many_consumers_an_idle_log_has_lost() -> None:
    follower = NatsTail(LogConnection(NatsSettings(), 1.0), STREAM, 0, ["mlp.s.>"], "the live consumer")
    course = follower._course
    course.failed, course.heard = 12, 0.0
    sent = ConsumerInfo.of({"name": "c", "num_waiting": 1, "delivered": {"consumer_seq": 1}})
    course.check(sent, 2 * SILENCE)
    with pytest.raises(SubscriptionBroken, match="1 were sent, 0 came"):
        course.check(sent, 2 * SILENCE + 0.1)


def test_a_subscription_that_cannot_begin_leaves_nothing_behind() -> None:
    connection = SocketConnection(NatsSettings())
    with pytest.raises(SubscriptionBroken, match="not connected"):
        PullSubscription(connection, "S", "c", 0, None).start()
    protocol = connection.driver.protocol
    assert not any((protocol.deliveries, protocol._subscriptions, connection._callbacks, connection.answers))


def test_a_stream_that_has_all_its_consumers_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_course, "BACKOFF", Backoff(0.0, 0.0))
    errors = [ApiError("maximum consumers limit reached", TOO_MANY_CONSUMERS)] * 3 + [ApiError("forbidden", 1)]

    class Creation:
        def __init__(self, *_: object) -> None: ...
        def look(self) -> None:
            raise errors.pop(0)

        def close(self) -> None: ...

    logs = LogConnection(NatsSettings(), 1.0)
    monkeypatch.setattr(logs, "connection", lambda: SocketConnection(NatsSettings()))
    monkeypatch.setattr(SocketConnection, "drive", lambda *_: None)
    monkeypatch.setattr(tail, "_Creation", Creation)
    consumer = NatsTail(logs, STREAM, 0, ["mlp.s.>"], "the live consumer")
    with caplog.at_level(logging.WARNING):
        for _ in range(6):  # one call begins, the next looks
            assert consumer.poll() is None
        consumer.poll()
        with pytest.raises(ConfigError, match="cannot be read: forbidden"):
            consumer.poll()
    assert [r.getMessage() for r in caplog.records] == [
        "the live consumer of stream 'S' waits for a consumer: maximum consumers limit reached"
    ]
