"""The two loops of the managed publisher, over one window and one bridge.

:meth:`PublisherLoops.publish` sends queued messages while the window allows it; :meth:`PublisherLoops.fly` settles
flights by the answers, and resends. One lock guards window and bridge, because a bridge is called by one thread at a
time; callbacks and futures are served outside of it, in order.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mama_spark.contracts.bridge import PublisherBridge
from mama_spark.contracts.errors import ConfigError, NoResponders, NotPublished, PublishError, Stopped, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.publishing.window.flight_batch import FlightBatch
from mama_spark.publishing.window.outage_detector import OutageDetector
from mama_spark.publishing.window.send_loop import SendLoop, Span
from mama_spark.publishing.window.window import Window

from ..outage_reporter import OutageReporter
from ..wall_clock import WallClock
from .callbacks import CallbackDispatcher, PendingBatch
from .publish_queue import Entry, PublishQueue

_MAX_POLL = 0.005  #: seconds for which the flights runner keeps the publish runner from the bridge


class PublisherLoops:
    """Base of both loops. Each loop runs on one thread, of any owner.

    :param dedup: False = no ids are sent
    :param poll_time: longest wait of a loop, seconds (MP-07); ``hold_pause_time``: the same in a hold (MP-08)
    :ivar keep_going: the flag of the specification (MP-29, MP-36); after clearing it, call :meth:`settle_rest`
    :ivar draining: the loops end once nothing is left
    :ivar drained: set when :meth:`fly` has ended, or everything was settled otherwise
    """

    def __init__(
        self,
        bridge: PublisherBridge,
        window: Window,
        queue: PublishQueue,
        callbacks: CallbackDispatcher,
        *,
        dedup: bool,
        poll_time: float,
        hold_pause_time: float,
    ) -> None:
        self.bridge, self.window = bridge, window
        self._queue, self._callbacks = queue, callbacks
        # asked before the first time-out, so that it can say why
        self._loop = SendLoop(bridge, window, outage=OutageDetector(math.inf, window.policy.wait_timeout / 2))
        policy = window.policy
        #: Seconds for which a batch waits for the middleware to say whether it takes its messages.
        self._prepare_time = (policy.retry and policy.retry.deadline) or policy.wait_timeout
        self._reporter = OutageReporter(bridge, self._loop, "each message fails at its own deadline")
        self._dedup, self._poll_time, self._hold_pause_time = dedup, poll_time, hold_pause_time
        self.keep_going = True
        self.draining = self._publish_done = False
        self.drained = threading.Event()
        self._settled = threading.Event()  # for the publish runner: there may be room
        self._launched = threading.Event()  # for the flights runner: there are answers to wait for, or an end
        self._core = threading.RLock()  # guards window, bridge and batches
        self._sending = threading.Event()  # the publish runner wants the bridge
        self._open: dict[int, FlightBatch] = {}
        self._opened = self._unprepared = False
        self._clock = WallClock.anchored()

    def wake(self) -> None:
        """Make both loops look again, after a change outside of them."""
        self._settled.set()
        self._launched.set()

    def open(self) -> None:
        with self._core:
            if self.keep_going and not self._opened:
                self.bridge.open()
                self._opened = True

    # --- the publish runner ----------------------------------------------------------------------------------

    def publish(self) -> None:
        """Send queued messages while the window allows it (MP-23, MP-29 to MP-35)."""
        while self.keep_going:
            flights = self._queue.take(self.window.policy.max_in_flight, self._poll_time, self._admit)
            if flights is not None:
                self._send_batch(flights)
            elif self.draining and not len(self._queue):
                break
        self._publish_done = True
        self._launched.set()

    def _admit(self, taken: list[Entry]) -> FlightBatch | None:
        if not taken:
            return None
        single, futures = [f for f, _ in taken], [f for _, f in taken]
        headers = [{**(f.headers or {}), **(f.options.headers() if f.options else {})} or None for f in single]
        messages = MessageBatch.of(
            [f.subject for f in single], [f.body for f in single],
            headers if any(headers) else None, [f.id for f in single] if self._dedup else None,
        )  # fmt: skip
        with self._core:
            flights = self.window.open(len(single), messages, PendingBatch(single, futures))
            self._open[id(flights)] = flights
        return flights

    def _send_batch(self, flights: FlightBatch) -> None:
        until = time.monotonic() + self._prepare_time
        while (spans := self._prepare(flights)) is None:
            if not self.window.connected:
                until = time.monotonic() + self._prepare_time
            elif time.monotonic() >= until:
                with self._bridge_first():
                    self._reject(flights, range(flights.n), NoResponders(f"not sent: {self._loop.last_cause}"))
                break
            self._settled.wait(self._hold_pause_time)
        while spans:
            with self._bridge_first():
                if not self.keep_going:  # checked under the lock: the thread that cleared it settles the flights next
                    return
                self._settled.clear()
                sent = self._send_some(flights, spans[0])
            self._callbacks.deliver()
            start, end = spans.popleft()
            if start + sent < end:
                spans.appendleft((start + sent, end))
            if not sent:
                self._settled.wait(self._hold_pause_time)
        self._callbacks.deliver()

    def _prepare(self, flights: FlightBatch) -> deque[Span] | None:
        """The rows to send, none if the publisher was stopped; None = the bridge is unavailable: wait and try again."""
        with self._bridge_first():
            if not self.keep_going:
                return deque()
            self._settled.clear()
            self._unprepared = False
            try:
                spans = self._loop.prepare(flights)
            except Unavailable as error:
                self._loop.last_cause = str(error)
                self._loop.refused = self._unprepared = True
                return None
            except ConfigError as error:
                self._reject(flights, range(flights.n), PublishError(str(error)))
                return deque()
            self._collect()
            return spans

    def _reject(self, flights: FlightBatch, rows: range, error: PublishError) -> None:
        self.window.reject(flights, np.array(rows, np.int64), error, time.monotonic())
        self._collect()

    def _send_some(self, flights: FlightBatch, span: Span) -> int:
        """Number of flights of the span that have left the queue of what is to be sent."""
        n, start = self._loop.capacity(flights, span), span[0]
        if not n:
            return 0
        try:
            taken = self._loop.launch(flights, start, n)
        except Exception:  # noqa: BLE001 - whatever a bridge raises: the flights have failed, the runner goes on
            self._collect()
            return n
        if taken:
            rows = slice(start, start + taken)
            wall = self._clock.micros(flights.published[rows]) / 1e6
            self._callbacks.note_published(flights.context, rows, wall.tolist())
            self._collect()
            self._launched.set()
            self._loop.flush()
        return taken

    @contextmanager
    def _bridge_first(self) -> Iterator[None]:
        """The core lock, ahead of the flights runner."""
        self._sending.set()
        with self._core:
            self._sending.clear()
            yield

    # --- the flights runner ----------------------------------------------------------------------------------

    def fly(self) -> None:
        """Settle flights by the answers, and resend (MP-24, MP-36 to MP-43)."""
        while self.keep_going:
            if self._publish_done and self.draining and not self._open:
                break
            with self._core:
                if not self.keep_going:
                    break
                self._loop.resend()
                self._loop.flush()
                self._receive(_MAX_POLL if self.window.in_flight or not self.window.connected else 0.0)
                idle = not self.window.in_flight
            self._callbacks.deliver()
            if idle:
                self._launched.wait(self._poll_time)
                self._launched.clear()
            elif self._sending.is_set():
                time.sleep(0)  # let the publish runner have the bridge
        self.drained.set()

    def _receive(self, timeout: float) -> None:
        self._look_for_outage()  # first, so that a time-out says why
        polled = self._loop.receive(timeout)
        if self._collect() or polled:
            self._settled.set()

    def _look_for_outage(self) -> None:
        """Ask for the cause of a lasting silence, for the log and for time-outs."""
        now, outage = time.monotonic(), self._loop.outage
        self._loop.bridge_full |= self._unprepared  # what waits for the bridge is silence, too
        self._loop.outage_lasts_too_long(waiting=bool(self._open), now=now)
        self._reporter.report(now)
        self.window.silence = self._reporter.cause if outage.noticed else ""

    @property
    def outage_cause(self) -> str:
        return self._reporter.cause

    def _collect(self) -> bool:
        """Queue the notifications of settled flights; true if there were any. Under the core lock."""
        settled = self.window.take_settled()
        for flights, rows in settled:
            self._callbacks.note_settled(flights, rows)
            if flights.open == 0:
                self._open.pop(id(flights), None)
        return bool(settled)

    # --- the end ---------------------------------------------------------------------------------------------

    def settle_rest(self, why: str) -> None:
        """Settle every flight and future that is left as ``Stopped`` or ``NotPublished``; nothing is sent any more."""
        rest = self._queue.rest()
        with self._core:
            self.window.abandon(list(self._open.values()), Stopped(why), NotPublished(why), time.monotonic())
            self._collect()
            self.bridge.close()
        self._callbacks.deliver()
        for flight, future in rest:
            if future.running() or future.set_running_or_notify_cancel():
                future.set_exception(NotPublished(why))
            flight.publish_ack_future.set_exception(NotPublished(why))
        self.drained.set()
        self.wake()
