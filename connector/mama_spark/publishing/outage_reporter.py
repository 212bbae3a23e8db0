"""Reports outages: asks the middleware for the cause, warns while they last, and tells their end. Also repeats requests
to a middleware that does not answer, if the user wants to wait for it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from mama_spark.contracts.backoff import RECONNECT
from mama_spark.contracts.bridge import PublisherBridge
from mama_spark.contracts.errors import Unavailable

from .window.flight_batch import FlightCounters
from .window.send_loop import SendLoop

logger = logging.getLogger("mama_spark")

T = TypeVar("T")

WARNING_INTERVAL = 30.0


class WarningTimer:
    """Times to warn of what lasts: not again within :data:`WARNING_INTERVAL`. ``warned``: time of the last warning."""

    def __init__(self, warned: float = -math.inf) -> None:
        self._warned = warned

    def due(self, now: float) -> bool:
        if due := now >= self._warned + WARNING_INTERVAL:
            self._warned = now
        return due


class OutageReporter:
    """Reports outages, on the thread that sends.

    :param what_next: text about what happens if it lasts
    :ivar cause: cause of the outage that lasts, or was the last one; empty = there was none
    """

    def __init__(self, bridge: PublisherBridge, loop: SendLoop, what_next: str, log_prefix: str = "") -> None:
        self._bridge, self._loop, self._what_next, self._log_prefix = bridge, loop, what_next, log_prefix
        self._warnings = WarningTimer()
        self._lasts, self._before = False, FlightCounters()
        self.cause = ""

    def report(self, now: float) -> None:
        """Warn, at most once in :data:`WARNING_INTERVAL`; call it after each check for an outage."""
        outage = self._loop.outage
        if not outage.noticed:
            if self._lasts and not outage.silent:
                self._lasts, self._warnings = False, WarningTimer()
                logger.warning("%s%s", self._log_prefix, self._how_it_ended())
            return
        if not self._lasts:
            self._lasts, self._before = True, replace(self._loop.window.counters)
        if self._warnings.due(now):
            self.cause = self._find_cause()
            logger.warning(
                "%snothing was acknowledged for %.0f s, %d messages wait: %s; %s",
                self._log_prefix, outage.silent, self._loop.window.counters.unsettled, self.cause, self._what_next,
            )  # fmt: skip

    def _how_it_ended(self) -> str:
        before, now = self._before, self._loop.window.counters
        became = {
            "failed, each with its reason": now.failed - before.failed,
            "timed out, each with its reason": now.timed_out - before.timed_out,
            "published without subscribers": now.published - before.published,
        }
        told = ", ".join(f"{n:,} {what}" for what, n in became.items() if n)
        if now.acked > before.acked:
            return f"messages are acknowledged again{told and f'; meanwhile, {told}'}"
        return f"no message waits any more, and none was acknowledged: {told}"

    def _find_cause(self) -> str:
        loop, bridge = self._loop, self._bridge
        connected = loop.window.connected
        if loop.last_cause and loop.refused and connected:
            return loop.last_cause
        if loop.window.in_flight or not connected:
            explained = bridge.explain_missing_acks()
            if explained:
                return explained
        if loop.last_cause and not connected:
            return loop.last_cause
        return "no answer comes" if loop.window.in_flight else "the bridge takes no messages"


def retry_while_unavailable(ask: Callable[[], T], *, wait: bool, say: str) -> T:
    """The result of ``ask``.

    :param wait: whether to wait until the middleware answers, with a warning now and then
    :param say: the warning, with one ``%s`` for the error
    :raises Unavailable: the middleware does not answer, and ``wait`` is off
    """
    delays, warnings = RECONNECT.delays(), WarningTimer()
    while True:
        try:
            return ask()
        except Unavailable as e:
            if not wait:
                raise
            if warnings.due(time.monotonic()):
                logger.warning(say, e)
        time.sleep(delays.next())
