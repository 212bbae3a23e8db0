"""A clock that tests set forward."""

from __future__ import annotations

import time
from typing import Any


class Clock:
    """Replaces the module ``time`` in code under test.

    :ivar ahead: seconds that are added to the real clock
    """

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
