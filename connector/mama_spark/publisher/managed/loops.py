"""The two loops of the managed publisher, over one window and one bridge.

:meth:`PublisherLoops.publish` takes what the user queued and sends it while the window lets it;
    :meth:`PublisherLoops.fly` takes what
comes back, settles flights and sends again. One lock guards window and bridge, because a bridge is called by one thread
at a time; callbacks and futures are served outside of it, in order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mama_spark.bridge import Ack, BridgeEvent, EventKind, PublisherBridge
from mama_spark.errors import ConfigError, NotPublished, PublishError, Stopped, Unavailable
from mama_spark.message import Bools, Int64s, MessageBatch
from mama_spark.sending.flight_batch import FlightBatch
from mama_spark.sending.window import Window

from ..batch_publisher import CHUNK_BYTES, CHUNK_MESSAGES, runs_of
from ..clock import WallClock
from .callbacks import CallbackDispatcher, PendingBatch
from .publish_queue import Entry, PublishQueue

log = logging.getLogger("mama_spark")

_SLICE = 0.005  #: longest time for which the flights runner keeps the publish runner from the bridge


class PublisherLoops:
    """What both loops share. Each loop runs on one thread, whose ever it is.

    :param poll_time: longest wait of a loop, seconds (MP-07); ``hold_pause_time``: the same in a hold (MP-08)
    :ivar keep_going: the flag of the specification (MP-29, MP-36); whoever clears it calls :meth:`settle_rest` next
    :ivar draining: the loops end once nothing is left
    :ivar drained: set when :meth:`fly` has ended, or everything was settled otherwise
    """

    def __init__(
        self,
        bridge: PublisherBridge,
        window: Window,
        intake: PublishQueue,
        teller: CallbackDispatcher,
        *,
        poll_time: float,
        hold_pause_time: float,
    ) -> None:
        self.bridge, self.window = bridge, window
        self._intake, self._teller = intake, teller
        self._poll_time, self._hold_pause_time = poll_time, hold_pause_time
        self.keep_going = True
        self.draining = self._publish_done = False
        self.drained = threading.Event()
        self._settled = threading.Event()  # for the publish runner: there may be room
        self._launched = threading.Event()  # for the flights runner: there is something to wait for, or an end
        self._core = threading.RLock()  # guards window, bridge and blocks
        self._sending = threading.Event()  # the publish runner wants the bridge
        self._blocks: dict[int, FlightBatch] = {}
        self._opened = False
        self._clock = WallClock.anchored()

    def wake(self) -> None:
        """Something changed outside of the loops: both look again."""
        self._settled.set()
        self._launched.set()

    def open(self) -> None:
        """Open the bridge, once."""
        with self._core:
            if self.keep_going and not self._opened:
                self.bridge.open()
                self._opened = True

    # --- the publish runner ----------------------------------------------------------------------------------

    def publish(self) -> None:
        """Take what is queued and send it while the window lets it (MP-23, MP-29 to MP-35)."""
        while self.keep_going:
            block = self._intake.take(self.window.policy.max_in_flight, self._poll_time, self._admit)
            if block is not None:
                self._send_block(block)
            elif self.draining and not len(self._intake):
                break
        self._publish_done = True
        self._launched.set()

    def _admit(self, taken: list[Entry]) -> FlightBatch | None:
        if not taken:
            return None
        flights, futures = [f for f, _ in taken], [f for _, f in taken]
        headers = [{**(f.headers or {}), **(f.options.headers() if f.options else {})} or None for f in flights]
        batch = MessageBatch.of(
            [f.subject for f in flights], [f.body for f in flights],
            headers if any(headers) else None, [f.id for f in flights],
        )  # fmt: skip
        with self._core:
            block = self.window.open(len(flights), tag=PendingBatch(batch, flights, futures), sizes=batch.sizes())
            self._blocks[id(block)] = block
        return block

    def _send_block(self, block: FlightBatch) -> None:
        with self._bridge_now():
            if not self.keep_going:
                return
            good = self._prepare(block)
        for start, end in runs_of(good):
            while start < end:
                with self._bridge_now():
                    if not self.keep_going:  # asked under the lock: whoever cleared it settles the flights next
                        return
                    self._settled.clear()
                    sent = self._send_some(block, start, end)
                self._teller.deliver()
                start += sent
                if not sent:
                    self._settled.wait(self._hold_pause_time)
        self._teller.deliver()

    def _prepare(self, block: FlightBatch) -> Bools:
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

    def _reject(self, block: FlightBatch, rows: Int64s, errors: list[PublishError]) -> None:
        self.window.reject(block, rows, errors, time.monotonic())
        self._collect()

    def _send_some(self, block: FlightBatch, start: int, end: int) -> int:
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
                self.window.send_unacknowledged(block, rows, now)
            else:
                self.window.launch(block, rows, now)
            wall = self._clock.micros(block.published[rows]) / 1e6
            self._teller.note_published(block.tag, rows, wall.tolist())
            self._collect()
            self._launched.set()
            self.bridge.flush()
        return taken

    @contextmanager
    def _bridge_now(self) -> Iterator[None]:
        """The core lock, ahead of the flights runner."""
        self._sending.set()
        with self._core:
            self._sending.clear()
            yield

    # --- the flights runner ----------------------------------------------------------------------------------

    def fly(self) -> None:
        """Settle what comes back and send again what must (MP-24, MP-36 to MP-43)."""
        while self.keep_going:
            if self._publish_done and self.draining and not self._blocks:
                break
            with self._core:
                if not self.keep_going:
                    break
                self._resend()
                self._poll(_SLICE if self.window.in_flight or not self.window.connected else 0.0)
                idle = not self.window.in_flight
            self._teller.deliver()
            if idle:
                self._launched.wait(self._poll_time)
                self._launched.clear()
            elif self._sending.is_set():
                time.sleep(0)  # let the publish runner have the bridge
        self.drained.set()

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
        window, asked = self.window, time.monotonic()
        polled = self.bridge.poll(timeout)
        for acks in polled.acks:
            window.acked(acks)
        for refusals in polled.refusals:
            window.refused(refusals)
        for event in polled.events:
            self._event(event)
        window.expire(asked)  # answers that came while this process stood still are in time
        if self._collect() or polled:
            self._settled.set()

    def _event(self, event: BridgeEvent) -> None:
        if event.kind is EventKind.DISCONNECTED:
            self.window.disconnected(event.info, event.at)
        elif event.kind is EventKind.RECONNECTED:
            self.window.reconnected(event.at)
        elif event.kind is EventKind.CLOSED:
            raise Unavailable(f"the connection was closed: {event.info}") from event.error
        log.warning("%s: %s", event.kind.value, event.info)

    def _collect(self) -> bool:
        """Note what was settled; under the core lock."""
        settled = self.window.take_settled()
        for block, rows in settled:
            self._teller.note_settled(block, rows)
            if block.open == 0:
                self._blocks.pop(id(block), None)
        return bool(settled)

    # --- the end ---------------------------------------------------------------------------------------------

    def settle_rest(self, why: str) -> None:
        """Nothing is sent any more: every flight and future that is left gets ``Stopped`` or ``NotPublished``."""
        rest = self._intake.rest()
        with self._core:
            self.window.abandon(list(self._blocks.values()), Stopped(why), NotPublished(why), time.monotonic())
            self._collect()
            self.bridge.close()
        self._teller.deliver()
        for flight, future in rest:
            if future.set_running_or_notify_cancel():
                future.set_exception(NotPublished(why))
            flight.publish_ack_future.set_exception(NotPublished(why))
        self.drained.set()
        self.wake()
