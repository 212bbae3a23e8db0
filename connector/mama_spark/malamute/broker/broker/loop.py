"""The broker's thread: waits for its sockets, passes input to the session machine, and executes its output.

A round reads from clients (a limited number of messages and bytes), sends each engine its commands as one batch,
applies reports of engines, and sends. Neither clients nor streams can starve the other.

All memory is bounded. Frames that a client's socket does not accept wait in the machine's queue for this client, with a
limit in bytes and a policy. While an engine lags behind and makes progress, no client is read, so that TCP stops the
senders; a stalled engine has a backlog with a limit and a policy.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import zmq

from mama_spark.contracts.standstill import MAX_STEP, missed_looks
from mama_spark.contracts.zmq_connections import TIMER
from mama_spark.malamute.protocol.extensions import Extension
from mama_spark.malamute.zmq_fd_poller import ZmqFdPoller, readable

from ..configuration import BrokerSettings
from ..session.broker_events import BrokerEvent, EventFields
from ..session.state_machine import ServerMachine
from .client_router import MAX_RETRY_INTERVAL, ClientRouter, SocketCounters
from .engine_pool import MAX_LAG, StreamEngines
from .engine_selector import EngineSelector
from .security import ZapHandler

logger = logging.getLogger(__name__)

#: Seconds for all engines to end.
END_TIMEOUT = 30.0
#: Deliveries and answers of engines after which clients are read again.
ROUND_REPORTED = 1000
#: Most events that wait for the start of their stream's engine; further ones are only counted.
MAX_PENDING_EVENTS = 10_000


class BrokerLoop:
    """The loop of one broker. ``control``: inproc endpoint for the frames ``stop`` and ``inspect``; ``inspections``:
    functions that read its state in its thread, with futures for their results."""

    def __init__(
        self,
        settings: BrokerSettings,
        context: zmq.Context[zmq.Socket[bytes]],
        control: str,
        selector: EngineSelector,
        encode: Callable[[BrokerEvent], bytes],
    ) -> None:
        self.counters = SocketCounters()
        self.inspections: deque[tuple[Callable[[BrokerLoop], Any], SimpleQueue[Any]]] = deque()
        self.reading_paused = False
        self._settings = settings
        self._selector = selector
        self.machine = ServerMachine(settings.machine, selector)
        self.engines = StreamEngines(context, self.machine, selector, lambda: time.monotonic())
        self.clients = ClientRouter(context, settings, self.machine, self.counters)
        self._encode = encode
        self._lost_events = 0
        self._zap_handler: ZapHandler | None = None
        self._stopping = False
        self._next_expiry = -math.inf
        self._dropped, self._deadline = list[int](), math.inf  # deliveries of each client, and when its end was over
        self._reports_pending = True  # there may be more reports, although the socket's descriptor does not signal it
        self._control = context.socket(zmq.PAIR)
        self._control.connect(control)

    def bind(self, zap_handler: ZapHandler) -> tuple[str, ...]:
        self._zap_handler = zap_handler
        return self.clients.bind(zap_handler)

    def engine_of(self, stream: bytes) -> str:
        return self._selector.choose(stream)[0]

    def run(self) -> None:
        """Execute rounds until ``stop``; then let engines finish and send queued frames."""
        reports, router = self.engines.reports.socket, self.clients.socket
        all_sockets, without_clients = ZmqFdPoller(self._control, reports, router), ZmqFdPoller(self._control, reports)
        self._handle_control()
        last_round = time.monotonic()
        while not self._stopping:
            self.reading_paused = self.engines.must_pause_reading(self._settings.machine.behind)
            signalled = (without_clients if self.reading_paused else all_sockets).wait(self._wait_timeout())
            now = self.machine.clients.now = time.monotonic()
            if self._control in signalled:
                self._handle_control()
            if self.reading_paused or missed_looks(now - last_round):
                self.machine.clients.excuse_silence(now - last_round)
            last_round = now
            if not self.reading_paused and (self.clients.input_pending or router in signalled):
                self.clients.read_round(now)
            if now >= self._next_expiry or len(self.machine.deliveries.rotating):
                self.machine.expire(now)
            self.engines.abandon_unstarted(now)
            self.engines.end_idle(now)
            self.machine.free_some()
            self._execute(self._reports_pending or reports in signalled)
        self._finish()

    def _wait_timeout(self) -> float:
        machine, clients = self.machine, self.clients
        expiry = machine.next_expiry()
        self._next_expiry = math.inf if expiry is None else expiry
        input_pending = clients.input_pending and not self.reading_paused
        output = machine.streams.commands or machine.clients.outgoing
        if self._reports_pending or input_pending or output or machine.has_garbage:
            return 0.0
        if clients.blocked or self.reading_paused:
            return clients.retry_interval
        if expiry is None:
            return MAX_STEP
        return max(0.0, min(MAX_STEP, expiry - time.monotonic()))

    def _handle_control(self) -> None:
        while readable(self._control):
            if self._control.recv() == b"stop":
                self._stopping = True
            elif self.inspections:
                inspect, result = self.inspections.popleft()
                self.counters.refused_logins = self._zap_handler.refused if self._zap_handler is not None else 0
                result.put(inspect(self))

    def _execute(self, reports: bool) -> None:
        self.engines.send_commands()
        self._apply_reports(reports)
        self.clients.send_output()
        if self.clients.blocked:
            self.clients.retry_blocked()
        self.clients.check_input()
        events = self.machine.clients.events.take()
        if events:
            self._publish(events)

    def _apply_reports(self, reports: bool) -> None:
        """Apply some reports, of the engines in turn; send after each, so that no output is delayed."""
        left = ROUND_REPORTED
        while reports and left > 0:
            left -= self.engines.apply_next_report()
            self.clients.send_output()
            reports = self.engines.reports.has_reports
        self._reports_pending = reports

    def _publish(self, events: list[EventFields]) -> None:
        """Publish events of clients and streams on the reserved stream, if it has been read or is stored."""
        machine, name = self.machine, self._settings.machine.events
        if not name or (name not in machine.streams and not self._selector.stores(name)):
            return
        # an event about the loss of this stream would open the stream again, in an endless loop
        events = [event for event in events if event[2] != name or event[0] != "STREAM_LOST"]
        stream = self.engines.streams.get(name)
        if stream and (len(stream.pending) > MAX_PENDING_EVENTS or len(stream.handle.inbox) > MAX_LAG // 2):
            self._lost_events += len(events)
            self.counters.lost_events += len(events)
            return
        if self._lost_events:
            events = [("EVENTS_LOST", b"", b"", b"%d" % self._lost_events), *events]
            self._lost_events = 0
        messages = self._messages(events)
        if messages:
            machine.publishing.publish(name, messages)
            self.engines.send_commands()

    def _messages(self, events: list[EventFields]) -> list[tuple[bytes, list[bytes], Extension]]:
        # Time of day: stamps events.
        now = time.time_ns() // 1000
        messages = []
        for fields in events:
            event = BrokerEvent(*fields, now)
            try:
                messages.append((event.subject, [self._encode(event)], Extension(headers=event.headers)))
            except Exception as e:  # noqa: BLE001 the encoder is the caller's
                logger.error("an event cannot be encoded: %s", e)
        return messages

    def _finish(self) -> None:
        """Process accepted messages through the engines and send to clients, until the time-outs."""
        self.engines.send_commands()
        self.engines.finish(time.monotonic() + END_TIMEOUT)
        deadline = time.monotonic() + self._settings.linger
        self.clients.send_output()
        while self.clients.blocked and time.monotonic() < deadline:
            time.sleep(MAX_RETRY_INTERVAL)
            self.clients.retry_blocked()
            self.clients.send_output()
        self._dropped, self._deadline = [c.queued for c in self.machine.clients if c.queued], deadline
        self.clients.close(max(0.0, deadline - time.monotonic()))

    def dropped(self) -> str:
        """A text about messages that clients did not take, or empty; to be called when the context has ended."""
        found, linger = list[str](), self._settings.linger
        if self._dropped:
            found.append(f"{sum(self._dropped):,} deliveries that waited for {len(self._dropped):,} clients")
        if linger and time.monotonic() >= self._deadline - TIMER:  # the context ended because its time was over
            found.append(f"what ZeroMQ held, {self._settings.high_water:,} messages for each client at most")
        what = ", and ".join(found)
        return what and f"dropped at the end, for clients did not take it within {linger:g} s (linger): {what}"

    def close(self) -> None:
        """Idempotent."""
        self.engines.close(0.0 if self._stopping else END_TIMEOUT)
        self._control.close(0)
        self.clients.close()
