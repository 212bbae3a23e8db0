from __future__ import annotations

from collections.abc import Iterator

import pytest
from mama_spark.bridges.nats.pool import POOL
from mama_spark.testing.servers import nats_server

__all__ = ["nats_server"]


@pytest.fixture(autouse=True)
def _no_warm_connections() -> Iterator[None]:
    """Nobody's connection outlives its server."""
    yield
    POOL.clear()
