"""What holds for all tests."""

from __future__ import annotations

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.scheduling import FileScheduling  # only where xdist is at work

    return FileScheduling(config, log) if config.option.dist == "loadfile" else None
