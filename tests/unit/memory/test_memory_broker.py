"""The broker inside the process: its faults, its limits, and what a reader finds when it is gone."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.memory.logs import MemoryLogs


def test_a_script_of_unknown_faults_is_refused(broker: MemoryBroker) -> None:
    with pytest.raises(ConfigError, match=r"no such fault: \['acck'\]; there are \['409', "):
        broker.then(["ack", "acck"])
    assert not broker.script


def test_a_full_broker_stores_no_more_and_says_so(broker: MemoryBroker) -> None:
    broker.capacity = 2
    bridge = MemoryBridge(broker.name)
    bridge.open()
    bridge.send(MessageBatch.of(["t"] * 3, [b"a", b"b", b"c"]), 0)
    polled = bridge.poll(0)
    assert [token for acks in polled.acks for token in acks.tokens.tolist()] == [0, 1]
    assert [token for refusals in polled.refusals for token in refusals.tokens.tolist()] == [2]
    assert [m.payload for m in broker.messages()] == [b"a", b"b"]
    bridge.close()


def test_a_log_of_a_broker_that_is_down_or_was_replaced_cannot_be_read(broker: MemoryBroker) -> None:
    logs = MemoryLogs(broker.name)
    logs.open()
    log = logs.log(broker.name)
    broker.up = False
    with pytest.raises(Unavailable, match="is down"):
        log.bounds()
    broker.up = True
    MemoryBroker.forget(broker.name)
    MemoryBroker.get(broker.name)
    with pytest.raises(ConfigError, match="is another broker by now"):
        log.bounds()
