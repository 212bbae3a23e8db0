"""A publisher that never gives up: for processes that write into one log for weeks.

Messages go in the order in which they came, and wait for as long as the middleware is away; what was handed over and
not acknowledged goes again, through a new bridge where the old one is beyond repair. Who writes is made to wait, so
memory is bounded by what it hands over at once. What is in the way is told in the process' log: when it begins, once a
minute while it lasts, and when it is over.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from ..bridge import PublisherBridge
from ..errors import ConfigError, MamaError, NotPublished, PublishError, Stopped
from ..message import MessageBatch
from ..options.window import RetryPolicy, WindowConfig
from ..sending.flight import FlightState
from ..sending.flight_batch import FlightBatch
from .batch_publisher import BatchContext, BatchPublisher

log = logging.getLogger("mama_spark")

FOR_EVER = 10 * 365 * 86400.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_LOOK_EVERY = 0.2
#: Seconds between two warnings about one kind of trouble.
TELL_EVERY = 60.0
BATCHES_WAITING = 2  #: write waits while so many are not settled: the pump takes these without blocking

#: The pump ended first.
_ENDED = (Stopped, NotPublished)

Refused = Callable[[MessageBatch, Sequence[PublishError]], None]


class ResilientPublisher:
    """See the module. For one thread, but :attr:`stored` and :attr:`repr`.

    :param make: a bridge that is not open. What its ``open`` or ``prepare`` refuses for good ends the first
        :meth:`write`, and is waited for later.
    :param max_in_flight: messages that wait for an acknowledgement; 1 where the bridge keeps no order over resends and
        ``ordered`` is wanted
    :param wait_timeout: seconds to wait for the acknowledgement of each send
    :param on_refused: messages that the middleware will not take; called on another thread
    """

    def __init__(
        self,
        make: Callable[[], PublisherBridge],
        *,
        max_in_flight: int = 4096,
        wait_timeout: float = 5.0,
        on_refused: Refused | None = None,
    ) -> None:
        self._make, self._max, self._wait_timeout = make, max_in_flight, wait_timeout
        self._on_refused = on_refused
        self._lock = threading.Condition()
        self._open: list[MessageBatch] = []  #: handed over and not settled, in order
        self._bridge: PublisherBridge | None = None
        self._pump: BatchPublisher | None = None
        self._began = False
        self._told: dict[type[MamaError], float] = {}  #: when each kind of trouble was told last
        self.stored = 0  #: messages that were acknowledged
        self.refused = 0

    def __repr__(self) -> str:
        state = "waiting for the middleware" if self._pump is None else repr(self._pump)
        return f"<ResilientPublisher {self.stored} stored, {self.waiting} waiting, {state}>"

    @property
    def waiting(self) -> int:
        """Messages that were handed over and are not settled."""
        with self._lock:
            return sum(map(len, self._open))

    def write(self, batch: MessageBatch, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Hand over messages; waits while others wait.

        :param give_up: asked while it waits; True ends the wait
        :returns: False: they were not taken, since ``give_up`` said so
        :raises ConfigError: the first bridge cannot be opened, or has no place for the messages
        :raises Unavailable: nobody answers, at the first time
        """
        while True:
            if self._ready(give_up):
                with self._lock:
                    room = self._lock.wait_for(lambda: len(self._open) < BATCHES_WAITING, _LOOK_EVERY)
                    if room:
                        self._open.append(batch)
                if room:
                    self._put(batch)
                    return True
            if give_up():
                return False

    def drain(self, timeout: float) -> bool:
        """Wait until all is settled; False: not within ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while self.waiting and time.monotonic() < until:
            if self._ready(lambda: time.monotonic() >= until):
                with self._lock:
                    self._lock.wait_for(lambda: not self._open, min(_LOOK_EVERY, max(0.0, until - time.monotonic())))
        return not self.waiting

    def close(self) -> None:
        """What is not settled stays so. Never raises."""
        self._drop_pump()

    # --- the way to the middleware ---

    def _ready(self, give_up: Callable[[], bool]) -> bool:
        """Whether there is a pump that lives; makes one, and hands it what is not settled."""
        if self._pump is not None:
            try:
                self._pump.check()
                return True
            except MamaError as error:
                self._tell(error)
                self._drop_pump()
        pause = _FIRST_PAUSE
        while True:
            try:
                self._start()
            except MamaError as error:
                self._drop_pump()
                if not self._began:
                    raise
                self._tell(error)
                until = time.monotonic() + pause
                while time.monotonic() < until and not give_up():
                    time.sleep(min(0.05, pause))
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return True
            if give_up():
                return False

    def _start(self) -> None:
        bridge = self._bridge = self._make()
        bridge.open()
        with self._lock:
            again = list(self._open)
        pump = self._pump = BatchPublisher(
            bridge,
            self._policy(bridge),
            on_finished=self._finished,
            name="log",
            patience=FOR_EVER,
            on_trouble=self._tell,
        )
        pump.start()
        for batch in again:
            self._put(batch)

    def _policy(self, bridge: PublisherBridge) -> WindowConfig:
        retry = RetryPolicy.doubling(_FIRST_PAUSE, _LONGEST_PAUSE, FOR_EVER)
        return WindowConfig(
            max_in_flight=self._max,
            refill_allowed_at=self._max // 2,
            wait_timeout=self._wait_timeout,
            retry=retry,
            ordered=bridge.capabilities.ordered,
        )

    def _put(self, batch: MessageBatch) -> None:
        """A pump that dies meanwhile is replaced by the next :meth:`_ready`."""
        assert self._pump is not None
        try:
            self._pump.put(batch)
        except MamaError as error:
            if isinstance(error, ConfigError) and not self._began:
                raise
            self._tell(error)

    def _drop_pump(self) -> None:
        pump, self._pump = self._pump, None
        bridge, self._bridge = self._bridge, None
        if pump is not None:
            pump.stop()
        if bridge is not None:
            with contextlib.suppress(Exception):
                bridge.close()

    # --- on any thread ---

    def _tell(self, error: MamaError) -> None:
        now = time.monotonic()
        with self._lock:
            if now < self._told.get(type(error), -TELL_EVERY) + TELL_EVERY:
                return
            self._told[type(error)] = now
        log.warning("the log takes nothing, %d messages wait and are tried again: %s", self.waiting, error)

    # --- on the pump's thread ---

    def _finished(self, block: FlightBatch) -> None:
        tag: BatchContext = block.tag
        good = block.state == FlightState.ACKED
        failed = {row: error for row, error in block.errors.items() if not good[row]}
        again = [row for row, error in failed.items() if error.retryable or isinstance(error, _ENDED)]
        refused = sorted(failed.keys() - set(again))
        with self._lock:
            self._began = self._began or bool(good.any())
            self.stored += int(good.sum())
            self.refused += len(refused)
            place = next(at for at, batch in enumerate(self._open) if batch is tag.batch)
            if again:
                self._open[place] = tag.batch.take(np.array(sorted(again)))
            else:
                del self._open[place]
            over = bool(self._told) and bool(good.any()) and not again
            if over:
                self._told.clear()
            self._lock.notify_all()
        if over:
            log.warning("the log takes messages again")
        if refused and self._on_refused is not None:
            self._on_refused(tag.batch.take(np.array(refused)), [block.errors[row] for row in refused])
