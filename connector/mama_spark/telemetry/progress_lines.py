"""Lines of progress of a program that asks, wherever it waits, whether it is to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def with_progress(
    stop: Callable[[], bool], every: float, say: Callable[[str], None], text: Callable[[], str]
) -> Callable[[], bool]:
    """``stop``, which also says a line when one is due.

    :param every: seconds between two lines; 0: there are none
    """
    due = time.monotonic() + (every or math.inf)

    def asked() -> bool:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + every
            say(text())
        return stop()

    return asked
