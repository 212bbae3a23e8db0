"""Stores the events of a market data source, in a flight log and in discovery, in a thread of its own, so that a store
that does not answer holds nothing else up.

| what happens | kind, event | columns |
|---|---|---|
| the source begins, serves, ends | publisher; create, live, destroy | state |
| it cannot go on | publisher, error | status, info |
| a callback: onCreate, onRequest, onNewRequest, onRefresh, onMsg, onError, onDestroy | topic, its name | topic, source, symbol, status, info |
| a topic has its first reader, or none any more | topic; SUBSCRIBED, UNSUBSCRIBED | the same |
"""  # noqa: E501

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.bridge import DiscoveryBridge, SourceKey
from mama_spark.contracts.errors import MamaError
from mama_spark.flightlog.columns import LoggedEvent
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.staging import Staging
from mama_spark.mama.messages.event_records import (
    CREATE,
    DESTROY,
    ERROR,
    LIVE,
    PUBLISHER,
    TOPIC,
    EventRecord,
    encode_event,
)
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import OFFLINE, SourceRecord, encode_source
from mama_spark.mama.messages.status import Status

from ...recording.background_task import BackgroundTask
from .market_data_source import PublisherEvent

MAX_WAITING = 10_000
_STATES = {CREATE: "CREATING", LIVE: "LIVE", ERROR: "LIVE", DESTROY: "DESTROYED"}


class SourceEvents:
    """Events that wait to be stored, in order. Of those beyond ``most``, only how many there were of each callback is
    kept: whoever sends requests decides how many events there are.
    """

    def __init__(self, source: str, sender: int, most: int = MAX_WAITING) -> None:
        self._source, self._sender, self._most = source, sender, most
        self._waiting: list[EventRecord] = []
        self._omitted: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def publisher(self) -> str:
        """Identity of the publisher in all events."""
        return f"{self._source}/{self._sender}"

    def lifecycle(self, event: str, at: int, *, status: str | None = None, info: str | None = None) -> None:
        """Add an event of the source itself: ``create``, ``live``, ``error`` or ``destroy``.

        :param at: microseconds since the epoch
        """
        state = _STATES[event]
        self._waiting.append(self._event(PUBLISHER, event, at, status=status, info=info, state=state))

    def callback(self, event: PublisherEvent, at: int) -> None:
        """A callback of the publisher.

        :param at: microseconds since the epoch
        """
        if len(self._waiting) >= self._most:
            self._omitted[event.callback] += 1
            return
        symbol = event.symbol or None
        topic = f"{self._source}.{symbol}" if symbol else None
        self._waiting.append(
            self._event(TOPIC, event.callback, at, topic=topic, symbol=symbol, source=self._source if symbol else None,
                        status=event.status or None, info=event.info or None)
        )  # fmt: skip

    def take(self, at: int) -> list[EventRecord]:
        """The waiting events, and one event for each callback with omitted ones."""
        taken, self._waiting = self._waiting, []
        omitted, self._omitted = self._omitted, Counter()
        more = "more of them, each without an event of its own"
        return [*taken, *(self._event(TOPIC, name, at, info=f"{n:,} {more}") for name, n in omitted.items())]

    def _event(self, kind: str, name: str, at: int, **more: str | None) -> EventRecord:
        about: dict[str, Any] = {"publisher": self.publisher, **more}
        return EventRecord(kind, name, at, self._source, self._sender, **about)


END_TIMEOUT = 15.0  #: seconds that the end waits for a store that does not answer
_END_RETRIES = Backoff(0.2, 2.0)


class EventStore(Protocol):
    """The store of events; called by one thread at a time."""

    name: str

    def open(self) -> None:
        """Open the store.

        :raises MamaError: it cannot be used; a retryable one: it cannot be used now
        """
        ...

    def store(self, number: int, events: Sequence[EventRecord]) -> None:
        """Store a batch, once: after an error it comes again with its number.

        :raises MamaError: it is not known to be stored
        """
        ...

    def close(self) -> None:
        """Close the store; never raises."""
        ...


class FlightLogStore:
    """Rows of a flight log; a batch is a commit.

    :param run_id: ``run_id`` of the rows of this run of the source
    """

    def __init__(self, uri: str, storage: dict[str, str], run_id: str) -> None:
        self.name = f"the flight log {uri}"
        self._uri, self._storage, self._run_id = uri, storage, run_id

    def open(self) -> None:
        self._staging(0).check()

    def store(self, number: int, events: Sequence[EventRecord]) -> None:
        staging = self._staging(number)
        staging.add_events([
            LoggedEvent(e.kind, e.event, e.at_us, e.topic, e.status, e.code, e.info, e.state) for e in events
        ])  # fmt: skip
        commit(self._uri, self._storage, self._write_id(number), staging.close(), app=(self._run_id, number))

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _write_id(self, number: int) -> WriteId:
        return WriteId(None, self._run_id, None, "openmama", number)

    def _staging(self, number: int) -> Staging:
        return Staging(self._uri, self._storage, self._write_id(number), 0, 0)


class DiscoveryStore:
    """The source, announced while it runs, and its events.

    :param make: returns a bridge that is not open
    :param run_id: makes the ids of its events
    :param ttl: seconds; see :meth:`~mama_spark.contracts.bridge.DiscoveryBridge.announce`
    """

    def __init__(self, make: Callable[[], DiscoveryBridge], record: SourceRecord, run_id: str, ttl: float) -> None:
        self.name = "discovery"
        self._make, self._record, self._run_id, self._ttl = make, record, run_id, ttl
        self._key = SourceKey(record.name, record.id)
        self._bridge: DiscoveryBridge | None = None

    def open(self) -> None:
        bridge = self._make()
        try:
            bridge.open()
            bridge.announce(self._key, encode(encode_source(self._record)), self._ttl)
        except BaseException:
            bridge.close()
            raise
        self._bridge = bridge

    def store(self, number: int, events: Sequence[EventRecord]) -> None:
        if self._bridge is None:
            self.open()
        assert self._bridge is not None
        payloads = [encode(encode_event(event)) for event in events]
        try:
            self._bridge.publish_events(
                self._key, payloads, [f"{self._run_id}-{number}-{n}" for n in range(len(payloads))]
            )
        except MamaError:
            self._bridge.close()
            self._bridge = None
            raise

    def close(self) -> None:
        """Withdraw the source: it is OFFLINE. If that fails, it expires."""
        if self._bridge is not None:
            with suppress(MamaError):
                self._bridge.withdraw(self._key, encode(encode_source(replace(self._record, state=OFFLINE))))
            self._bridge.close()
            self._bridge = None


class SourceEventReporter:
    """Stores events every so often, and at the end. Usable from any thread.

    :param interval: seconds between two batches
    :param warn: gets what went wrong, once an outage
    """

    def __init__(self, store: EventStore, events: SourceEvents, interval: float, warn: Callable[[str], None]) -> None:
        self._store, self._events, self._interval, self._warn = store, events, interval, warn
        self._batch: list[EventRecord] = []
        self._number = 0
        self._failing = False
        self._lock = threading.Lock()
        name = f"mama-events-{store.name}"
        self._task = BackgroundTask(name, f"stores events in {store.name}", self._run, 2 * END_TIMEOUT)

    def start(self) -> None:
        """Open the store, and start the thread that stores events. A retryable error is a warning only.

        :raises MamaError: the user must change something
        """
        try:
            self._store.open()
        except MamaError as e:
            if not e.retryable:
                raise
            self._failed(e)
        self._task.start()

    def lifecycle(self, event: str, *, status: str | None = None, info: str | None = None) -> None:
        with self._lock:
            self._events.lifecycle(event, _now(), status=status, info=info)

    def callback(self, event: PublisherEvent) -> None:
        """Queue a callback of the publisher; never waits."""
        with self._lock:
            self._events.callback(event, _now())

    def close(self) -> None:
        """Store what waits, within a bounded time. May be repeated, never raises."""
        self._task.stop()

    # --- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._task.stopping.wait(self._interval):
                self._store_waiting()
            delays, until = _END_RETRIES.delays(), time.monotonic() + END_TIMEOUT
            while not self._store_waiting():
                if time.monotonic() >= until:
                    self._warn(f"{len(self._batch)} events are not in {self._store.name}")
                    break
                time.sleep(delays.next())
        finally:
            self._store.close()

    def _store_waiting(self) -> bool:
        if not self._batch:
            with self._lock:
                self._batch = self._events.take(_now())
            self._number += bool(self._batch)
        if not self._batch:
            return True
        try:
            self._store.store(self._number, self._batch)
        except MamaError as e:
            self._failed(e)
            return False
        self._batch, self._failing = [], False
        return not len(self._events)

    def _failed(self, error: MamaError) -> None:
        if not self._failing:
            self._failing = True
            self._warn(f"events of the source wait for {self._store.name}: {error}")


class SourceEventReporters:
    """Several reporters as one: started when it is entered, closed when it is left."""

    def __init__(self, reporters: Sequence[SourceEventReporter]) -> None:
        self._reporters = reporters

    def __enter__(self) -> Self:
        """Report the creation of the source, and start all reporters.

        :raises MamaError: the user must change something
        """
        self.lifecycle(CREATE)
        try:
            for one in self._reporters:
                one.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.lifecycle(ERROR, status=Status.PLATFORM.name, info=str(error))
        self.lifecycle(DESTROY)
        self._close()

    def _close(self) -> None:
        for one in self._reporters:
            one.close()

    def lifecycle(self, event: str, *, status: str | None = None, info: str | None = None) -> None:
        for one in self._reporters:
            one.lifecycle(event, status=status, info=info)

    def callback(self, event: PublisherEvent) -> None:
        for one in self._reporters:
            one.callback(event)


def _now() -> int:
    # Time of day: stamps events.
    return time.time_ns() // 1000
