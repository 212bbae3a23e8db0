"""Asks a middleware again while it does not answer, where the user wants to wait for it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from mama_spark.contracts.backoff import RECONNECT
from mama_spark.contracts.errors import Unavailable

from .outage_reporter import WARNING_INTERVAL

logger = logging.getLogger("mama_spark")
T = TypeVar("T")


def retry_while_unavailable(ask: Callable[[], T], *, wait: bool, say: str) -> T:
    """What ``ask`` returns.

    :param wait: until the middleware answers, with a warning now and then
    :param say: the warning, with one ``%s`` for the error
    :raises Unavailable: the middleware does not answer, and ``wait`` is off
    """
    delays, warned = RECONNECT.delays(), -math.inf
    while True:
        try:
            return ask()
        except Unavailable as e:
            if not wait:
                raise
            if time.monotonic() >= warned + WARNING_INTERVAL:
                warned = time.monotonic()
                logger.warning(say, e)
        time.sleep(delays.next())
