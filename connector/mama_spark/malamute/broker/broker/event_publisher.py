"""Publishes events of clients and streams on the broker's own stream, without blocking."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mama_spark.malamute.protocol.extensions import Extension

from ..session.broker_events import BrokerEvent, EventFields
from ..session.engine_backlog import MAX_LAG
from ..session.state_machine import ServerMachine
from .engine_pool import StreamEngines
from .engine_selector import EngineSelector
from .traffic_counters import SocketCounters

logger = logging.getLogger(__name__)

#: Most events that wait for the start of their stream's engine; further ones are only counted.
MAX_PENDING_EVENTS = 10_000


class BrokerEventPublisher:
    """:param encode: makes the content of the messages"""

    def __init__(
        self,
        machine: ServerMachine,
        engines: StreamEngines,
        selector: EngineSelector,
        counters: SocketCounters,
        encode: Callable[[BrokerEvent], bytes],
    ) -> None:
        self._machine = machine
        self._engines = engines
        self._selector = selector
        self._counters = counters
        self._encode = encode
        self._lost = 0  # not reported yet

    def publish(self, events: list[EventFields]) -> None:
        """Publish events on the reserved stream, if it has been read or is stored."""
        machine, name = self._machine, self._machine.settings.events
        if not name or (name not in machine.streams and not self._selector.stores(name)):
            return
        # an event about the loss of this stream would open the stream again, in an endless loop
        events = [event for event in events if event[2] != name or event[0] != "STREAM_LOST"]
        if self._engines.pending_commands(name) > MAX_PENDING_EVENTS or self._engines.batches(name) > MAX_LAG // 2:
            self._lost += len(events)
            self._counters.lost_events += len(events)
            return
        if self._lost:
            events = [("EVENTS_LOST", b"", b"", b"%d" % self._lost), *events]
            self._lost = 0
        messages = self._messages(events)
        if messages:
            machine.publishing.publish(name, messages)
            self._engines.send_commands()

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
