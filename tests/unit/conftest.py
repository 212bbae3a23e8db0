"""A broker in memory of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.memory import MemoryBroker


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    name = uuid4().hex
    yield MemoryBroker.get(name)
    MemoryBroker.forget(name)
