"""What is logged while nothing is acknowledged, and when that is over."""

from __future__ import annotations

from uuid import uuid4

import pytest
from mama_spark.bridges.memory import MemoryBridge, MemoryBroker
from mama_spark.message import MessageBatch
from mama_spark.options.window import WindowConfig
from mama_spark.publisher.batch_publisher import BatchPublisher

WAIT = 20.0
POLICY = WindowConfig(128, 64, wait_timeout=WAIT)


@pytest.mark.parametrize(
    ("answers_come", "end"),
    [
        (True, "messages are acknowledged again"),
        (False, "no message waits any more, and none was acknowledged: they failed, each with its reason"),
    ],
)
def test_the_end_of_an_outage_is_told_as_it_is(answers_come: bool, end: str, caplog: pytest.LogCaptureFixture) -> None:
    bridge = MemoryBridge(uuid4().hex)
    bridge.open()
    bridge.broker.then(["late", "late"])
    publisher = BatchPublisher(bridge, POLICY, on_finished=lambda flights: None, outage_timeout=10 * WAIT)
    publisher._loop.outage.notice = WAIT / 2
    publisher.put(MessageBatch.of(["t"] * 2, [b""] * 2))
    publisher._launch()
    for second in range(int(WAIT / 2) + 3):
        publisher._end_outage(float(second))
    assert "2 messages wait: no answer comes" in caplog.records[-1].getMessage()
    if answers_come:
        bridge.broker.release()
        publisher._loop.apply(bridge.poll(0))
    else:
        publisher.window.expire((publisher.window.wake_at() or 0.0) + 1.0)
    for second in range(2):
        publisher._end_outage(WAIT + second)
    assert caplog.records[-1].getMessage() == end
    MemoryBroker.forget(bridge.broker.name)
