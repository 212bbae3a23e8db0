"""Publishes batches of messages in columns, on a thread of its own; Spark's sink writes with it.

All calls to the bridge but ``close`` (and ``open``, unless it is left to the publisher) come from the publisher's
thread, so that acknowledgements, timeouts and resends go on while the caller is busy in Spark's row iterator. The next
:meth:`BatchPublisher.put`, or ``drain``, raises an error of the bridge.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..contracts.backoff import RECONNECT
from ..contracts.bridge import PublisherBridge
from ..contracts.errors import (
    BackgroundTaskFailed,
    ClientClosed,
    ConfigError,
    NoResponders,
    NotPublished,
    OutcomeUnknown,
    PublishError,
    Stopped,
    Unavailable,
)
from ..contracts.message import MessageBatch
from ..options.window_config import WindowConfig
from .batch_config import BatchConfig, BatchHooks, OnOutage, SendGuard
from .outage_reporter import OutageReporter
from .window.flight import FlightState
from .window.flight_batch import FlightBatch, FlightCounters, StoredFlights
from .window.outage_detector import OutageDetector
from .window.rate_limiter import RateLimiter
from .window.send_loop import SendLoop, Span
from .window.window import Window

logger = logging.getLogger("mama_spark")

_RETRY_FULL_BRIDGE = 0.005  #: seconds between tries of messages that the bridge did not take
_RETRY_LATER = 0.05  #: the same, while the lease is over or the bridge cannot prepare
_MAX_WAIT_FOR_ANSWERS = 0.02  #: seconds of a wait that a new batch cannot interrupt
_DEFAULTS, _NO_HOOKS = BatchConfig(), BatchHooks()


@dataclass(slots=True)
class _QueuedBatch:
    """Flights that wait to be sent.

    :ivar rejected: rows that cannot be sent, with the reason; ``stored``: rows that are stored already
    :ivar spans: rows still to be sent; None = not prepared yet
    """

    flights: FlightBatch
    rejected: Sequence[tuple[int, PublishError]]
    stored: Sequence[StoredFlights] = ()
    spans: deque[Span] | None = None


class BatchPublisher:
    """Takes Arrow batches and reports settled columns; no object a message.

    :param bridge: open, or opened by ``hooks.open_bridge``; it stays open
    :param on_finished: called on the publisher's thread with every settled batch, whose messages and context are
        dropped afterwards, to free memory. An exception in it ends the publisher.
    :param guard: asked before sends; None = all sends are allowed
    """

    def __init__(
        self,
        bridge: PublisherBridge,
        policy: WindowConfig,
        *,
        on_finished: Callable[[FlightBatch], None],
        config: BatchConfig = _DEFAULTS,
        hooks: BatchHooks = _NO_HOOKS,
        guard: SendGuard | None = None,
    ) -> None:
        self.bridge = bridge
        self._config, self._hooks, self._guard = config, hooks, guard
        self._configure(policy)
        self._on_finished = on_finished
        self._limiter: RateLimiter | None = None
        name = f"mama-publisher-{config.name}".removesuffix("-")
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._prepare_again_at = -math.inf
        self._changed = threading.Condition()
        self._queue: deque[_QueuedBatch] = deque()
        self._open: dict[int, FlightBatch] = {}
        self._held_back = False  #: queued messages were tried, and wait for answers or for the bridge
        self._draining = self._stopping = False
        self._opened, self._ended = threading.Event(), threading.Event()
        self._death: BaseException | None = None

    def _configure(self, policy: WindowConfig) -> None:
        self.window = Window(policy)
        on_outage, timeout = self._config.on_outage, self._config.outage_timeout
        self.window.resends.patient = on_outage.waits
        timeout = math.inf if on_outage.waits else policy.longest_silence if timeout is None else timeout
        self._loop = SendLoop(
            self.bridge, self.window, on_event=self._hooks.on_event,
            outage=OutageDetector(timeout, policy.wait_timeout), check=self._guard,
            outgoing=self._hooks.outgoing, log_prefix=self._config.log_prefix,
        )  # fmt: skip
        self._reporter = OutageReporter(self.bridge, self._loop, on_outage.at_last(timeout), self._config.log_prefix)

    @property
    def outage_cause(self) -> str:
        """Cause of the last outage, in which no message was acknowledged; empty if there was none."""
        return self._reporter.cause

    @property
    def counters(self) -> FlightCounters:
        return self.window.counters

    @property
    def waits_for(self) -> str:
        """Text that names the cause of the present wait; empty = it does not wait. Any thread may ask."""
        if self._hooks.open_bridge is not None and not self._opened.is_set():
            return "the connection to the middleware"
        outage = self._loop.outage
        if outage.noticed:
            return f"acknowledgements for {outage.silent:.0f} s: {self.outage_cause or 'no answer comes'}"
        if self.window.holding:
            return "acknowledgements"
        return "" if self._queue or self.window.in_flight or self._draining else "rows from Spark"

    # --- the caller's thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; returns when the bridge is open.

        :raises Exception: as ``open_bridge``
        """
        self._thread.start()
        if self._hooks.open_bridge is not None:
            self._opened.wait()
            if self._death is not None:
                raise self._death

    def put(
        self,
        batch: MessageBatch,
        rejected: Sequence[tuple[int, PublishError]] = (),
        context: object = None,
        stored: Sequence[StoredFlights] = (),
    ) -> FlightBatch:
        """Queue messages; blocks while :attr:`.BatchConfig.max_queued` batches wait.

        :param rejected: rows that cannot be sent, ascending, with the reason: they fail without being sent
        :param stored: rows that are stored already: they are acknowledged without being sent
        :param context: becomes :attr:`.FlightBatch.context`
        :returns: the flights, which the publisher's thread goes on changing until ``on_finished`` gets them
        :raises BackgroundTaskFailed: the publisher ended with an error, the cause; a ConfigError is raised as itself
        :raises ClientClosed: drained or stopped
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) < self._config.max_queued or self._closed)
            self.check()
            if self._closed:
                raise ClientClosed("the publisher was drained or stopped")
            flights = self.window.open(len(batch), batch, context)
            self._open[id(flights)] = flights
            self._queue.append(_QueuedBatch(flights, rejected, stored))
            self._changed.notify_all()
        return flights

    def wait_settled(self) -> None:
        """Wait until every batch so far was given to ``on_finished``; more may follow.

        :raises BackgroundTaskFailed: as :meth:`put`
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._open or self._ended.is_set())
        self.check()

    def drain(self) -> None:
        """Take no more batches; wait until every flight is settled and every batch was given to ``on_finished``.

        :raises BackgroundTaskFailed: as :meth:`put`
        :raises ClientClosed: :meth:`stop` was called meanwhile
        """
        with self._changed:
            if self._thread.ident is None:
                raise ClientClosed("the publisher was never started")
            self._draining = True
            self._changed.notify_all()
        self._ended.wait()
        self.check()
        if self._stopping:
            raise ClientClosed("the publisher was stopped while it drained")

    def check(self) -> None:
        """Raise the error that ended the publisher, as :meth:`put`, for callers that do not wait in :meth:`drain`."""
        if isinstance(self._death, ConfigError):
            raise self._death
        if self._death is not None:
            raise BackgroundTaskFailed(f"the publisher ended: {self._death}") from self._death

    def stop(self) -> None:
        """Settle all open flights as failed (``Stopped``, or ``NotPublished`` if never sent) and end the thread."""
        with self._changed:
            if not self._ended.is_set():
                self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def _closed(self) -> bool:
        return self._draining or self._stopping or self._ended.is_set()

    # --- the publisher's thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._hooks.open_bridge is not None:
                self._configure(self._hooks.open_bridge())
                self._opened.set()
            now = self._loop.last_send = time.monotonic()
            self._limiter = RateLimiter(self._config.rate, now) if self._config.rate else None
            while not self._stopping and not (self._draining and not self._open):
                self._round()
            if self._stopping:
                self._abandon("the publisher was stopped")
                self._finish()
            if self._guard is not None and not self.counters.in_doubt:
                self._guard.all_answered()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiters must get it
            self._die(error)
        finally:
            with self._changed:
                self._ended.set()
                self._changed.notify_all()
            self._opened.set()

    def _round(self) -> None:
        if self._may_send():
            self._loop.resend()
            self._launch()
        else:
            self._loop.bridge_full = True
            if self._guard is not None and self._guard.expired:
                self.bridge.abort_unsent("the lease of the partition is over")
        self._finish()
        now = time.monotonic()
        no_more = not self._queue and (self._draining or self._hooks.awaited())
        if no_more or now - self._loop.last_send >= self._config.flush_after:
            self._loop.flush()
        self._receive(now)
        if (cause := self.window.take_resend_cause()) is not None and self._hooks.on_resend is not None:
            self._hooks.on_resend(cause)
        if self._config.on_outage.ends_at_gap and (late := self.window.last_expiry) is not None:
            raise Unavailable(f"a message was not stored in time, and nothing may be stored behind it: {late}")
        self._end_outage(now)

    def _may_send(self) -> bool:
        return self._guard is None or self._guard.may_send()

    def _launch(self) -> None:
        self._held_back = True
        while self._queue and not self._loop.bridge_full:
            queued = self._queue[0]
            queued.spans = queued.spans if queued.spans is not None else self._prepare(queued)
            if queued.spans is None or not self._may_send():  # that may have changed meanwhile
                return
            if not self._loop.launch_spans(queued.flights, queued.spans, self._limiter):
                return
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()
        self._held_back = self._loop.bridge_full

    def _prepare(self, queued: _QueuedBatch) -> deque[Span] | None:
        """The rows to send; None = the bridge is unavailable, and ``on_outage`` waits."""
        now = time.monotonic()
        if now < self._prepare_again_at:
            self._loop.bridge_full = True
            return None
        try:
            spans = self._loop.prepare(queued.flights, dict(queued.rejected), queued.stored)
        except Unavailable as error:
            if not self._config.on_outage.waits:
                raise
            self._loop.last_cause = str(error)
            self._loop.refused = self._loop.bridge_full = True
            self._prepare_again_at = now + RECONNECT.most
            return None
        if self._guard is not None and self._guard.unfenced:
            queued.flights.send_anyway(np.arange(queued.flights.n))
        return spans

    def _finish(self) -> None:
        """Report finished batches, also those without flights or with only rejected ones, which no poll returns."""
        touched = {id(flights): flights for flights, _ in self.window.take_settled()}
        with self._changed:
            waiting = {id(queued.flights) for queued in self._queue}
            empty = [flights for flights in self._open.values() if flights.n == 0 and id(flights) not in waiting]
        for flights in [*touched.values(), *empty]:
            if flights.open == 0 and id(flights) in self._open:
                try:
                    self._on_finished(flights)
                finally:
                    with self._changed:
                        del self._open[id(flights)]
                        self._changed.notify_all()
                flights.messages = flights.context = None

    def _receive(self, now: float) -> None:
        window = self.window
        idle = not window.in_flight and not self._queue and window.connected
        if idle:  # nothing is in flight; events of the bridge are polled once a poll_time
            pause = self._config.poll_time
            if self._loop.unflushed:
                pause = max(0.0, min(pause, self._loop.last_send + self._config.flush_after - now))
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._closed, pause)
        if idle or (self._queue and not (self._held_back or self._loop.bridge_full)):  # it came after all were sent
            self._loop.receive(0.0)
            return
        longest = self._config.poll_time
        if not (self._draining or self._queue):  # a batch may come
            longest = min(longest, _MAX_WAIT_FOR_ANSWERS)
        until = [now + longest]
        wake = window.wake_at()
        if wake is not None:
            until.append(max(wake, now + _RETRY_FULL_BRIDGE))  # due sends were just tried
        if self._loop.unflushed:
            until.append(self._loop.last_send + self._config.flush_after)
        if self._limiter is not None and self._queue:
            until.append(max(self._limiter.wake_at(now), now + 0.001))
        if self._loop.bridge_full:
            soon = self._may_send() and now >= self._prepare_again_at
            until = [now + (_RETRY_FULL_BRIDGE if soon else _RETRY_LATER)]
        want = window.answers_until_refill() if self._queue else max(1, window.in_flight)
        self._loop.receive(max(0.0, min(until) - now), want)

    def _end_outage(self, now: float) -> None:
        """Give up all messages when an outage lasts too long; then new ones, but for probes that show its end."""
        declared = self._loop.outage.declared
        ended = self._loop.outage_lasts_too_long(bool(self._queue), now)
        self._reporter.report(now)
        if self._config.on_outage.waits:
            self.window.suspend_deadlines(self._loop.outage.noticed, now)
        if not ended:
            return
        why = f"nothing was acknowledged for {self._loop.outage.timeout:g} s: {self._reporter.cause}"
        if not declared:
            with self._changed:
                batches = list(self._open.values())
            self.window.give_up(batches, OutcomeUnknown(why), now)
        if self._config.on_outage is not OnOutage.FAIL_ROWS:
            raise Unavailable(why)
        self._fail_queued(f"not sent, {why}", now)

    def _fail_queued(self, why: str, now: float) -> None:
        for queued in self._take_queue(now):
            rows = np.flatnonzero(queued.flights.state == FlightState.QUEUED)
            rejected, error = dict(queued.rejected), NoResponders(why)
            self.window.reject(queued.flights, rows, [rejected.get(row, error) for row in rows.tolist()], now)

    def _take_queue(self, now: float) -> list[_QueuedBatch]:
        with self._changed:
            queue, self._queue = list(self._queue), deque()
            self._changed.notify_all()
        for queued in queue:
            if queued.spans is None:  # else its preparation has acknowledged them
                for some in queued.stored:
                    self.window.settle_stored(queued.flights, some, now)
        return queue

    def _abandon(self, why: str) -> None:
        now = time.monotonic()
        with self._changed:
            batches = list(self._open.values())
        self._take_queue(now)
        self.window.abandon(batches, Stopped(why), NotPublished(why), now)

    def _die(self, error: BaseException) -> None:
        with self._changed:
            self._death = error
        try:
            self._abandon(f"the publisher ended: {error}")
            self._finish()
        except Exception:
            logger.exception("while the publisher ended because of %r", error)
