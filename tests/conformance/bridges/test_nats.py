"""The NATS bridge against the suite that every bridge must pass, on a real server, in each of its ways of working."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mama_spark.contracts.bridge import PublisherBridge
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.bridge_suite import BridgeSuite, PublishedMessage, SuiteSetup

from tests.support.nats.nats_servers import Admin


def site_of(server: NatsServer, **options: Any) -> Iterator[SuiteSetup]:
    with Admin(server.url) as admin:
        admin.create_stream("T", ["t.>"], allow_batched=True)
        silent = options | {"ack_mode": "none", "ordered": False}
        yield SuiteSetup(
            make=lambda: NatsBridge(NatsSettings((server.url,), stream="T", **options)),
            silent=lambda: NatsBridge(NatsSettings((server.url,), stream="T", **silent)),
            refused={"Nats-Expected-Stream": ["OTHER"]},
            stored=lambda: [PublishedMessage(*m) for m in admin.messages("T")],
        )


class TestMessageMode(BridgeSuite):
    without = frozenset({"ordered"})

    @pytest.fixture
    def site(self, nats_server: NatsServer) -> Iterator[SuiteSetup]:
        yield from site_of(nats_server)


class TestBatchMode(BridgeSuite):
    without = frozenset({"sequence", "ordered"})

    @pytest.fixture
    def site(self, nats_server: NatsServer) -> Iterator[SuiteSetup]:
        yield from site_of(nats_server, ack_mode="batch")


class TestBatchModeInOrder(BridgeSuite):
    without = frozenset({"sequence"})

    @pytest.fixture
    def site(self, nats_server: NatsServer) -> Iterator[SuiteSetup]:
        yield from site_of(nats_server, ack_mode="batch", ordered=True)

    def test_it_claims_to_keep_order(self, bridge: PublisherBridge) -> None:
        assert bridge.capabilities.ordered
