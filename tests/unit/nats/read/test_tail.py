"""A consumer that cannot be made now, and one that cannot be made at all."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.jetstream.api import ApiError
from mama_spark.nats.jetstream.consumers import TOO_MANY
from mama_spark.nats.read import tail
from mama_spark.nats.read.tail import NatsTail


def test_a_stream_that_has_all_its_consumers_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tail, "RECREATE", Backoff(0.0, 0.0))
    errors = [ApiError("maximum consumers limit reached", TOO_MANY)] * 3 + [ApiError("forbidden", 1)]

    def submit(_: object) -> Future[Any]:
        made: Future[Any] = Future()
        made.set_exception(errors.pop(0))
        return made

    consumer = NatsTail(SimpleNamespace(), "S", "created", 0, ["mlp.s.>"], 30.0, "the live consumer")
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
