"""Waits of tests: for a condition, with a generous time limit, and never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TIMEOUT = 60.0  #: seconds that a test waits at most for a condition
_SHORTEST, _LONGEST = 0.001, 0.02


def eventually(true: Callable[[], Any], what: str, timeout: float = TIMEOUT) -> Any:
    """Wait for a condition; its value. :class:`AssertionError` if ``what`` did not come true in time."""
    deadline, pause = time.monotonic() + timeout, _SHORTEST
    while not (value := true()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)
    return value


def until(true: Callable[[], Any], act: Callable[[], Any] | None = None, timeout: float = TIMEOUT) -> None:
    """Wait for a condition; ``act`` is done at once and every 20 ms until then. The condition is asked more often, so
    it must not take anything away; and what ``act`` began last may still be on its way then.

    :raises AssertionError: it did not become true in time
    """
    if act is None:
        eventually(true, "this did not become true", timeout)
        return
    deadline = time.monotonic() + timeout
    act()
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: this did not become true"
        time.sleep(_LONGEST)
        if not true():
            act()
