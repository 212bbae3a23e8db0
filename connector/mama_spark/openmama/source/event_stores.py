"""Where events of a market data source are stored: a flight log, and a place of discovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from mama_spark.contracts.bridge import DiscoveryBridge, SourceKey
from mama_spark.contracts.errors import MamaError
from mama_spark.flightlog.columns import LoggedEvent
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.staging import Staging
from mama_spark.flightlog.write_id import WriteId
from mama_spark.mama.messages.event_records import EventRecord, encode_event
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import OFFLINE, SourceRecord, encode_source

BRIDGE = "openmama"


class FlightLogStore:
    """Rows of a flight log; a batch is a commit.

    :param run_id: of this run of the source: ``run_id`` of its rows
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
        commit(
            self._uri, self._storage, self._write_id(number), staging.close(), app=(self._run_id, number)
        )  # fmt: skip

    def close(self) -> None:
        """Nothing is open."""

    def _write_id(self, number: int) -> WriteId:
        return WriteId(None, self._run_id, None, BRIDGE, number)

    def _staging(self, number: int) -> Staging:
        return Staging(self._uri, self._storage, self._write_id(number), 0, 0)


class DiscoveryStore:
    """The source, announced while it runs, and its events.

    :param make: returns a bridge that is not open
    :param record: of the source
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
        """Take the source back: it is OFFLINE. If that is not possible, it expires."""
        if self._bridge is not None:
            with suppress(MamaError):
                self._bridge.withdraw(self._key, encode(encode_source(replace(self._record, state=OFFLINE))))
            self._bridge.close()
            self._bridge = None
