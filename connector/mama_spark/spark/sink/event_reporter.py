"""Reports events of a partition's publisher: to the flight log, and to discovery when the write is announced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mama_spark.contracts.bridge import BridgeEvent, EventKind
from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import Bools, Int64s, MessageBatch
from mama_spark.flightlog.columns import LoggedEvent
from mama_spark.mama.messages.event_records import ERROR, EventRecord
from mama_spark.mama.publisher.partition_events import PartitionEvents
from mama_spark.publishing.wall_clock import WallClock
from mama_spark.publishing.window.flight_batch import FlightBatch

from ..write_counts import TaskCounts

if TYPE_CHECKING:
    from mama_spark.flightlog.staging import Staging

#: Gets events in order; True: publish them now, False: they may wait for the end of the partition.
PublishEvents = Callable[[Sequence[EventRecord], bool], None]


class EventReporter:
    """Reports the events of one publisher, to ``staging`` of the flight log, too, unless it is None. Used by one thread
    at a time: the task's, the publisher's, and the task's again at the end."""

    def __init__(self, events: PartitionEvents, clock: WallClock, staging: Staging | None) -> None:
        self._events, self._clock, self._staging = events, clock, staging
        self._created = False
        self._publish: PublishEvents | None = None
        self._before_announce: list[EventRecord] = []
        self._unlogged: list[LoggedEvent] = []

    def publish_to(self, publish: PublishEvents) -> None:
        """Call ``publish`` with all events from now on, and with the earlier ones at once."""
        self._publish = publish
        publish(self._before_announce, False)

    def create(self) -> None:
        """Call this first: an error before it leaves no event."""
        self._created = True
        self._before_announce = self._events.create(self._now())
        self._report(self._before_announce)

    def live(self) -> None:
        self._report(self._events.live(self._now()))

    def on_transport_event(self, event: BridgeEvent) -> None:
        """A lost connection is an error of the publisher; other transport events are only logged by the process."""
        if event.kind in (EventKind.DISCONNECTED, EventKind.CLOSED):
            at = int(self._clock.micros(np.array([event.at]))[0])
            self._report(self._events.publisher_error(at, event.error, event.info))

    def partition_failed(self, error: Exception) -> None:
        """The partition ends early because of ``error``. Never raises, since there is an error already."""
        if not self._created or self._events.ended:
            return
        known = error if isinstance(error, MamaError) else None
        with contextlib.suppress(Exception):
            self._report(self._events.publisher_error(self._now(), known, str(error)))

    def flights_finished(self, flights: FlightBatch, batch: MessageBatch, split: Bools | None = None) -> None:
        """Report flights that all have their outcome; rows of ``split`` are sent again: none failed for good."""
        if self._staging is None and self._publish is None:
            return
        failed = _NONE
        if not flights.errors and self._events.has_reported(batch.topics):
            return
        if flights.errors:
            failed = np.flatnonzero(flights.failed())
            failed = failed if split is None else failed[~split[failed]]
        self._report(
            self._events.messages(batch, self._clock.micros(flights.published), failed, flights.errors, self._now())
        )

    def counts(self, counts: TaskCounts) -> EventRecord:
        """The event that says how the publisher is. May be called in any thread."""
        c = counts
        return self._events.counts(self._now(), c.taken, c.acked, c.failed, c.in_flight, c.waits_for)

    def destroy(self) -> None:
        self._report(self._events.destroy(self._now()))

    def destroyed(self) -> None:
        self._report(self._events.destroyed(self._now()))

    def flush(self) -> None:
        events, self._unlogged = self._unlogged, []
        if self._staging is not None:
            self._staging.add_events(events)

    def _now(self) -> int:
        return self._clock.now()

    def _report(self, events: list[EventRecord]) -> None:
        if not events:
            return
        self._unlogged += map(_logged, events)
        if len(self._unlogged) >= MAX_UNLOGGED:
            self.flush()
        if self._publish is not None:
            self._publish(events, any(event.event.startswith(("PUBLISH_ERROR", ERROR)) for event in events))


#: Events are gathered, because to make a record batch takes as long for one row as for a thousand.
MAX_UNLOGGED = 1_000

_NONE: Int64s = np.empty(0, np.int64)


def _logged(e: EventRecord) -> LoggedEvent:
    return LoggedEvent(e.kind, e.event, e.at_us, e.topic, e.status, e.code, e.info, e.state)
