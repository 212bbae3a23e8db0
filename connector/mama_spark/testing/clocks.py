"""A clock that a test moves on."""

from __future__ import annotations

import time
from typing import Any


class Clock:
    """Stands in for the module ``time`` where code under test looks at it.

    :ivar ahead: seconds that the test has let pass beside those that pass by themselves
    """

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
