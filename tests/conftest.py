"""What holds for all tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import EVERY_DAY, FULL

pytest_plugins = [
    "scripts.test_times",
    "tests.support.excuses",
    "tests.support.memory",
    "tests.support.nats.nats",
    "tests.support.tango.tango",
]

# No deadlines and no "too slow": how long an example takes says nothing where others work too.
settings.register_profile(
    "every day", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=EVERY_DAY
)
settings.register_profile("full", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
settings.load_profile("full" if FULL else "every day")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.scheduling import FileScheduling  # only where xdist is at work

    return FileScheduling(config, log) if config.option.dist == "loadfile" else None
