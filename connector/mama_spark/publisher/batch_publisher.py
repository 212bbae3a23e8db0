"""The pump: a thread that obeys the window, and the batch face of the sink.

All calls to the bridge after ``open`` and before ``close`` come from the pump's thread, ``prepare`` included, so that
acknowledgements, timeouts and resends go on while the caller is busy elsewhere (in Spark's row iterator). What
``prepare`` or the bridge raises therefore comes out of the next :meth:`BatchPublisher.put`, or of ``drain``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..bridge import Ack, BridgeEvent, EventKind, PollResult, PublisherBridge
from ..errors import (
    BackgroundTaskFailed,
    ClientClosed,
    ConfigError,
    NoResponders,
    NotPublished,
    PublishError,
    Stopped,
    Unavailable,
)
from ..message import Bools, MessageBatch
from ..options.window import WindowConfig
from ..sending.flight import FlightState
from ..sending.flight_batch import FlightBatch, FlightCounters
from ..sending.window import Window
from .rate_limiter import RateLimiter

log = logging.getLogger("mama_spark")

CHUNK_MESSAGES = 2048  #: at most so many messages a call of the bridge
CHUNK_BYTES = 4 << 20  #: at most so many payload bytes a call, or one message
BATCHES_WAITING = 2  #: put blocks while so many batches wait
_TAKES_NOTHING = 0.005  #: seconds between tries of what the bridge did not take
_LISTEN = 0.02  #: longest wait for answers while a new batch may come, which cannot interrupt it


@dataclass(slots=True)
class BatchContext:
    """``FlightBatch.tag``: the messages of the block, and what the caller gave to find it again."""

    batch: MessageBatch
    tag: object


@dataclass(slots=True)
class _Job:
    """A block on its way into the window: ``runs`` are its spans of good rows, ``at`` the next row to go."""

    block: FlightBatch
    batch: MessageBatch
    bad: Sequence[tuple[int, PublishError]]
    runs: deque[tuple[int, int]] = field(default_factory=deque)
    prepared: bool = False


class BatchPublisher:
    """Arrow batches in, settled columns out; no object a message.

    :param bridge: open; it stays open
    :param on_finished: called on the pump's thread with every block whose flights are all settled; the block's ``tag``
        is dropped afterwards, so that its messages can be freed. An exception in it ends the pump.
    :param rate: new messages a second; None = no limit
    :param flush_after: seconds without a send after which the middleware is asked to answer for what it has
    :param poll_time: longest wait in seconds (MP-07)
    :param patience: seconds without an acknowledgement, while messages wait and the middleware takes nothing, after
        which the pump gives up with :class:`Unavailable`. None = the retry deadline, or else the ``wait_timeout``
    :param survive_outage: do not give up then: fail what waits, and what comes, until the middleware takes messages
        again
    :param on_event: told of what happens to the transport, on the pump's thread, before the pump acts on it
    :param on_trouble: told why messages must be sent again, at most once a round of the pump, on its thread
    """

    def __init__(
        self,
        bridge: PublisherBridge,
        policy: WindowConfig,
        *,
        on_finished: Callable[[FlightBatch], None],
        rate: float | None = None,
        flush_after: float = 0.2,
        poll_time: float = 0.1,
        name: str = "",
        patience: float | None = None,
        survive_outage: bool = False,
        on_event: Callable[[BridgeEvent], None] | None = None,
        on_trouble: Callable[[PublishError], None] | None = None,
    ) -> None:
        self.bridge = bridge
        self.window = Window(policy)
        self.counters: FlightCounters = self.window.counters
        self._on_finished, self._on_event, self._on_trouble = on_finished, on_event, on_trouble
        self._rate = rate
        self._limiter: RateLimiter | None = None
        self._flush_after = flush_after
        self._poll_time = poll_time
        deadline = policy.retry.deadline if policy.retry else None
        self._patience = patience if patience is not None else deadline or policy.wait_timeout
        self._thread = threading.Thread(
            target=self._run, name=f"mama-pump-{name}" if name else "mama-pump", daemon=True
        )
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._open: dict[int, FlightBatch] = {}
        self._draining = self._stopping = False
        self._ended = threading.Event()
        self._death: BaseException | None = None
        self._last_send = 0.0
        self._unflushed = False
        self._stuck_since: float | None = None
        self._survive_outage, self._outage = survive_outage, False
        self._last_trouble = ""
        self._bridge_full = False

    # --- the caller's thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. The bridge must be open."""
        self._thread.start()

    def put(self, batch: MessageBatch, bad: Sequence[tuple[int, PublishError]] = (), tag: object = None) -> FlightBatch:
        """Hand over messages; blocks while two batches wait.

        :param bad: rows that cannot be sent, ascending, with the reason: they fail without being sent
        :returns: the block, which the pump's thread goes on changing until ``on_finished`` gets it
        :raises BackgroundTaskFailed: the pump ended with an error, the cause; a :class:`ConfigError` is raised as
            itself
        :raises ClientClosed: drained or stopped
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._jobs) < BATCHES_WAITING or self._closed)
            self._raise_death()
            if self._closed:
                raise ClientClosed("the publisher was drained or stopped")
            block = self.window.open(len(batch), tag=BatchContext(batch, tag), sizes=batch.sizes())
            self._open[id(block)] = block
            self._jobs.append(_Job(block, batch, bad))
            self._changed.notify_all()
        return block

    def drain(self) -> None:
        """No more batches; returns when every flight is settled and every block was given to ``on_finished``.

        :raises BackgroundTaskFailed: as :meth:`put`
        :raises ClientClosed: somebody called :meth:`stop` meanwhile
        """
        with self._changed:
            if self._thread.ident is None:
                raise ClientClosed("the publisher was never started")
            self._draining = True
            self._changed.notify_all()
        self._ended.wait()
        self._raise_death()
        if self._stopping:
            raise ClientClosed("the publisher was stopped while it drained")

    def check(self) -> None:
        """For whoever waits for something else than :meth:`drain`.

        :raises BackgroundTaskFailed: as :meth:`put`
        """
        self._raise_death()

    def stop(self) -> None:
        """Settle all that is open as failed (``Stopped``, or ``NotPublished`` if never sent) and end the thread."""
        with self._changed:
            if not self._ended.is_set():
                self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def _closed(self) -> bool:
        return self._draining or self._stopping or self._ended.is_set()

    def _raise_death(self) -> None:
        if isinstance(self._death, ConfigError):
            raise self._death
        if self._death is not None:
            raise BackgroundTaskFailed(f"the publisher ended: {self._death}") from self._death

    def __repr__(self) -> str:
        if self._death is not None:
            state = f"dead: {self._death}"
        elif self._ended.is_set():
            state = "stopped" if self._stopping else "drained"
        elif self._thread.ident is None:
            state = "new"
        else:
            state = "stopping" if self._stopping else "draining" if self._draining else "live"
        hold = ", hold" if self.window.holding else ""
        down = "" if self.window.connected else ", disconnected"
        return f"<BatchPublisher {state}, {self.window.in_flight} in flight{hold}{down}>"

    # --- the pump's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._last_send = time.monotonic()
            self._limiter = RateLimiter(self._rate, self._last_send) if self._rate else None
            while not self._stopping and not self._drained():
                self._round()
            if self._stopping:
                self._abandon("the publisher was stopped")
                self._finish()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiters must hear of it
            self._die(error)
        finally:
            with self._changed:
                self._ended.set()
                self._changed.notify_all()

    def _drained(self) -> bool:
        return self._draining and not self._open

    def _round(self) -> None:
        self._resend()
        self._launch()
        self._finish()
        now = time.monotonic()
        if self._unflushed and (now - self._last_send >= self._flush_after or self._nothing_follows()):
            self._unflushed = False
            self.bridge.flush()
        self._wait(now)
        self.window.expire(now)  # as of before the poll: answers that came while this process stood still are in time
        trouble = self.window.take_trouble()
        if trouble is not None and self._on_trouble is not None:
            self._on_trouble(trouble)
        self._give_up_outage(time.monotonic())

    def _nothing_follows(self) -> bool:
        return self._draining and not self._jobs

    def _resend(self) -> None:
        self._bridge_full = False
        for block, rows in self.window.due(time.monotonic()):
            rows = rows[:CHUNK_MESSAGES]
            ends = np.cumsum(block.ends[rows + 1] - block.ends[rows])
            rows = rows[: max(1, int(np.searchsorted(ends, CHUNK_BYTES, "right")))]
            taken = self.bridge.send(block.tag.batch.take(rows), self.window.next_token)
            if taken:
                self.window.relaunch(block, rows[:taken], time.monotonic())
                self._note_send()
            if taken < len(rows):
                self._bridge_full = True
                return

    def _launch(self) -> None:
        while self._jobs and not self._bridge_full:
            job = self._jobs[0]
            if not job.prepared:
                self._prepare(job)
            while job.runs:
                start, end = job.runs[0]
                now = time.monotonic()
                n = min(self.window.fit(job.block, start, now), end - start, CHUNK_MESSAGES)
                if self._limiter is not None:
                    n = min(n, self._limiter.allowance(now))
                if n <= 0:
                    return
                ends = job.block.ends
                n = min(n, max(1, int(np.searchsorted(ends, ends[start] + CHUNK_BYTES, "right")) - 1 - start))
                taken = self._send(job, start, n)
                job.runs[0] = (start + taken, end)
                if taken < n:
                    self._bridge_full = True
                    return
                if start + taken == end:
                    job.runs.popleft()
            with self._changed:
                self._jobs.popleft()
                self._changed.notify_all()

    def _send(self, job: _Job, start: int, n: int) -> int:
        taken = self.bridge.send(job.batch.slice(start, n), self.window.next_token)
        if taken:
            rows, now = slice(start, start + taken), time.monotonic()
            if self.bridge.capabilities.ack is Ack.NONE:
                self.window.send_unacknowledged(job.block, rows, now)
                self._stuck_since = None
            else:
                self.window.launch(job.block, rows, now)
            self._note_send()
            if self._limiter is not None:
                self._limiter.spend(taken)
        return taken

    def _note_send(self) -> None:
        self._last_send = time.monotonic()
        self._unflushed = True

    def _prepare(self, job: _Job) -> None:
        prepared = self.bridge.prepare(job.batch) if len(job.batch) else None
        bad = dict(prepared.bad) if prepared else {}
        bad.update(job.bad)
        block = job.block
        if prepared is not None:
            block.fragile = prepared.fragile
        if bad:
            rows = np.array(sorted(bad), np.int64)
            self.window.reject(block, rows, [bad[r] for r in rows.tolist()], time.monotonic())
            good = np.ones(block.n, np.bool_)
            good[rows] = False
            job.runs = runs_of(good)
        elif block.n:
            job.runs = deque([(0, block.n)])
        job.prepared = True

    def _finish(self) -> None:
        """Tell of the blocks that are done. Blocks without flights, or all bad, never appear in a poll."""
        touched = {id(block): block for block, _ in self.window.take_settled()}
        with self._changed:
            waiting = {id(job.block) for job in self._jobs}
            empty = [block for block in self._open.values() if block.n == 0 and id(block) not in waiting]
        for block in [*touched.values(), *empty]:
            if block.open == 0 and id(block) in self._open:
                del self._open[id(block)]
                self._on_finished(block)
                block.tag = None

    def _wait(self, now: float) -> None:
        window = self.window
        if not window.in_flight and not self._jobs and window.connected:
            self._idle(now)
            polled = self.bridge.poll(0.0)
        else:
            until = [now + (self._poll_time if self._draining or self._jobs else min(self._poll_time, _LISTEN))]
            wake = window.wake_at()
            if wake is not None:
                until.append(max(wake, now + _TAKES_NOTHING))  # what is due by now was just tried
            if self._unflushed:
                until.append(self._last_send + self._flush_after)
            if self._limiter is not None and self._jobs:
                until.append(max(self._limiter.wake_at(now), now + 0.001))
            timeout = max(0.0, min(until) - now)
            if self._bridge_full:
                timeout = _TAKES_NOTHING
            polled = self.bridge.poll(timeout, self._wanted())
        self._apply(polled)

    def _idle(self, now: float) -> None:
        """Nothing is under way: wait for a batch. Bridge events are looked at once a ``poll_time``."""
        pause = self._poll_time
        if self._unflushed:
            pause = max(0.0, min(pause, self._last_send + self._flush_after - now))
        with self._changed:
            self._changed.wait_for(lambda: bool(self._jobs) or self._closed, pause)

    def _wanted(self) -> int:
        """So many answers change something: the refill mark, or all when nothing else is to be sent."""
        window = self.window
        if not self._jobs:
            return max(1, window.in_flight)
        if window.holding:
            return max(1, window.in_flight - min(window.policy.refill_allowed_at, window.limit - 1))
        return max(1, window.in_flight // 4)

    def _apply(self, polled: PollResult) -> None:
        window = self.window
        for acks in polled.acks:
            window.acked(acks)
        for refusals in polled.refusals:
            self._last_trouble = str(refusals.error)
            window.refused(refusals)
        if polled.acks:
            self._stuck_since, self._outage = None, False
        for event in polled.events:
            self._event(event)

    def _event(self, event: BridgeEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)
        if event.kind is EventKind.DISCONNECTED:
            self._last_trouble = event.info
            self.window.disconnected(event.info, event.at)
            log.warning("disconnected: %s", event.info)
        elif event.kind is EventKind.RECONNECTED:
            self.window.reconnected(event.at)
            self._outage = False
            log.warning("connected again: %s", event.info)
        elif event.kind is EventKind.CLOSED:
            raise Unavailable(f"the connection was closed: {event.info}") from event.error
        else:
            log.warning("%s%s", event.info, f" (topic {event.topic})" if event.topic else "")

    def _give_up_outage(self, now: float) -> None:
        """Messages that were never sent have no deadline of their own: when the middleware has taken or acknowledged
        nothing for so long that all that was sent has been settled, they are not kept waiting."""
        window = self.window
        stuck = bool(self._jobs) and (not window.connected or window.paused or self._bridge_full)
        if not stuck:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif (self._outage or now - self._stuck_since > self._patience) and not window.in_flight:
            trouble = self._last_trouble or "the bridge takes no messages"
            if not self._survive_outage:
                raise Unavailable(f"nothing was acknowledged for {self._patience:g} s: {trouble}")
            self._outage = True
            self._fail_queued(f"not sent, nothing was acknowledged for {self._patience:g} s: {trouble}", now)

    def _fail_queued(self, why: str, now: float) -> None:
        """Whatever waits to be sent fails now; sent flights go on as they are."""
        with self._changed:
            jobs, self._jobs = list(self._jobs), deque()
            self._changed.notify_all()
        for job in jobs:
            queued = np.flatnonzero(job.block.state == FlightState.QUEUED)
            bad, error = dict(job.bad), NoResponders(why)
            self.window.reject(job.block, queued, [bad.get(row, error) for row in queued.tolist()], now)

    def _abandon(self, why: str, error: PublishError | None = None) -> None:
        with self._changed:
            blocks = list(self._open.values())
        self.window.abandon(blocks, error or Stopped(why), NotPublished(why), time.monotonic())
        with self._changed:
            self._jobs.clear()

    def _die(self, error: BaseException) -> None:
        """Every flight gets its terminal event and every waiter the reason."""
        with self._changed:
            self._death = error
        try:
            self._abandon(f"the publisher ended: {error}")
            self._finish()
        except Exception:
            log.exception("while the publisher ended because of %r", error)


def runs_of(good: Bools) -> deque[tuple[int, int]]:
    """Spans [start, end) of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], good, [False])).astype(np.int8)))
    return deque(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
