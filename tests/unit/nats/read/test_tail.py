"""A consumer that cannot be made now, and one that cannot be made at all."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

import pytest
from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.jetstream.answers import TOO_MANY_CONSUMERS, ApiError, StreamInfo
from mama_spark.nats.read import consumer_course
from mama_spark.nats.read.log_connection import LogConnection
from mama_spark.nats.read.tail import NatsTail
from mama_spark.nats.settings import NatsSettings

STREAM = StreamInfo.of({"config": {"name": "S"}, "created": "then"})


def test_a_stream_that_has_all_its_consumers_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_course, "BACKOFF", Backoff(0.0, 0.0))
    errors = [ApiError("maximum consumers limit reached", TOO_MANY_CONSUMERS)] * 3 + [ApiError("forbidden", 1)]

    def submit(_: object) -> Future[Any]:
        made: Future[Any] = Future()
        made.set_exception(errors.pop(0))
        return made

    consumer = NatsTail(LogConnection(NatsSettings(), 1.0), STREAM, 0, ["mlp.s.>"], "the live consumer")
    monkeypatch.setattr(consumer, "_submit", submit)
    with caplog.at_level(logging.WARNING):
        for _ in range(6):  # one call submits, the next looks
            assert consumer.poll() is None
        consumer.poll()
        with pytest.raises(ConfigError, match="cannot be read: forbidden"):
            consumer.poll()
    assert [r.getMessage() for r in caplog.records] == [
        "the live consumer of stream 'S' waits for a consumer: maximum consumers limit reached"
    ]
