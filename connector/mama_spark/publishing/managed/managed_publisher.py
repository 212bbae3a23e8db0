"""The managed publisher of the specification, as a plain library: futures and callbacks over the two loops of
:mod:`mama_spark.publishing.managed.loops`."""

from __future__ import annotations

import asyncio
import secrets
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self

from mama_spark.contracts.bridge import PublisherBridge
from mama_spark.contracts.errors import BackgroundTaskFailed, ClientClosed, ConfigError, QueueFull
from mama_spark.options.window_config import WindowConfig
from mama_spark.publishing.window.flight_batch import FlightCounters
from mama_spark.publishing.window.window import Window

from ..api import Flight, HeadersLike, PublisherListener, PublishOptions, RetryConfig
from .callbacks import CallbackDispatcher
from .loops import PublisherLoops
from .publish_queue import PublishQueue, on_event_loop


class ManagedPublisher:
    """Publishes single messages asynchronously, and reports the outcome of each (MP-01).

    :param target: a live nats-py JetStream context, or any bridge that is not open yet (MP-02)
    :param id_prefix: ids are ``<id_prefix>-<number>``, sent for deduplication (MP-03); None = random, unlike those of
        any other run
    :param max_in_flight: flights without an outcome at which sending pauses (MP-04)
    :param refill_allowed_at: flights without an outcome, or fewer, at which sending goes on (MP-05)
    :param retry_config: None = every message is sent once (MP-06)
    :param poll_time: longest wait of any loop, seconds (MP-07); ``hold_pause_time``: the same in a hold (MP-08)
    :param wait_timeout: seconds to wait for the acknowledgement of a send (MP-09)
    :param listener: gets the events of each flight (MP-10); may be replaced until :meth:`start`
    :param window: rules of the window, in place of the parameters of MP-04 to MP-06 and MP-09
    :param dedup: False = no ids are sent
    :param queue_size: maximum number of messages that wait for the publish runner
    :param loop: the event loop of the context's client; None = that of this thread, which must be the
        client's. Any thread may use the publisher
    :param client: the client of the context, which nats-py's context does not show
    :raises ConfigError: a value is out of range, or nothing can publish through ``target``
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
        window: WindowConfig | None = None,
        dedup: bool = True,
        queue_size: int = 10_000,
        loop: asyncio.AbstractEventLoop | None = None,
        client: object = None,
    ) -> None:
        from mama_spark.registry import attach  # when it is needed: it may import nats-py

        self._closed = True  # nothing to warn of if the constructor raises
        for name, value in (("pollTime", poll_time), ("holdPauseTime", hold_pause_time), ("queueSize", queue_size)):
            if value <= 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        self.window = Window(window or WindowConfig(max_in_flight, refill_allowed_at, wait_timeout, retry_config))
        self.bridge: PublisherBridge = attach(target, loop, client)
        self.id_prefix = id_prefix if id_prefix is not None else secrets.token_hex(11)
        self.poll_time, self.hold_pause_time = poll_time, hold_pause_time
        self._runner_threads: set[int] = set()  # threads of the loops: callbacks run there
        self._queue = PublishQueue(queue_size, self.id_prefix, self._runner_threads)
        self._callbacks = CallbackDispatcher(listener, self.window.streams, self.window.domains)
        self._loops = PublisherLoops(
            self.bridge, self.window, self._queue, self._callbacks,
            dedup=dedup, poll_time=poll_time, hold_pause_time=hold_pause_time,
        )  # fmt: skip
        self._death: BaseException | None = None
        self._threads: list[threading.Thread] = []

    @property
    def counters(self) -> FlightCounters:
        return self.window.counters

    @property
    def listener(self) -> PublisherListener | None:
        return self._callbacks.listener

    @listener.setter
    def listener(self, listener: PublisherListener | None) -> None:
        self._callbacks.listener = listener

    @property
    def outage_cause(self) -> str:
        """Cause of the last outage, as the log gives it; empty if there was none."""
        return self._loops.outage_cause

    @property
    def listener_errors(self) -> int:
        """Number of exceptions that the listener raised."""
        return self._callbacks.errors

    def publish_async(
        self, subject: str, body: bytes, headers: HeadersLike | None = None, options: PublishOptions | None = None
    ) -> Future[Flight]:
        """Queue a message. The future completes with its flight once it is published (MP-28), or with the error that
        prevented it; a cancellation before then takes the message back. Blocks while the queue is full, but never on a
        thread that runs an event loop or this publisher's callbacks.

        :raises QueueFull: the queue is full and this thread may not block
        :raises ClientClosed: drained or stopped
        """
        future = self._queue.put(subject, body, headers, options)
        self._closed = False
        return future

    async def publish(
        self, subject: str, body: bytes, headers: HeadersLike | None = None, options: PublishOptions | None = None
    ) -> Flight:
        """:meth:`publish_async` for coroutines: waits for space in the queue, then until the message is published."""
        while True:
            try:
                return await asyncio.wrap_future(self.publish_async(subject, body, headers, options))
            except QueueFull:
                await self._queue.wait_for_space()

    def start(self) -> Self:
        """Run both loops, each on a thread of its own (MP-25)."""
        self._queue.raise_closed()
        if not self._threads:
            for name, runner in (("publish", self.publish_runner), ("flights", self.flights_runner)):
                self._threads.append(threading.Thread(target=runner, name=f"mama-{name}", daemon=True))
            self._closed = False
            for thread in self._threads:
                thread.start()
        return self

    def stop(self) -> None:
        """End both loops before their next round (MP-26); each open future gets ``Stopped``, or ``NotPublished`` if its
        message was never sent. May be repeated, and called from a callback of the listener."""
        self._loops.keep_going = False
        if self._death is None:
            self._queue.close(_no_more, hand_out=False)
        self._loops.wake()
        self._join()
        self._loops.settle_rest("the publisher was stopped")
        self._closed = True

    def _join(self) -> None:
        if threading.get_ident() in self._runner_threads:
            return  # a callback: the other runner may be waiting for this one's to return
        for thread in self._threads:
            thread.join()

    def drain(self, timeout: float | None = None) -> None:
        """Take no more messages; return when all is published and then acked, failed or timed out (MP-27).

        :raises TimeoutError: not done after ``timeout`` seconds; goes on draining
        :raises BackgroundTaskFailed: a loop ended with an error
        :raises ConfigError: called from a callback of the listener, which it would wait for
        """
        if threading.get_ident() in self._runner_threads:
            raise ConfigError("drain() would wait for the callback that calls it: call it on another thread")
        if not self._queue.closed:
            self._queue.close(_no_more, hand_out=True)
        self._loops.draining = True
        self._loops.wake()
        if not self._loops.drained.wait(timeout):
            raise TimeoutError(f"not drained after {timeout:g} s: {self!r}")
        if self._death is not None:
            raise _died(self._death)
        self._join()

    def __enter__(self) -> Self:
        if on_event_loop():
            raise ConfigError("inside a coroutine use `async with`: to drain would block the event loop")
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
        state = "dead" if self._death else "stopped" if not self._loops.keep_going else "live"
        if self._loops.draining and state == "live":
            state = "drained" if self._loops.drained.is_set() else "draining"
        hold = ", hold" if self.window.holding else ""
        return f"<ManagedPublisher {state}, {len(self._queue)} queued, {self.window.in_flight} in flight{hold}>"

    def publish_runner(self) -> None:
        """Send queued messages until stopped or drained (MP-23). Call it on a thread of your own, or :meth:`start`."""
        self._run(self._loops.publish)

    def flights_runner(self) -> None:
        """Settle flights by the answers, and resend (MP-24); otherwise as :meth:`publish_runner`."""
        self._run(self._loops.fly)

    def _run(self, loop: Callable[[], None]) -> None:
        self._runner_threads.add(threading.get_ident())
        self._closed = False
        try:
            self._loops.open()
            loop()
        except BaseException as error:  # noqa: BLE001 - a dying loop takes its waiters with it
            self._death = error
            self._loops.keep_going = False
            self._queue.close(partial(_died, error), hand_out=False)
            self._loops.settle_rest(f"the publisher ended: {error}")
        finally:
            self._runner_threads.discard(threading.get_ident())
            self._queue.wake()
            self._loops.wake()


def _no_more() -> ClientClosed:
    return ClientClosed("the publisher was drained or stopped")


def _died(cause: BaseException) -> BackgroundTaskFailed:
    died = BackgroundTaskFailed(f"the publisher ended: {cause}")
    died.__cause__ = cause
    return died
