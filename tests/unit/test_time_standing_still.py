"""A process that stood still has not waited: answers that came meanwhile are taken before anything times out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.contracts.bridge import PollResult
from mama_spark.contracts.message import MessageBatch
from mama_spark.mama import Publisher, Transport
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.options.window_config import WindowConfig
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.managed.managed_publisher import ManagedPublisher
from mama_spark.publishing.window.flight import FlightState

from tests.support.mama.mama_harness import CallbackRecorder, a_message
from tests.support.publisher_harness import LONG, ack_of

WAIT = 1_000.0  #: seconds for which answers are waited for


class Standing(MemoryBridge):
    """The poll that follows the first send takes far longer than answers are waited for, and does not bring any yet."""

    def __init__(self, name: str, ahead: list[float]) -> None:
        super().__init__(name)
        self._ahead, self._sent = ahead, False

    def send(self, batch: MessageBatch, first_token: int) -> int:
        self._sent = True
        return super().send(batch, first_token)

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        if self._sent and not self._ahead[0]:
            self._ahead[0] = 10 * WAIT
            return PollResult()
        return super().poll(timeout, want)


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standing]:
    ahead, clock = [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + ahead[0])
    name = uuid4().hex
    yield Standing(name, ahead)
    assert ahead[0], "it stood still"
    MemoryBroker.forget(name)


def test_the_batch_face_takes_the_answers_first(bridge: Standing) -> None:
    bridge.open()
    publisher = BatchPublisher(bridge, WindowConfig(wait_timeout=WAIT), on_finished=lambda block: None)
    publisher.start()
    block = publisher.put(MessageBatch.of(["t"] * 3, [b"1", b"2", b"3"]))
    publisher.drain()
    assert (block.state == FlightState.ACKED).all()


def test_the_managed_publisher_takes_the_answers_first(bridge: Standing) -> None:
    with ManagedPublisher(bridge, wait_timeout=WAIT) as publisher:
        assert ack_of(publisher.publish_async("t", b"x")).result(LONG).sequence == 1


def test_a_transport_takes_the_answers_first(bridge: Standing) -> None:
    told = CallbackRecorder()
    with Transport.create("pub", bridge, answer_timeout=WAIT, destroy_timeout=100 * WAIT) as transport:
        publisher = Publisher.create_with_callbacks(transport, None, "x", "t", None, told.callbacks())
        publisher.send(a_message())
        publisher.destroy()
    assert told.counters == (1, 0, 1, 1)
