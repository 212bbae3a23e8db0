"""The NATS bridge against the suite that every bridge must pass, on a real server, in each of its ways of working."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.bridge_suite import BridgeSuite, PublishedMessage, SuiteSetup

from tests.support.nats.nats_servers import Admin


class _OnNats(BridgeSuite):
    """:cvar options: of the bridge"""

    options: ClassVar[dict[str, Any]]

    @pytest.fixture
    def site(self, nats_server: NatsServer) -> Iterator[SuiteSetup]:
        def make(**options: Any) -> NatsBridge:
            return NatsBridge(NatsSettings((nats_server.url,), stream="T", **{**self.options, **options}))

        with Admin(nats_server.url) as admin:
            batched = (
                {"allow_batched": True} if "ack_mode" in self.options else {}
            )  # which servers before 2.14 do not know
            admin.create_stream("T", ["t.>"], **batched)
            yield SuiteSetup(
                make=make,
                silent=lambda: make(ack_mode="none", ordered=False),
                refused={"Nats-Expected-Stream": ["OTHER"]},
                stored=lambda: [PublishedMessage(*m) for m in admin.messages("T")],
            )


class TestMessageMode(_OnNats):
    without, options = frozenset({"ordered"}), {}


class TestBatchMode(_OnNats):
    without, options = frozenset({"sequence", "ordered"}), {"ack_mode": "batch"}


class TestBatchModeInOrder(_OnNats):
    without, options = frozenset({"sequence"}), {"ack_mode": "batch", "ordered": True}
