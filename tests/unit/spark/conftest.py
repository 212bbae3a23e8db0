"""A log in memory of the test's own."""

from __future__ import annotations

import pytest
from mama_spark.memory import MemoryBroker

from tests.support.spark.memory_harness import FilledLog


@pytest.fixture
def log(broker: MemoryBroker) -> FilledLog:
    return FilledLog(broker.name)
