"""What a partition's publisher tells: to the flight log always, and to discovery when the write is announced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from mama_spark.bridge import BridgeEvent, EventKind
from mama_spark.errors import MamaError
from mama_spark.flightlog.columns import LoggedEvent
from mama_spark.flightlog.staging import Staging
from mama_spark.mama.messages.event_records import ERROR, EventRecord
from mama_spark.mama.publisher.partition_events import PartitionEvents
from mama_spark.message import Bools, Int64s, MessageBatch
from mama_spark.publisher.clock import WallClock
from mama_spark.sending.flight import FlightState
from mama_spark.sending.flight_batch import FlightBatch

#: Takes events in order; True: tell them now, False: they may wait for the end of the partition.
Tell = Callable[[Sequence[EventRecord], bool], None]


class EventReporter:
    """Reports the events of one publisher. Used by one thread at a time: the task's, the publisher's, and the task's
    again at the end.

    :param staging: of the flight log; None = none is kept
    """

    def __init__(self, events: PartitionEvents, clock: WallClock, staging: Staging | None) -> None:
        self._events, self._clock, self._staging = events, clock, staging
        self._created = False
        self._tell: Tell | None = None
        self._early: list[EventRecord] = []
        self._unlogged: list[LoggedEvent] = []

    def announce(self, tell: Tell) -> None:
        """From here on ``tell`` hears of everything, beginning with what was before."""
        self._tell = tell
        tell(self._early, False)

    def create(self) -> None:
        """The first of the calls: what fails before it has no publisher and leaves no event."""
        self._created = True
        self._early = self._events.create(self._now())
        self._report(self._early)

    def live(self) -> None:
        self._report(self._events.live(self._now()))

    def transport(self, event: BridgeEvent) -> None:
        """Losing the connection is an error of the publisher; what else happens to it is for the process' log."""
        if event.kind in (EventKind.DISCONNECTED, EventKind.CLOSED):
            at = int(self._clock.micros(np.array([event.at]))[0])
            self._report(self._events.trouble(at, event.error, event.info))

    def failed(self, error: Exception) -> None:
        """The partition ends early because of ``error``. Never raises: there is an error already."""
        if not self._created or self._events.ended:
            return
        known = error if isinstance(error, MamaError) else None
        with contextlib.suppress(Exception):
            self._report(self._events.trouble(self._now(), known, str(error)))

    def finished(self, block: FlightBatch, batch: MessageBatch, apart: Bools | None = None) -> None:
        """A block whose flights all have their outcome.

        :param apart: flights that did not fail for good: they go on as others
        """
        if self._staging is None and self._tell is None:
            return
        failed = _NONE
        if not block.errors and self._events.knows(batch.topics):
            return
        if block.errors:
            failed = np.flatnonzero(
                (block.state == FlightState.COMPLETED_EXCEPTIONALLY) | (block.state == FlightState.TIMEOUT)
            )
            failed = failed if apart is None else failed[~apart[failed]]
        self._report(
            self._events.messages(batch, self._clock.micros(block.published), failed, block.errors, self._now())
        )

    def destroy(self) -> None:
        self._report(self._events.destroy(self._now()))

    def destroyed(self) -> None:
        self._report(self._events.destroyed(self._now()))

    def flush(self) -> None:
        """Hand what is gathered to the flight log."""
        events, self._unlogged = self._unlogged, []
        if self._staging is not None:
            self._staging.add_events(events)

    def _now(self) -> int:
        return self._clock.now()

    def _report(self, events: list[EventRecord]) -> None:
        if not events:
            return
        self._unlogged += map(_logged, events)
        if len(self._unlogged) >= GATHER:
            self.flush()
        if self._tell is not None:
            self._tell(events, any(event.event.startswith(("PUBLISH_ERROR", ERROR)) for event in events))


#: Events that are gathered for the flight log: a record batch of one row costs as much to make as one of a thousand.
GATHER = 1_000

_NONE: Int64s = np.empty(0, np.int64)


def _logged(e: EventRecord) -> LoggedEvent:
    return LoggedEvent(e.kind, e.event, e.at_us, e.topic, e.status, e.code, e.info, e.state)
