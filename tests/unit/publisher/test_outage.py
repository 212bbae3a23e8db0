"""A publisher that is to survive an outage fails what cannot be sent, and goes on when the middleware is back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.bridges.memory import MemoryBridge, MemoryBroker
from mama_spark.message import MessageBatch
from mama_spark.options.window import RetryPolicy, WindowConfig
from mama_spark.publisher.batch_publisher import BatchPublisher
from mama_spark.sending.flight import FlightState
from mama_spark.sending.flight_batch import FlightBatch

POLICY = WindowConfig(64, 0, retry=RetryPolicy(None, (0.01,), 0.2))


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    name = uuid4().hex
    yield MemoryBroker.get(name)
    MemoryBroker.forget(name)


def batch(n: int, start: int) -> MessageBatch:
    return MessageBatch.of(["t.x"] * n, [b"%d" % i for i in range(start, start + n)])


def test_what_cannot_be_sent_fails_and_what_comes_later_is_published(broker: MemoryBroker) -> None:
    bridge = MemoryBridge(broker.name)
    bridge.open()
    failed = threading.Semaphore(0)

    def finished(_: FlightBatch) -> None:
        failed.release()

    publisher = BatchPublisher(bridge, POLICY, on_finished=finished, outage_timeout=0.3, survive_outage=True)
    publisher.start()
    broker.up = False
    lost = [publisher.put(batch(500, i * 500)) for i in range(4)]
    for _ in lost:
        assert failed.acquire(timeout=60)
    assert not publisher.counters.acked
    for flights in lost:
        assert (flights.state == FlightState.COMPLETED_EXCEPTIONALLY).all()
        error = flights.errors[0]
        assert error.retryable
        assert not error.may_have_landed
        assert "nothing was acknowledged" in error.info
    broker.up = True
    late = publisher.put(batch(500, 9000))
    publisher.drain()
    assert (late.state == FlightState.ACKED).all()
    assert len(broker.messages()) == 500
    bridge.close()
