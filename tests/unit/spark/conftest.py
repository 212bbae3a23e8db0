"""A log in memory of the test's own."""

from __future__ import annotations

import pytest
from mama_spark.memory import MemoryBroker

from tests.support.spark.memory_harness import StoredLog


@pytest.fixture
def log(broker: MemoryBroker) -> StoredLog:
    return StoredLog(broker.name)
