"""The managed publisher of the specification: two loops over one window.

``publish_runner`` takes what the user queued and sends it while the window lets it; ``flights_runner`` takes what comes
back, settles flights and sends again. One lock guards window and bridge, because a bridge is called by one thread at a
time; callbacks and futures are served outside of it, in order.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..bridge import Ack, BridgeEvent, EventKind, PublisherBridge
from ..errors import (
    AckTimeout,
    ClientClosed,
    ConfigError,
    LoopDied,
    NotPublished,
    PublishError,
    QueueFull,
    Stopped,
    Unavailable,
)
from ..message import MessageBatch
from .api import Flight, Headers, HeadersLike, PublishAck, PublisherListener, PublishOptions, RetryConfig
from .clock import WallClock
from .flight import EVENT, PUBLISHED, State
from .pump import CHUNK_BYTES, CHUNK_MESSAGES, runs_of
from .window import Block, Counters, Policy, Rows, Window

log = logging.getLogger("mama_spark")

_SLICE = 0.005  #: longest time for which the flights runner keeps the publish runner from the bridge

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class _Cargo:
    """``Block.tag``: the flights of a block, their messages, and the futures of those who published them."""

    __slots__ = ("batch", "flights", "futures")

    def __init__(self, batch: MessageBatch, flights: list[Flight], futures: list[Future[Flight]]) -> None:
        self.batch, self.flights, self.futures = batch, flights, futures


class ManagedPublisher:
    """Publish one message at a time, asynchronously, and be told what became of each (MP-01).

    :param target: a live nats-py JetStream context, or any bridge that is not open yet (MP-02)
    :param id_prefix: ids are ``<id_prefix>-<number>``, sent for deduplication (MP-03); random if None, so that ids of
        another run never meet these
    :param max_in_flight: (MP-04), ``refill_allowed_at`` (MP-05)
    :param retry_config: None = every message is sent once (MP-06)
    :param poll_time: longest wait of any loop, seconds (MP-07); ``hold_pause_time``: the same in a hold (MP-08)
    :param wait_timeout: seconds to wait for the acknowledgement of a send (MP-09)
    :param queue_size: messages that may wait for the publish runner
    :raises ConfigError: if a value is out of range, or nothing can publish through ``target``
    """

    def __init__(
        self,
        target: object,
        *,
        id_prefix: str | None = None,
        max_in_flight: int = 50,
        refill_allowed_at: int = 0,
        retry_config: RetryConfig | None = None,
        poll_time: float = 0.1,
        hold_pause_time: float = 0.1,
        wait_timeout: float = 5.0,
        listener: PublisherListener | None = None,
        queue_size: int = 10_000,
    ) -> None:
        from ..bridges import attach  # late: the publisher knows no bridge

        self._closed = True  # nothing to warn of if the constructor raises
        for name, value in (("pollTime", poll_time), ("holdPauseTime", hold_pause_time), ("queueSize", queue_size)):
            if value <= 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        self.window = Window(Policy(max_in_flight, refill_allowed_at, wait_timeout, retry_config))
        self.bridge: PublisherBridge = attach(target)
        self.id_prefix = id_prefix if id_prefix is not None else secrets.token_hex(11)
        self.listener = listener
        self.listener_errors = 0  #: exceptions that the listener raised
        self._poll_time, self._hold_pause_time, self._queue_size = poll_time, hold_pause_time, queue_size
        self._queue: deque[tuple[Flight, Future[Flight]]] = deque()
        self._queued = threading.Condition()  # guards the queue, the numbers, and "draining"
        self._number = 0
        self._waiters: list[Waiter] = []
        self._core = threading.RLock()  # guards window, bridge and blocks
        self._moved = threading.Event()  # flights settled or time passed: the publish runner may look again
        self._sending = threading.Event()  # the publish runner wants the bridge
        self._blocks: dict[int, Block] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._calling = threading.RLock()
        self._keep_going = True
        self._draining = self._publish_done = False
        self._drained = threading.Event()
        self._opened = False
        self._death: BaseException | None = None
        self._runners: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._clock = WallClock.anchored()

    @property
    def counters(self) -> Counters:
        return self.window.counters

    # --- publishing ------------------------------------------------------------------------------------------

    def publish_async(
        self,
        subject: str,
        body: bytes,
        headers: HeadersLike | None = None,
        options: PublishOptions | None = None,
    ) -> Future[Flight]:
        """Queue a message. The future completes with its flight once it is really published (MP-28), or with the
        error that kept it from being published; cancelling it before then takes the message back.

        Blocks while the queue is full, but never on a thread that runs an event loop or this publisher's callbacks.

        :raises QueueFull: the queue is full and this thread may not block
        :raises ClientClosed: drained or stopped
        """
        plain: Headers | None = None
        if headers is not None:
            plain = {k: [v] if isinstance(v, str) else list(v) for k, v in headers.items()}
        future: Future[Flight] = Future()
        with self._queued:
            self._raise_closed()
            if len(self._queue) >= self._queue_size:
                if self._must_not_block():
                    raise QueueFull(f"{self._queue_size} messages wait already")
                self._queued.wait_for(lambda: len(self._queue) < self._queue_size or self._is_closed())
                self._raise_closed()
            self._number += 1
            id_ = options.msg_id if options and options.msg_id else f"{self.id_prefix}-{self._number}"
            flight = Flight(id_, subject, bytes(body), plain, options)
            flight.publish_ack_future.set_running_or_notify_cancel()
            self._queue.append((flight, future))
            self._closed = False
            self._queued.notify_all()
        return future

    async def publish(
        self,
        subject: str,
        body: bytes,
        headers: HeadersLike | None = None,
        options: PublishOptions | None = None,
    ) -> Flight:
        """:meth:`publish_async` for coroutines: waits for room in the queue, then until the message is published."""
        while True:
            try:
                return await asyncio.wrap_future(self.publish_async(subject, body, headers, options))
            except QueueFull:
                loop = asyncio.get_running_loop()
                room: asyncio.Future[None] = loop.create_future()
                with self._queued:
                    if len(self._queue) < self._queue_size or self._is_closed():
                        continue
                    self._waiters.append((loop, room))
                await room

    def _must_not_block(self) -> bool:
        if threading.get_ident() in self._runners:
            return True
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    def _is_closed(self) -> bool:
        return self._draining or not self._keep_going or self._death is not None

    def _raise_closed(self) -> None:
        if self._death is not None:
            raise LoopDied(f"the publisher ended: {self._death}") from self._death
        if self._is_closed():
            raise ClientClosed("the publisher was drained or stopped")

    # --- life ------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Run both loops, each on a thread of its own (MP-25)."""
        self._raise_closed()
        if not self._threads:
            for name, runner in (("publish", self.publish_runner), ("flights", self.flights_runner)):
                self._threads.append(threading.Thread(target=runner, name=f"mama-{name}", daemon=True))
            self._closed = False
            for thread in self._threads:
                thread.start()
        return self

    def stop(self) -> None:
        """Both loops end before their next round (MP-26); every future that is left gets ``Stopped`` or, if its
        message was never sent, ``NotPublished``. May be repeated."""
        self._keep_going = False
        self._wake()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._settle_rest("the publisher was stopped")
        self._closed = True

    def drain(self, timeout: float | None = None) -> None:
        """Nothing can be added any more; returns when all is published and then acked, failed or timed out (MP-27).

        :raises TimeoutError: not done after ``timeout`` seconds; goes on draining
        :raises LoopDied: a loop ended with an error
        """
        with self._queued:
            self._draining = True
            self._queued.notify_all()
        self._wake()
        if not self._drained.wait(timeout):
            raise TimeoutError(f"not drained after {timeout:g} s: {self!r}")
        if self._death is not None:
            raise LoopDied(f"the publisher ended: {self._death}") from self._death
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.stop()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, tb)

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if not getattr(self, "_closed", True):
            _warn(f"{self!r} was not closed", ResourceWarning, source=self)

    def __repr__(self) -> str:
        state = "dead" if self._death else "stopped" if not self._keep_going else "live"
        if self._draining and state == "live":
            state = "drained" if self._drained.is_set() else "draining"
        hold = ", hold" if self.window.holding else ""
        return f"<ManagedPublisher {state}, {len(self._queue)} queued, {self.window.in_flight} in flight{hold}>"

    def _wake(self) -> None:
        with self._queued:
            self._queued.notify_all()
            waiters, self._waiters = self._waiters, []
        for loop, room in waiters:
            loop.call_soon_threadsafe(_let_in, room)
        self._moved.set()

    # --- the publish runner ----------------------------------------------------------------------------------

    def publish_runner(self) -> None:
        """Send what is queued (MP-23, MP-29 to MP-35); returns after :meth:`stop`, or drained. Call it on a thread of
        your own, or :meth:`start`."""
        self._run(self._publish_loop)

    def _publish_loop(self) -> None:
        while self._keep_going:
            block = self._take()
            if block is not None:
                self._publish(block)
            elif self._draining:
                break
        self._publish_done = True

    def _take(self) -> Block | None:
        """A block of what is queued, at most a window of it; None if nothing came for ``poll_time`` (MP-30)."""
        with self._queued:
            if not self._queue and not self._draining:
                self._queued.wait_for(lambda: self._queue or self._is_closed(), self._poll_time)
            if not self._queue or not self._keep_going:
                return None
            n = min(len(self._queue), self.window.policy.max_in_flight)
            taken = [self._queue.popleft() for _ in range(n)]
            taken = [(flight, future) for flight, future in taken if future.set_running_or_notify_cancel()]
            block = self._admit(taken)  # under the lock: a message is always either queued or in a block
        self._wake()
        return block

    def _admit(self, taken: list[tuple[Flight, Future[Flight]]]) -> Block | None:
        if not taken:
            return None
        flights, futures = [f for f, _ in taken], [f for _, f in taken]
        headers = [{**(f.headers or {}), **(f.options.headers() if f.options else {})} or None for f in flights]
        batch = MessageBatch.of(
            [f.subject for f in flights], [f.body for f in flights],
            headers if any(headers) else None, [f.id for f in flights],
        )  # fmt: skip
        with self._core:
            block = self.window.open(len(flights), tag=_Cargo(batch, flights, futures), sizes=batch.sizes())
            self._blocks[id(block)] = block
        return block

    def _publish(self, block: Block) -> None:
        with self._bridge_now():
            good = self._prepare(block)
        for start, end in runs_of(good):
            while start < end and self._keep_going and self._death is None:
                with self._bridge_now():
                    self._moved.clear()
                    sent = self._send_some(block, start, end)
                self._deliver()
                start += sent
                if not sent:
                    self._moved.wait(self._hold_pause_time)
        self._deliver()

    def _prepare(self, block: Block) -> Any:
        good = np.ones(block.n, np.bool_)
        try:
            prepared = self.bridge.prepare(block.tag.batch)
        except Unavailable:
            return good  # what cannot be asked now is found out by sending
        except ConfigError as error:
            self._reject(block, np.arange(block.n), [PublishError(str(error))] * block.n)
            return ~good
        block.fragile = prepared.fragile
        if prepared.bad:
            rows = np.array([row for row, _ in prepared.bad], np.int64)
            good[rows] = False
            self._reject(block, rows, [error for _, error in prepared.bad])
        return good

    def _reject(self, block: Block, rows: Any, errors: list[PublishError]) -> None:
        self.window.reject(block, rows, errors, time.monotonic())
        self._collect()

    def _send_some(self, block: Block, start: int, end: int) -> int:
        now = time.monotonic()
        n = min(self.window.fit(block, start, now), end - start, CHUNK_MESSAGES)
        if n <= 0:
            return 0
        n = min(n, max(1, int(np.searchsorted(block.ends, block.ends[start] + CHUNK_BYTES, "right")) - 1 - start))
        try:
            taken = self.bridge.send(block.tag.batch.slice(start, n), self.window.next_token)
        except Exception as error:  # noqa: BLE001 - whatever a bridge raises: the flights fail, the runner goes on
            failed = PublishError(f"{type(error).__name__}: {error}")
            failed.__cause__ = error
            self._reject(block, np.arange(start, start + n), [failed] * n)
            return n
        if taken:
            rows, now = slice(start, start + taken), time.monotonic()
            if self.bridge.capabilities.ack is Ack.NONE:
                self.window.hand_over(block, rows, now)
            else:
                self.window.launch(block, rows, now)
            self._tell_published(block, rows)
            self._collect()
            self.bridge.flush()
        return taken

    def _tell_published(self, block: Block, rows: slice) -> None:
        wall = self._clock.micros(block.published[rows]) / 1e6
        for row, at in zip(range(rows.start, rows.stop), wall.tolist(), strict=True):
            flight, future = block.tag.flights[row], block.tag.futures[row]
            flight.publish_time, flight.sends = at, 1
            self._calls.append(partial(self._published, flight, future))

    def _bridge_now(self) -> Any:
        """The core lock, ahead of the flights runner."""
        self._sending.set()
        self._core.acquire()
        self._sending.clear()
        return _Release(self._core)

    # --- the flights runner ----------------------------------------------------------------------------------

    def flights_runner(self) -> None:
        """Settle what comes back, send again what must (MP-24, MP-36 to MP-43); returns after :meth:`stop`, or when
        drained. Call it on a thread of your own, or :meth:`start`."""
        self._run(self._flights_loop)

    def _flights_loop(self) -> None:
        while self._keep_going:
            if self._publish_done and self._draining and not self._blocks:
                break
            with self._core:
                self._resend()
                self._poll(_SLICE if self.window.in_flight or not self.window.connected else 0.0)
                idle = not self.window.in_flight
            self._deliver()
            if idle:
                self._moved.wait(min(self._poll_time, _SLICE if self._draining else 0.02))
            elif self._sending.is_set():
                time.sleep(0)  # let the publish runner have the bridge
        self._drained.set()

    def _resend(self) -> None:
        for block, rows in self.window.due(time.monotonic()):
            rows = rows[:CHUNK_MESSAGES]
            taken = self.bridge.send(block.tag.batch.take(rows), self.window.next_token)
            if taken:
                self.window.relaunch(block, rows[:taken], time.monotonic())
                self.bridge.flush()
            if taken < len(rows):
                return

    def _poll(self, timeout: float) -> None:
        window = self.window
        polled = self.bridge.poll(timeout)
        for acks in polled.acks:
            window.acked(acks)
        for refusals in polled.refusals:
            window.refused(refusals)
        for event in polled.events:
            self._event(event)
        window.expire(time.monotonic())
        if self._collect() or polled:
            self._moved.set()

    def _event(self, event: BridgeEvent) -> None:
        if event.kind is EventKind.DISCONNECTED:
            self.window.disconnected(event.info, event.at)
        elif event.kind is EventKind.RECONNECTED:
            self.window.reconnected(event.at)
        elif event.kind is EventKind.CLOSED:
            raise Unavailable(f"the connection was closed: {event.info}") from event.error
        log.warning("%s: %s", event.kind.value, event.info)

    # --- telling ---------------------------------------------------------------------------------------------

    def _collect(self) -> bool:
        """Queue the calls for what was settled; under the core lock."""
        settled = self.window.take_settled()
        for block, rows in settled:
            for row in _listed(rows):
                self._calls.append(partial(self._ended, block, row, block.tag))
            if block.open == 0:
                self._blocks.pop(id(block), None)
        return bool(settled)

    def _deliver(self) -> None:
        """Serve futures and listener in order, outside of the core lock."""
        with self._calling:
            while self._calls:
                self._calls.popleft()()

    def _published(self, flight: Flight, future: Future[Flight]) -> None:
        future.set_result(flight)
        self._listen(PUBLISHED, flight)

    def _ended(self, block: Block, row: int, cargo: _Cargo) -> None:
        flight, future = cargo.flights[row], cargo.futures[row]
        flight.sends = int(block.sends[row])
        state = State(int(block.state[row]))
        if state in (State.ACKED, State.PUBLISHED):
            stream = int(block.stream[row])
            sequence = int(block.sequence[row])
            flight.publish_ack_future.set_result(
                PublishAck(
                    self.window.streams[stream] if stream >= 0 else None,
                    sequence if sequence >= 0 else None,
                    bool(block.duplicate[row]),
                )
            )
        else:
            error = block.errors.get(row) or AckTimeout("no acknowledgement")
            flight.publish_ack_future.set_exception(error)
            if not future.done():
                future.set_exception(error)
        if state is not State.PUBLISHED:
            self._listen(EVENT[state], flight)

    def _listen(self, event: str, flight: Flight) -> None:
        if self.listener is None:
            return
        try:
            getattr(self.listener, event)(flight)
        except Exception:
            self.listener_errors += 1
            log.exception("the listener raised in %s(%s)", event, flight.id)

    # --- ends ------------------------------------------------------------------------------------------------

    def _run(self, loop: Callable[[], None]) -> None:
        self._runners.add(threading.get_ident())
        self._closed = False
        try:
            with self._core:
                if not self._opened:
                    self.bridge.open()
                    self._opened = True
            loop()
        except BaseException as error:  # noqa: BLE001 - a dying loop takes its waiters with it
            self._death = error
            self._settle_rest(f"the publisher ended: {error}")
        finally:
            self._runners.discard(threading.get_ident())
            self._wake()

    def _settle_rest(self, why: str) -> None:
        with self._queued:
            rest, self._queue = list(self._queue), deque()
        with self._core:
            self.window.abandon(list(self._blocks.values()), Stopped(why), NotPublished(why), time.monotonic())
            self._collect()
            self.bridge.close()
        self._deliver()
        for flight, future in rest:
            if future.set_running_or_notify_cancel():
                future.set_exception(NotPublished(why))
            flight.publish_ack_future.set_exception(NotPublished(why))
        self._drained.set()
        self._wake()


def _let_in(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


class _Release:
    """Context of a lock that is held already."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _listed(rows: Rows) -> list[int]:
    listed: list[int] = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
    return listed
