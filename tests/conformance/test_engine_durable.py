"""The durable engine passes the suite for engines, driven as the broker drives it."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.testing.engine_suite import EngineKind, ReadableEngineSuite


class TestDurable(ReadableEngineSuite):
    @pytest.fixture
    def kind(self, tmp_path: Path) -> EngineKind:
        return EngineKind("durable", {"folder": str(tmp_path)}, stored=True)
