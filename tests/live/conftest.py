from __future__ import annotations

from collections.abc import Iterator

import pytest
from mama_spark.discovery import lease_keeper
from mama_spark.nats.connection.pool import POOL

from tests.support.nats.nats_discovery import opened

__all__ = ["opened"]


@pytest.fixture(autouse=True)
def _nothing_stays_warm() -> Iterator[None]:
    """Nobody's connection, and nobody's announcement, outlives its server."""
    yield
    lease_keeper.clear()
    POOL.clear()
