"""Networks of OpenMAMA's programs, and a log. Without ``ORIGINALS`` no test here is collected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.openmama.recorder import RecordedLog, recorded_log

from .openmama_network import EitherNetwork, network

collect_ignore_glob = [] if "ORIGINALS" in os.environ else ["test_*.py"]


@pytest.fixture
def oz(tmp_path: Path) -> Iterator[EitherNetwork]:
    with network("oz", tmp_path) as one:
        yield one


@pytest.fixture(params=["oz", "zmq"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EitherNetwork]:
    with network(request.param, tmp_path) as one:
        yield one


@pytest.fixture
def log() -> Iterator[RecordedLog]:
    with recorded_log() as one:
        yield one
