"""An event source without sockets, for every test of this folder."""

from __future__ import annotations

import pytest

from tests.support.tango.servant_harness import Source


@pytest.fixture
def source() -> Source:
    return Source()
