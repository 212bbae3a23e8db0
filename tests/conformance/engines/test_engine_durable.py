"""The durable engine passes the suites for engines: driven as the broker drives it, and for stored streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.testing.engine_suite import EngineKind, ReadableEngineSuite

from tests.support.malamute.stored_engine_suite import MakeEngine, StoredEngineSuite


class TestDurable(ReadableEngineSuite):
    @pytest.fixture
    def kind(self, tmp_path: Path) -> EngineKind:
        return EngineKind("durable", {"folder": str(tmp_path)}, stored=True)


class TestDurableStorage(StoredEngineSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> MakeEngine:
        return lambda: DurableEngine(b"st", {"folder": str(tmp_path)})
