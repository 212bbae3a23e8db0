"""The steps by which every sender publishes through a bridge: prepare, launch, resend, flush, receive.

A :class:`SendLoop` asks the window for messages to send, calls the bridge, and gives the window the answers.
Its caller decides when, and how long to wait.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pyarrow as pa

from mama_spark.contracts.bridge import Ack, BridgeEvent, EventKind, PollResult, PublisherBridge, Refusals
from mama_spark.contracts.errors import OutcomeUnknown, PublishError, Stopped, Unavailable
from mama_spark.contracts.message import Bools, Int64s, MessageBatch
from mama_spark.contracts.standstill import stood_still

from .flight_batch import FlightBatch, StoredFlights, messages_of
from .outage_detector import OutageDetector
from .rate_limiter import RateLimiter
from .retry import is_final
from .window import PROBE, Window

logger = logging.getLogger("mama_spark")

MAX_SEND_MESSAGES = 2048  #: messages in one call of the bridge, at most
MAX_SEND_BYTES = 4 << 20  #: payload bytes in one call, at most; or one message

#: Rows ``[start, end)``.
Span = tuple[int, int]


#: Seconds between two questions for stored messages, after one without an answer.
_ASK_AGAIN = 0.5
_HOLD = 0.2  #: seconds between two looks whether a copy may still be stored


class StoredCheck(Protocol):
    """Finds stored messages whose acknowledgements are lost, for writes that store each message once."""

    @property
    def patience(self) -> float:
        """Seconds that flights wait while copies may still be stored; then they are looked for, sent, and marked."""

    def stored(self, batches: Sequence[MessageBatch], since: float) -> list[list[StoredFlights]]:
        """The stored rows of each batch, none older than ``since`` (monotonic seconds). Unavailable: no answer."""


class SendLoop:
    """One bridge and one window. Not thread-safe: one thread calls it at a time.

    :param on_event: called with each transport event, before the window
    :param outage: None = no outage is declared; the cause is asked for after ``wait_timeout``
    :param check: finds stored messages before a resend, once all their copies are stored or lost; None = no search
    :param outgoing: adds headers to messages for the bridge; None = sent as they are
    :param log_prefix: prefix of log lines about transport events
    :param clock: monotonic seconds
    :ivar bridge_full: the bridge did not take all messages of the last call
    :ivar unflushed: messages were sent since the last flush; ``last_send``: monotonic seconds
    :ivar last_cause: text of the last refusal or disconnection
    :ivar refused: a message was refused since the last progress
    """

    def __init__(
        self,
        bridge: PublisherBridge,
        window: Window,
        *,
        on_event: Callable[[BridgeEvent], None] | None = None,
        outage: OutageDetector | None = None,
        check: StoredCheck | None = None,
        outgoing: Callable[[MessageBatch], MessageBatch] | None = None,
        log_prefix: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bridge, self.window, self.clock = bridge, window, clock
        self._outgoing, self._log_prefix = outgoing or _unchanged, log_prefix
        self.outage = outage or OutageDetector(math.inf, window.policy.wait_timeout)
        self._on_event, self._check, self._ask_at = on_event, check, -math.inf
        self.bridge_full = self.unflushed = self.refused = False
        self.last_send = 0.0
        self.last_cause = ""

    def prepare(
        self,
        flights: FlightBatch,
        rejected: Mapping[int, PublishError] = MappingProxyType({}),
        stored: Sequence[StoredFlights] = (),
    ) -> deque[Span]:
        """Check queued flights in the bridge, and fail bad ones; returns the spans of the others.

        :raises ConfigError, Unavailable: see :meth:`~mama_spark.contracts.bridge.PublisherBridge.prepare`
        """
        if not flights.n:
            return deque()
        result = self.bridge.prepare(self._outgoing(messages_of(flights)))
        flights.non_retriable = result.non_retriable
        wrong = dict(result.rejected)
        wrong.update(rejected)
        good = np.ones(flights.n, np.bool_)
        for some in stored:
            self.window.settle_stored(flights, some, self.clock())
            good[some.rows] = False
        rows = np.array(sorted(row for row in wrong if good[row]), np.int64)
        if len(rows):
            self.window.reject(flights, rows, [wrong[row] for row in rows.tolist()], self.clock())
            good[rows] = False
        return spans_of(good)

    def capacity(self, flights: FlightBatch, span: Span, most: int = MAX_SEND_MESSAGES) -> int:
        """Number of flights from the start of the span that one call of :meth:`launch` may send."""
        start, end = span
        n = min(self.window.capacity(flights, start, self.clock()), end - start, most, MAX_SEND_MESSAGES)
        if self.outage.declared:
            n = min(n, PROBE - self.window.in_flight)  # they show the end of the outage
        return min(n, _within_bytes(flights.ends[start + 1 : start + n + 1] - flights.ends[start])) if n > 0 else 0

    def launch(self, flights: FlightBatch, start: int, n: int) -> int:
        """Send ``n`` queued flights; returns how many the bridge took."""
        outgoing, begun = self._outgoing(messages_of(flights).slice(start, n)), self.clock()
        try:
            taken = self.bridge.send(outgoing, self.window.next_token)
        except Exception as error:
            first = self.window.launch(flights, slice(start, start + n), self.clock(), begun)
            self._raised(first, n, error)
            raise
        if taken:
            rows, now = slice(start, start + taken), self._noted(begun)
            if self.bridge.capabilities.ack is Ack.NONE:
                self.window.send_unacknowledged(flights, rows, begun)
                self._progressed()
            else:
                self.window.launch(flights, rows, now, begun)
            self._sent()
        self.bridge_full = taken < n
        return taken

    def launch_spans(self, flights: FlightBatch, spans: deque[Span], limiter: RateLimiter | None = None) -> bool:
        """Send queued flights and remove them from ``spans``; true if all were sent."""
        while spans:
            start, end = spans[0]
            most = MAX_SEND_MESSAGES if limiter is None else limiter.allowance(self.clock())
            n = self.capacity(flights, spans[0], most)
            taken = self.launch(flights, start, n) if n else 0
            if limiter is not None:
                limiter.spend(taken)
            spans[0] = (start + taken, end)
            if not n or taken < n:
                return False
            if start + taken == end:
                spans.popleft()
        return True

    def resend(self) -> None:
        self.bridge_full, now = False, self.clock()
        if self._check is not None and self.window.resends and not self._find_stored(self._check, now):
            return
        for flights, due in self.window.due(now):
            rows = _one_call(flights, due)
            outgoing, begun = self._outgoing(messages_of(flights).take(rows)), self.clock()
            try:
                taken = self.bridge.send(outgoing, self.window.next_token)
            except Exception as error:
                self._raised(self.window.relaunch(flights, rows, self.clock(), begun), len(rows), error)
                raise
            if taken:
                self.window.relaunch(flights, rows[:taken], self._noted(begun), begun)
                self._sent()
            if taken < len(rows):
                self.bridge_full = True
                return

    def _raised(self, first: int, n: int, error: Exception) -> None:
        """A bridge that raised may have taken any of the messages: their tokens are used up."""
        unknown = Stopped(f"{type(error).__name__}: {error}")
        unknown.__cause__ = error
        self.window.refused(Refusals(np.arange(first, first + n), unknown, self.clock()))

    def _find_stored(self, check: StoredCheck, now: float) -> bool:
        """Settle due resends that are stored, so that one copy of a message at a time is in transit, whatever ids the
        middleware remembers. False = send nothing in this call: a lease may end during a look, or the look had no
        answer."""
        in_doubt = self.window.resends_in_doubt(now)
        if not in_doubt:
            return True
        self.window.resends.put_off_deadlines(now)
        if now < self._ask_at:
            self.bridge_full = True
            return False
        askable = [(flights, self._not_on_the_way(flights, rows, now, check.patience)) for flights, rows in in_doubt]
        askable = [(flights, rows) for flights, rows in askable if len(rows)]
        if not askable:
            return True
        self.bridge_full = True
        since = min(float(flights.stored_from(rows).min()) for flights, rows in askable)
        try:
            found = check.stored([messages_of(flights).take(rows) for flights, rows in askable], since)
        except Unavailable as e:
            self.last_cause, self._ask_at = str(e), self.clock() + _ASK_AGAIN
            return False
        for (flights, rows), stored in zip(askable, found, strict=True):
            flights.not_stored_at(rows, self.clock())
            flights.doubt[rows] = False
            for some in stored:
                here = StoredFlights(some.stream, rows[some.rows], some.sequences)
                self.window.settle_stored(flights, here, self.clock())
                self._progressed()
        return False

    def _not_on_the_way(self, flights: FlightBatch, rows: Int64s, now: float, patience: float) -> Int64s:
        """Rows without a copy in transit, or past ``patience``; the others are held."""
        there = self.bridge.on_the_way(flights.token[rows], messages_of(flights).topics.take(pa.array(rows)))
        if there is None:
            return rows
        if now - there.since >= patience:
            flights.send_anyway(rows[there.rows])
            return rows
        self.last_cause = there.why
        self.window.hold(flights, rows[there.rows], OutcomeUnknown(there.why), now + _HOLD)
        return rows[~there.rows]

    def flush(self) -> None:
        """Make the middleware answer all sends since the last call."""
        if self.unflushed:
            self.unflushed = False
            self.bridge.flush()

    def _sent(self) -> None:
        self.last_send = self.clock()
        self.unflushed = True

    def receive(self, timeout: float, want: int = 1) -> PollResult:
        """Poll the bridge, apply the answers, and time out sends that were overdue at the call.

        :raises Unavailable: the connection was closed for good
        """
        asked = self.clock()
        polled = self.bridge.poll(timeout, want)
        self._noted(asked, timeout)
        self.apply(polled)
        self.window.expire(asked)
        return polled

    def _noted(self, since: float, meant: float = 0.0) -> float:
        """Time after a call of the bridge; retry deadlines restart if the process stood still in it."""
        now = self.clock()
        if stood_still(now - since, meant) and not self.window.resends.deadlines_suspended:
            self.window.resends.resume_deadlines(now)
        return now

    def apply(self, polled: PollResult) -> None:
        """Apply the result of a poll to the window. Unavailable: the connection was closed for good."""
        for acks in polled.acks:
            self.window.acked(acks)
        for refusals in polled.refusals:
            self.last_cause, self.refused = str(refusals.error), True
            self.window.refused(refusals)
        if polled.acks or any(is_final(refusals.error) for refusals in polled.refusals):
            self._progressed()
        for event in polled.events:
            self._apply_event(event)

    def _progressed(self) -> None:
        self.outage.progressed()
        self.refused = False

    def _apply_event(self, event: BridgeEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)
        if event.kind is EventKind.DISCONNECTED:
            self.last_cause = event.info
            self.window.disconnected(event.info, event.at)
        elif event.kind is EventKind.RECONNECTED:
            self.window.reconnected(event.at)
            self.outage.reconnected()
        elif event.kind is EventKind.CLOSED:
            raise Unavailable(f"the connection was closed: {event.info}") from event.error
        what = "" if event.kind is EventKind.WARNING else f"{event.kind.value}: "
        topic = f" (topic {event.topic})" if event.topic else ""
        logger.warning("%s%s%s%s", self._log_prefix, what, event.info, topic)

    def outage_lasts_too_long(self, waiting: bool, now: float) -> bool:
        """Whether to give up unsettled flights; ``waiting``: messages wait to be sent."""
        window = self.window
        blocked = waiting and (not window.connected or window.paused or self.bridge_full)
        return self.outage.check(blocked, window.in_flight, now, queued=waiting)


def spans_of(good: Bools) -> deque[Span]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], good, [False])).astype(np.int8)))
    return deque(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _unchanged(batch: MessageBatch) -> MessageBatch:
    return batch


def _one_call(flights: FlightBatch, rows: Int64s) -> Int64s:
    rows = rows[:MAX_SEND_MESSAGES]
    return rows[: _within_bytes(np.cumsum(flights.ends[rows + 1] - flights.ends[rows]))]


def _within_bytes(totals: Int64s) -> int:
    """Number of messages in one call; ``totals``: payload bytes of the first, the first two, ..."""
    return max(1, int(np.searchsorted(totals, MAX_SEND_BYTES, "right")))
