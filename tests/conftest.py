"""What holds for all tests."""

from __future__ import annotations

import gc
from typing import Any

import pytest

pytest_plugins = [
    "tests.support.tiers",
    "tests.support.processor_time",
    "tests.support.excuses",
    "tests.support.memory",
    "tests.support.nats.nats",
    "tests.support.tango.tango",
]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported and collected stays for the whole run: full collections of garbage need not look at it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.scheduling import FileScheduling  # only where xdist is at work

    return FileScheduling(config, log) if config.option.dist == "loadfile" else None
