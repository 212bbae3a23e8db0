"""What is logged while nothing is acknowledged, and when that is over."""

from __future__ import annotations

from uuid import uuid4

import numpy as np
import pytest
from mama_spark.bridge import Ack, Acks, PollResult
from mama_spark.bridges.memory import MemoryBridge, MemoryBroker
from mama_spark.message import MessageBatch
from mama_spark.options.window import WindowConfig
from mama_spark.publisher.batch_publisher import BatchPublisher

WAIT = 20.0
POLICY = WindowConfig(128, 64, wait_timeout=WAIT)


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ("acked", "messages are acknowledged again"),
        ("timed out", "no message waits any more, and none was acknowledged: 2 timed out, each with its reason"),
        ("published", "no message waits any more, and none was acknowledged: 2 published, for nobody wants them"),
        ("both", "messages are acknowledged again; meanwhile, 1 published, for nobody wants them"),
    ],
)
def test_the_end_of_an_outage_says_what_became_of_the_messages(
    answer: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
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
    if answer in ("published", "both"):
        unwanted = np.arange(1 if answer == "both" else 0, 2)
        publisher._loop.apply(PollResult([Acks(unwanted, None, None, None, 0.0, level=Ack.NONE)]))
    if answer in ("acked", "both"):
        bridge.broker.release()
        publisher._loop.apply(bridge.poll(0))
    if answer == "timed out":
        publisher.window.expire((publisher.window.wake_at() or 0.0) + 1.0)
    for second in range(2):
        publisher._end_outage(WAIT + second)
    assert caplog.records[-1].getMessage() == end
    MemoryBroker.forget(bridge.broker.name)
