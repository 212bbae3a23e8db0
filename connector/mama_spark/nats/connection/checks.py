"""Results of checks of a server, which bridges that follow one another on a connection share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

FRESH = 60.0  #: seconds for which the result of a check counts


class Checks:
    """To be cleared when the connection is another one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._results: dict[str, tuple[float, Any]] = {}  # time and value
        self.clear = self._results.clear

    def cached(self, question: str) -> Any | None:
        """The result of a check that was made less than :data:`FRESH` ago."""
        found = self._results.get(question)
        return found[1] if found is not None and self._clock() - found[0] < FRESH else None

    def cache(self, question: str, answer: Any) -> None:
        """Keep the result of a check."""
        self._results[question] = (self._clock(), answer)
