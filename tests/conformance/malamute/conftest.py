"""Brokers, and raw clients of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.malamute.mlp import MlpSite


@pytest.fixture
def site() -> Iterator[MlpSite]:
    site = MlpSite()
    yield site
    site.close()


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
