"""The durable engine, in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.malamute.durable_engine import EngineHarness, Make


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Make]:
    made: list[EngineHarness] = []

    def make(**settings: Any) -> EngineHarness:
        made.append(EngineHarness(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()
