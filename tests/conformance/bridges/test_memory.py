"""The bridge in memory, and the bridge `tango` over it: what is said of its log is true of it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.contracts.bridge import Ack, PublisherBridge
from mama_spark.contracts.errors import ConfigError
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.tango.bridge import TangoBridge
from mama_spark.testing.bridge_suite import BridgeSuite, PublishedMessage, SuiteSetup


class TestMemory(BridgeSuite):
    without = frozenset({"ordered"})

    def over(self, bridge: MemoryBridge) -> PublisherBridge:
        return bridge

    @pytest.fixture
    def site(self) -> Iterator[SuiteSetup]:
        name = uuid4().hex
        broker = MemoryBroker.get(name)
        yield SuiteSetup(
            make=lambda: self.over(MemoryBridge(name)),
            silent=lambda: self.over(MemoryBridge(name, acks=False)),
            stored=lambda: [PublishedMessage(m.sequence, m.topic, m.payload, m.headers) for m in broker.messages()],
        )
        MemoryBroker.forget(name)


class TestTango(TestMemory):
    def over(self, bridge: MemoryBridge) -> PublisherBridge:
        return TangoBridge(bridge)

    def test_without_acknowledgements_handing_over_is_the_end_and_closing_loses_nothing(self, site: SuiteSetup) -> None:
        """Here it does not: what nobody stores, nobody can serve."""
        assert site.silent is not None
        bridge = site.silent()
        bridge.open()
        assert bridge.capabilities.ack is Ack.NONE
        with pytest.raises(ConfigError, match="not stored"):
            bridge.prepare(self._batch(site, 1))
        bridge.close()
