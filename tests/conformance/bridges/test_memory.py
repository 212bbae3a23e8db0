from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.testing.bridge_suite import BridgeSuite, PublishedMessage, SuiteSetup


class TestMemory(BridgeSuite):
    without = frozenset({"ordered"})

    @pytest.fixture
    def site(self) -> Iterator[SuiteSetup]:
        name = uuid4().hex
        broker = MemoryBroker.get(name)
        yield SuiteSetup(
            make=lambda: MemoryBridge(name),
            silent=lambda: MemoryBridge(name, acks=False),
            stored=lambda: [PublishedMessage(m.sequence, m.topic, m.payload, m.headers) for m in broker.messages()],
        )
        MemoryBroker.forget(name)
