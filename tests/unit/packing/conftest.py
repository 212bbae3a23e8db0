from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Counts what Arrow takes from here on. It must outlive what it gave, so tests do not make one themselves."""
    whole = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(whole)
    pa.set_memory_pool(counting)
    yield counting
    pa.set_memory_pool(whole)
