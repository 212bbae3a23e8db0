"""The tiers of the tests, and what holds in each; a plugin of pytest.

``make test``      no mark: proves that the product works. Needs Python, Java and what pip brings, and little time.
``make test-all``  ``@pytest.mark.thorough``: all the rest that is deterministic.
``make explore``   ``@pytest.mark.explore``, and the property tests with random examples: looks for the unknown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

#: Random seeds and large numbers, for ``make explore``; elsewhere each run is as the one before.
EXPLORE = os.environ.get("TIER") == "explore"
#: Examples of a property test in the first two tiers.
FEW = 20
#: What a test without a mark may start.
PROGRAMS = {"java", "mama", "nats-server", "spark-class", "spark-submit", "bash", "sh"}


def examples(most: int, few: int = FEW, **more: Any) -> settings:
    """Settings of a property test that tries ``most`` examples where it explores, and ``few`` elsewhere."""
    return settings(max_examples=most if EXPLORE else min(most, few), **more)


def start_is_foreign(executable: str) -> bool:
    """Whether a program is more than Python, Java and what pip brings."""
    name = Path(executable).name
    return name not in PROGRAMS and not name.startswith("python")


class ProgramGuard:
    """Fails a test of the first tier that starts a program which the set-up of ``make test`` does not bring."""

    def __init__(self) -> None:
        self._test: pytest.Item | None = None
        sys.addaudithook(self._hear)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        marks = {mark.name for mark in item.iter_markers()}
        self._test = None if marks & {"thorough", "explore", "originals"} else item
        try:
            return (yield)
        finally:
            self._test = None

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "subprocess.Popen" or self._test is None:
            return
        executable = os.fsdecode(args[0] or args[1][0])
        if start_is_foreign(executable):
            raise AssertionError(f"a test that starts {executable} belongs to make test-all: mark it thorough")


def pytest_configure(config: pytest.Config) -> None:
    # No deadlines and no "too slow": how long an example takes says nothing where others work too.
    calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("repeatable", calm, derandomize=True, max_examples=FEW)
    settings.register_profile("explore", calm, max_examples=100, print_blob=True)
    settings.load_profile("explore" if EXPLORE else "repeatable")
    config.pluginmanager.register(ProgramGuard(), "program_guard")
