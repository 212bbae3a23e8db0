"""Publishes through outages of any length: for processes that write into one record log for weeks.

Messages are sent in their order; unacknowledged ones are resent, through a new bridge where the old one ended. The
caller waits while earlier messages wait, so its own batches bound the memory. A warning is logged when an obstacle
begins, every 30 s while it lasts, and when it is over.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from ..contracts.backoff import RECONNECT
from ..contracts.bridge import PublisherBridge
from ..contracts.errors import ConfigError, MamaError, PublishError
from ..contracts.message import Int64s, MessageBatch
from ..options.window_config import RetryPolicy, WindowConfig, usual_refill
from .batch_config import BatchConfig, BatchHooks
from .batch_publisher import BatchPublisher
from .outage_reporter import WarningTimer
from .window.flight import FlightState
from .window.flight_batch import FlightBatch, messages_of
from .window.retry import may_resend_elsewhere

logger = logging.getLogger("mama_spark")

MAX_UNSETTLED_BATCHES = 4  #: number of unsettled batches at which ``write`` waits
_ASK_FOR_ANSWERS_AT = 2  #: unsettled batches: answers come while the caller makes more, so it seldom waits
_FOREVER = 10 * 365 * 86400.0
_CHECK_INTERVAL = 0.2

RowsOf = Callable[[MessageBatch], Int64s]
OnRejected = Callable[[MessageBatch, Sequence[PublishError]], None]


class ResilientPublisher:
    """See the module. For one thread, but :attr:`stored`, :attr:`waiting` and ``repr``.

    :param make: makes a bridge that is not open. A rejection by its ``open`` or ``prepare`` ends the first
        :meth:`write`; later ones are waited for.
    :param max_in_flight: maximum number of unacknowledged messages; 1 to keep the order where the bridge does not keep
        it over resends
    :param wait_timeout: seconds to wait for the acknowledgement of each send
    :param flush_after: seconds without a send after which the middleware is asked for answers; it is asked at once
        where :meth:`write` may soon have to wait for them, and by :meth:`drain`
    :param on_rejected: called with messages that the middleware rejected, on another thread
    :param rows_of: number of rows of each message, for packs; None = one row each
    :ivar stored, rejected: number of rows in acknowledged messages, and in those that the middleware rejected
    """

    def __init__(
        self,
        make: Callable[[], PublisherBridge],
        *,
        max_in_flight: int = 4096,
        wait_timeout: float = 5.0,
        flush_after: float = 0.2,
        on_rejected: OnRejected | None = None,
        rows_of: RowsOf | None = None,
    ) -> None:
        self._make, self._max_in_flight, self._wait_timeout = make, max_in_flight, wait_timeout
        self._flush_after, self._on_rejected = flush_after, on_rejected
        self._rows_of: RowsOf = rows_of or _one_each
        self._lock = threading.Condition()
        self._unsettled: list[MessageBatch] = []  #: in order
        self._waiting_rows = 0  #: of them
        self._draining = False
        self._bridge: PublisherBridge | None = None
        self._publisher: BatchPublisher | None = None
        self._stored_once = False
        self._warnings: dict[type[MamaError], WarningTimer] = {}  #: by the kind of error
        self.stored = 0
        self.rejected = 0

    @property
    def waiting(self) -> int:
        """Number of rows in written, unsettled messages."""
        return self._waiting_rows

    def write(self, batch: MessageBatch, cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Queue messages; waits while earlier ones wait.

        :param cancelled: called while it waits; True ends the wait
        :returns: False = not taken, because ``cancelled`` ended the wait
        :raises ConfigError: the first bridge cannot be opened, or no stream takes the messages
        :raises Unavailable: no answer, before any message was stored
        """
        rows = int(self._rows_of(batch).sum())
        while True:
            if self._connected(cancelled):
                with self._lock:
                    free = self._lock.wait_for(lambda: len(self._unsettled) < MAX_UNSETTLED_BATCHES, _CHECK_INTERVAL)
                    if free:
                        self._unsettled.append(batch)
                        self._waiting_rows += rows
                if free:
                    self._put(batch)
                    return True
            if cancelled():
                return False

    def reconnect(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Send by another publisher what is not settled, if the last one ended; waits while nobody answers, unless
        ``cancelled`` says True. Call it regularly: what was written last would wait for the next :meth:`write`."""
        if self._unsettled:
            self._connected(cancelled)

    def drain(self, timeout: float) -> bool:
        """Wait until all messages are settled; False: not within ``timeout`` seconds."""
        until = time.monotonic() + timeout
        self._draining = True
        try:
            while self.waiting and time.monotonic() < until:
                if self._connected(lambda: time.monotonic() >= until):
                    left = max(0.0, until - time.monotonic())
                    with self._lock:
                        self._lock.wait_for(lambda: not self._unsettled, min(_CHECK_INTERVAL, left))
        finally:
            self._draining = False
        return not self.waiting

    def close(self) -> None:
        """Close it; unsettled messages stay unsettled. Never raises."""
        self._drop_publisher()

    # --- the connection to the middleware ---

    def _connected(self, cancelled: Callable[[], bool]) -> bool:
        """Whether a publisher works; makes one if not, and gives it the unsettled messages."""
        if self._publisher is not None:
            try:
                self._publisher.check()
                return True
            except MamaError as error:
                self._drop_publisher()
                self._warn_or_raise(error)
        delays = RECONNECT.delays()
        while True:
            try:
                self._start()
                return True
            except MamaError as error:
                self._drop_publisher()
                if not self._stored_once:
                    raise
                self._warn(error)
            until = time.monotonic() + delays.next()
            while time.monotonic() < until and not cancelled():
                time.sleep(0.05)
            if cancelled():
                return False

    def _start(self) -> None:
        bridge = self._bridge = self._make()
        bridge.open()
        with self._lock:
            unsettled = list(self._unsettled)
        publisher = self._publisher = BatchPublisher(
            bridge,
            self._window_config(bridge),
            on_finished=self._finished,
            config=BatchConfig(
                outage_timeout=math.inf, flush_after=self._flush_after, max_queued=MAX_UNSETTLED_BATCHES, name="log"
            ),
            hooks=BatchHooks(awaited=self._awaited, on_resend=self._warn),
        )
        publisher.start()
        for batch in unsettled:
            self._put(batch)

    def _window_config(self, bridge: PublisherBridge) -> WindowConfig:
        return WindowConfig(
            max_in_flight=self._max_in_flight,
            refill_allowed_at=usual_refill(self._max_in_flight),
            wait_timeout=self._wait_timeout,
            retry=RetryPolicy.doubling(RECONNECT.first, RECONNECT.most, _FOREVER),
            ordered=bridge.capabilities.ordered,
        )

    def _put(self, batch: MessageBatch) -> None:
        assert self._publisher is not None
        try:
            self._publisher.put(batch)
        except MamaError as error:
            self._warn_or_raise(error)

    def _warn_or_raise(self, error: MamaError) -> None:
        """Raise what only the user can correct, before any message was stored; warn of the rest."""
        if isinstance(error, ConfigError) and not self._stored_once:
            raise error
        self._warn(error)

    def _drop_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        bridge, self._bridge = self._bridge, None
        if publisher is not None:
            publisher.stop()
        if bridge is not None:
            with contextlib.suppress(Exception):
                bridge.close()

    # --- on any thread ---

    def _warn(self, error: MamaError) -> None:
        with self._lock:
            if not self._warnings.setdefault(type(error), WarningTimer()).due(time.monotonic()):
                return
        logger.warning("the record log takes nothing, %d messages wait and are sent again: %s", self.waiting, error)

    # --- on the publisher's thread ---

    def _awaited(self) -> bool:
        return self._draining or len(self._unsettled) >= _ASK_FOR_ANSWERS_AT

    def _finished(self, flights: FlightBatch) -> None:
        messages = messages_of(flights)
        acked = flights.state == FlightState.ACKED
        failed = {row: error for row, error in flights.errors.items() if not acked[row]}
        resend = [row for row, error in failed.items() if may_resend_elsewhere(error)]
        rejected = sorted(failed.keys() - set(resend))
        rows = self._rows_of(messages)
        with self._lock:
            self._stored_once = self._stored_once or bool(acked.any())
            self.stored += int(rows[acked].sum())
            self.rejected += int(rows[rejected].sum())
            self._waiting_rows -= int(rows[acked].sum() + rows[rejected].sum())
            place = next(at for at, batch in enumerate(self._unsettled) if batch is messages)
            if resend:
                self._unsettled[place] = messages.take(np.array(sorted(resend)))
            else:
                del self._unsettled[place]
            over = bool(self._warnings) and bool(acked.any()) and not resend
            if over:
                self._warnings.clear()
            self._lock.notify_all()
        if over:
            logger.warning("the record log takes messages again")
        if rejected and self._on_rejected is not None:
            self._on_rejected(messages.take(np.array(rejected)), [flights.errors[row] for row in rejected])


def _one_each(batch: MessageBatch) -> Int64s:
    return np.ones(len(batch), np.int64)
