from __future__ import annotations

from collections.abc import Iterator

import pytest
from mama_spark.bridges.nats import announcer
from mama_spark.bridges.nats.pool import POOL
from mama_spark.testing.discovering import opened

__all__ = ["opened"]


@pytest.fixture(autouse=True)
def _nothing_stays_warm() -> Iterator[None]:
    """Nobody's connection, and nobody's announcement, outlives its server."""
    yield
    announcer.clear()
    POOL.clear()
