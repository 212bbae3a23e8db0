"""The window: unsettled flights, and the rules for sends and resends.

Pure: no thread, no clock, no socket. Inputs are values and ``now`` (monotonic seconds), outputs are values;
:class:`~mama_spark.publishing.window.send_loop.SendLoop` acts on them. Flights are columns: every operation works on a
run of flights that were opened together, a :class:`FlightBatch`.

A *token* names one send of one flight: an integer that only rises and is never reused. An acknowledgement of any send
settles its flight, a refusal settles only its own send; answers after the terminal event are only counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mama_spark.contracts.bridge import Ack, Acks, Refusals
from mama_spark.contracts.errors import AckTimeout, Backpressure, OutcomeUnknown, PublishError
from mama_spark.contracts.message import Int64s
from mama_spark.options.window_config import WindowConfig

from .flight import Transition, advance
from .flight_accounts import IN_FLIGHT, WAITING, FlightAccounts
from .flight_batch import FlightBatch, Rows, array_of, length_of
from .resend_queue import ResendQueue
from .retry import is_final
from .send_index import SendIndex, SendRange

#: After a pause only this many messages are sent until one of them is acknowledged: enough that one topic without a
#: stream does not stop the others, few enough that an outage does not cost a storm of refusals.
PROBE = 64


class BackpressureState:
    """Pauses the whole publisher, or makes its window smaller, after errors with a ``backpressure``.

    :ivar limit: flights that may be in flight: ``max_in_flight``, or fewer after an overload of the server
    :ivar level: consecutive pauses without an acknowledgement of a message sent since the last one began
    :ivar began: monotonic seconds at which the last pause began; ``until``: at which it ends
    """

    def __init__(self, max_in_flight: int) -> None:
        self.limit = max_in_flight
        self.level = 0
        self.began = self.until = -math.inf
        self._acked_since_growth = 0

    def concerns(self, sent_at: float, now: float) -> bool:
        """Whether a refused send begins another pause: a burst of refusals is one reason, not thousands."""
        return sent_at >= self.began and now >= self.until

    def pause(self, error: PublishError, now: float, backoff: float) -> None:
        self.level += 1
        self.began, self.until = now, now + backoff
        if error.backpressure is Backpressure.SHRINK_WINDOW:
            self.limit = max(1, self.limit // 2)
            self._acked_since_growth = 0

    def acknowledged(self, sent_at: float) -> None:
        if sent_at >= self.began:
            self.level = 0

    def reconnected(self, now: float) -> None:
        """End the pause: a new connection is tried at once."""
        self.until = min(self.until, now)

    def grow(self, acks: int, max_in_flight: int) -> None:
        """Give the window an eighth of its size back for each window of acknowledgements."""
        if self.limit < max_in_flight:
            self._acked_since_growth += acks
            if self._acked_since_growth >= self.limit:
                self._acked_since_growth = 0
                self.limit = min(max_in_flight, self.limit + max(1, self.limit // 8))


class Window(FlightAccounts):
    """Not thread-safe: one sender uses it.

    :ivar holding: the window is full and waits until ``refill_allowed_at`` (MP-34, MP-43)
    :ivar silence: cause of missing acknowledgements, for texts of time-outs; empty = unknown
    """

    def __init__(self, policy: WindowConfig) -> None:
        super().__init__()
        self.policy = policy
        self.holding = False
        self.connected = True
        self.silence = ""
        self._index = SendIndex(self.counters)
        self.resends = ResendQueue(policy)
        self._backpressure = BackpressureState(policy.max_in_flight)
        self._resend_cause: PublishError | None = None

    @property
    def refill_at(self) -> int:
        """A hold ends when this many flights or fewer are in flight (MP-05, MP-43)."""
        return min(self.policy.refill_allowed_at, self._backpressure.limit - 1)

    def answers_until_refill(self) -> int:
        """Number of answers after which new flights may go: worth waiting for."""
        if self.holding:
            return max(1, self.in_flight - self.refill_at)
        return max(1, self.in_flight // 4)

    @property
    def paused(self) -> bool:
        """The middleware made the whole publisher wait, and nothing sent since has been acknowledged."""
        return self._backpressure.level > 0

    def resends_in_doubt(self, now: float) -> list[tuple[FlightBatch, Int64s]]:
        """Due resends that may be stored already."""
        if not self._may_send(now) or (self.policy.ordered and self._index.unanswered()):
            return []
        found: dict[int, tuple[FlightBatch, list[Int64s]]] = {}
        for flights, rows in self.resends.due(now):
            old = rows[flights.doubt[rows]]
            if len(old):
                found.setdefault(id(flights), (flights, []))[1].append(old)
        return [
            (flights, np.concatenate(parts)) for flights, parts in found.values()
        ]  # a look costs much, a row little

    def hold(self, flights: FlightBatch, rows: Int64s, error: PublishError, until: float) -> None:
        """Put off due resends because of ``error``; other flights take their places in the window."""
        self._record_error(flights, rows, error)
        self.resends.hold(flights, rows, until)
        self._refill()

    def capacity(self, flights: FlightBatch, start: int, now: float) -> int:
        """Number of flights from ``start`` that may be launched now."""
        held, held_bytes = self.resends.held()
        free = self._backpressure.limit - self.in_flight + held
        if free <= 0 or self.holding or not self._may_send(now):
            return 0
        if self._probing():
            return 0
        if self.paused:
            free = min(free, PROBE)
        resend = self.resends.head()
        if resend is not None and (self.policy.ordered or resend.due <= now):
            return 0  # resends go first
        free = min(free, flights.n - start)
        if self.policy.max_bytes is not None and free > 0:
            budget = self.policy.max_bytes - self.bytes_in_flight + held_bytes
            upto = int(np.searchsorted(flights.ends, flights.ends[start] + budget, "right")) - 1
            free = min(free, max(upto - start, 1 if self.in_flight == 0 else 0))
        return free

    def launch(self, flights: FlightBatch, rows: Rows, now: float, begun: float | None = None) -> int:
        """The bridge took these queued flights under ``next_token`` ff.; returns the first token (MP-33).

        :param begun: when the call of the bridge began, in which answers may have come; None = now
        """
        flights.published[rows] = now if begun is None else begun
        self.in_flight += length_of(rows)
        self.bytes_in_flight += flights.bytes_of(rows)
        if self.in_flight - self.resends.held()[0] >= self._backpressure.limit:
            self.holding = True
        return self._sent(flights, rows, now)

    def due(self, now: float) -> Iterator[tuple[FlightBatch, Int64s]]:
        """Due resends, oldest first: runs of rows, each at most as many as may be sent. Call :meth:`relaunch` for rows
        that the bridge took; stop when it takes no more."""
        if self.resends.head() is None or not self._may_send(now):
            return
        if self.policy.ordered:
            if self._index.unanswered():
                return
            self.resends.merge()
        while (head := self.resends.head()) is not None and head.due <= now and not self._probing():
            yield head.flights, head.rows[:PROBE] if self.paused else head.rows
            before = len(head.rows)
            if self.resends.head() is head and (self.policy.ordered or len(head.rows) == before):
                return  # the bridge took none, or not all that must stay in front

    def relaunch(self, flights: FlightBatch, rows: Int64s, now: float, begun: float | None = None) -> int:
        """As :meth:`launch`, for resends that the bridge took."""
        self.counters.resends += len(rows)
        absent = rows[~flights.doubt[rows]]
        if len(absent):  # each send before this one was refused
            flights.not_stored_at(absent, now if begun is None else begun)
        return self._sent(flights, rows, now)

    def _sent(self, flights: FlightBatch, rows: Rows, now: float) -> int:
        flights.state[rows] = advance(flights.state[rows], Transition.SEND)
        n, first = length_of(rows), self.next_token
        self.next_token += n
        flights.token[rows] = np.arange(first, first + n)
        flights.first_token = min(flights.first_token, first)
        flights.sends[rows] += 1
        self.counters.sends += n
        self._index.add(SendRange(first, first + n, flights, rows, now))
        return first

    def _may_send(self, now: float) -> bool:
        return self.connected and now >= self._backpressure.until

    def _probing(self) -> bool:
        """Whether sends since the last pause are unanswered; their answers decide."""
        return self.paused and self._index.unanswered(self._backpressure.until)

    def acked(self, acks: Acks) -> None:
        """Settle flights by acknowledgements of any of their sends (MP-39); level ``NONE`` settles as ``published``."""
        tokens, sequences, duplicates = acks.tokens, acks.sequences, acks.duplicates
        if len(tokens) > 1 and not (tokens[1:] > tokens[:-1]).all():
            tokens, index = np.unique(tokens, return_index=True)
            self.counters.late += len(acks.tokens) - len(tokens)
            sequences = None if sequences is None else sequences[index]
            duplicates = None if duplicates is None else duplicates[index]
        stream = self._stream_index(acks.stream, acks.domain)
        step = Transition.SEND_UNACKNOWLEDGED if acks.level is Ack.NONE else Transition.ACK
        for sends, lo, hi in self._index.split(tokens):
            rows = sends.pick(tokens[lo:hi])
            flights = sends.flights
            state = flights.state[rows]
            live = (state == IN_FLIGHT) | (state == WAITING)
            seq = None if sequences is None else sequences[lo:hi]
            dup = None if duplicates is None else duplicates[lo:hi]
            if not live.all():
                self.counters.late += int((~live).sum())
                rows = array_of(rows)[live]
                if not len(rows):
                    continue
                seq = None if seq is None else seq[live]
                dup = None if dup is None else dup[live]
            if seq is not None:
                flights.sequence[rows] = seq
            if dup is not None:
                flights.duplicate[rows] = dup
                self.counters.duplicates += int(dup.sum())
            flights.stream[rows] = stream
            self._backpressure.acknowledged(sends.at)
            self._settle(flights, rows, step, acks.at)
        self._backpressure.grow(len(tokens), self.policy.max_in_flight)

    def refused(self, refusals: Refusals) -> None:
        """Apply refusals, or unknown outcomes, of one cause (MP-40)."""
        tokens = np.unique(refusals.tokens)
        for sends, lo, hi in self._index.split(tokens):
            rows = array_of(sends.pick(tokens[lo:hi]))
            flights = sends.flights
            mine = (flights.token[rows] == tokens[lo:hi]) & (flights.state[rows] == IN_FLIGHT)
            self.counters.late += int((~mine).sum())
            rows = rows[mine]
            if len(rows):
                self._fail_send(flights, rows, refusals.error, refusals.at, sends.at)

    def disconnected(self, info: str, now: float) -> None:
        """Connection lost: unanswered sends have unknown outcomes; nothing is sent until :meth:`reconnected`."""
        self.connected = False
        error = OutcomeUnknown(info)
        for sends in self._index:
            rows = array_of(sends.rows)[self._index.live(sends)]
            # flights that must not be resent stay in flight, and end as timeouts
            rows = rows[self.resends.allowed(sends.flights, rows, error, now)]
            if len(rows):
                self._record_error(sends.flights, rows, error)
                self.resends.add(sends.flights, rows, error, now, self._backpressure.until)

    def reconnected(self, now: float) -> None:
        """Connection back: waiting flights may be sent, also during a pause."""
        self.connected = True
        self._backpressure.reconnected(now)

    def expire(self, now: float) -> None:
        """Time out sends without an acknowledgement, and settle flights whose retry deadline has passed (MP-41)."""
        timeout = self.policy.ack_timeout or self.policy.wait_timeout
        for sends in self._index.expired(now, timeout):
            rows = array_of(sends.rows)[self._index.live(sends)]
            if len(rows):
                waited = f"no acknowledgement within {timeout:g} s"
                error = AckTimeout(f"{waited}: {self.silence}" if self.silence else waited)
                self._fail_send(sends.flights, rows, error, now, sends.at)
        for flights, rows in self.resends.expire(now):
            self._settle_by_last_error(flights, rows, now)

    def suspend_deadlines(self, suspend: bool, now: float) -> None:
        """While nothing is stored: no retry deadlines, and only a few sends until one is acknowledged."""
        if suspend is self.resends.deadlines_suspended:
            return
        if not suspend:
            self.resends.resume_deadlines(now)
            return
        self.resends.suspend_deadlines()
        self._backpressure.pause(OutcomeUnknown("nothing is acknowledged"), now, 0.0)

    def wake_at(self) -> float | None:
        """Time at which :meth:`expire`, :meth:`due` or :meth:`capacity` must be called again; None = only after an
        event. A past time: a send is due now, or the bridge did not take it."""
        oldest = self._index.oldest()
        times = [] if oldest is None else [oldest.at + (self.policy.ack_timeout or self.policy.wait_timeout)]
        resend = self.resends.head()
        if resend is not None:
            times.append(self.resends.next_deadline)
        if self.connected and not self._probing():  # else only an answer or a timeout changes anything
            if resend is not None and not (self.policy.ordered and self._index.unanswered()):
                times.append(max(resend.due, self._backpressure.until))
            elif self.paused:
                times.append(self._backpressure.until)
        return min(times, default=None)

    def take_resend_cause(self) -> PublishError | None:
        """The last refusal or timeout since the last call that requires a resend."""
        cause, self._resend_cause = self._resend_cause, None
        return cause

    def _fail_send(self, flights: FlightBatch, rows: Int64s, error: PublishError, now: float, sent_at: float) -> None:
        if error.backpressure is not Backpressure.NONE and self._backpressure.concerns(sent_at, now):
            retry = self.policy.retry
            backoff = retry.backoff(self._backpressure.level + 1) if retry else 0.0
            self._backpressure.pause(error, now, backoff)
            self.counters.holds += 1
        resend = self.resends.allowed(flights, rows, error, now)
        self._record_error(flights, rows, error)
        if resend.any():
            self._resend_cause = error
            self.resends.add(flights, rows[resend], error, now, self._backpressure.until)
        if not resend.all():
            last = rows[~resend]
            if not is_final(error):
                self.last_expiry = error
            self._settle(flights, last, Transition.FAIL if error.answered else Transition.EXPIRE, now)

    def _settle(self, flights: FlightBatch, rows: Rows, step: Transition, now: float) -> None:
        super()._settle(flights, rows, step, now)
        self._refill()

    def _refill(self) -> None:
        if self.holding and self.in_flight - self.resends.held()[0] <= self.refill_at:
            self.holding = False
