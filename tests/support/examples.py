"""How many examples a property test tries: a few every day, all of them in ``make test-slow``."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

EVERY_DAY = 25
FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"


def examples(full: int, **more: Any) -> settings:
    """Settings of a property test that tries ``full`` examples where there is time, and :data:`EVERY_DAY` elsewhere."""
    return settings(max_examples=full if FULL else min(full, EVERY_DAY), **more)
