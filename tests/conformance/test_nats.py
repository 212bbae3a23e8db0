"""The NATS bridge against the suite that every bridge must pass, on a real server, in each of its ways of working."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.bridges.nats import NatsBridge, NatsSettings
from mama_spark.bridges.nats.pool import POOL
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.testing.bridge_suite import BridgeSuite, Site, Stored
from mama_spark.testing.servers import Admin


def site_of(folder: Path, **options: Any) -> Iterator[Site]:
    with NatsServer(folder / "nats") as server, Admin(server.url) as admin:
        admin.create_stream("T", ["t.>"], allow_batched=True)
        yield Site(
            make=lambda: NatsBridge(NatsSettings((server.url,), stream="T", **options)),
            stored=lambda: [Stored(*m) for m in admin.messages("T")],
        )
        POOL.clear()


class TestMessageMode(BridgeSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[Site]:
        yield from site_of(tmp_path)


class TestMessageModeByPublicCalls(BridgeSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[Site]:
        yield from site_of(tmp_path, fast=False)


class TestBatchMode(BridgeSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[Site]:
        yield from site_of(tmp_path, ack_mode="batch")
