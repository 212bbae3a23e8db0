"""A registry, and transports to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.mama.mama_discovery import MamaDiscoverySetup


@pytest.fixture
def place() -> Iterator[MamaDiscoverySetup]:
    made = MamaDiscoverySetup()
    yield made
    made.close()
