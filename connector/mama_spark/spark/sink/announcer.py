"""Announces a query or job as a source, and publishes its events.

Discovery never fails a write that has begun: there is a warning in the log of the process. Errors that only the user
can correct (a permission, a wrong URL) fail the task before the first publish.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from mama_spark.contracts.bridge import DiscoveryBridge, SourceKey
from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.mama.messages.event_records import EventRecord, encode_event
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import BEST, OFFLINE, OK, ONLINE, UNKNOWN, SourceRecord, encode_source
from mama_spark.options import SinkOptions, redact_url

from ..option_loading import DiscoveryProperties, make_discovery

log = logging.getLogger("mama_spark")

DEFAULT_SOURCE_NAME = "mama-spark"
#: Seconds that the end of a partition waits until its events are published.
FINISH_TIMEOUT = 15.0


def source_record(
    o: SinkOptions,
    identity: str,
    *,
    streaming: bool,
    query_name: str | None,
    app_name: str | None,
    app_id: str | None = None,
) -> SourceRecord:
    """The source record of a write; equal in all its tasks.

    :param identity: query id of a stream; ``txnAppId`` or run id of a batch write
    """
    capabilities = {
        "format": "mamapub",
        "bridge": o.bridge_name,
        "url": ",".join(map(redact_url, o.url)),
        "transport": o.transport,
        "topic": o.topic,
        "topicPrefix": o.topic_prefix,
        "queryName": query_name,
        "queryId" if streaming else "runId": identity,
        "applicationName": app_name,
        "applicationId": app_id,
    }
    return SourceRecord(
        name=o.source_name or query_name or app_name or DEFAULT_SOURCE_NAME,
        id=source_id(identity),
        state=ONLINE,
        data_state=OK,
        qos_rate=BEST,
        qos_timeliness=BEST,
        data_dict=UNKNOWN,
        capabilities={name: value for name, value in capabilities.items() if value is not None},
    )


def source_id(identity: str) -> int:
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big")


def check_announce(o: SinkOptions, discovery: DiscoveryProperties) -> None:
    """Check on the driver, without I/O, that the write can be announced.

    :raises StatusError: NOT_IMPLEMENTED: bridge or transport have no source discovery
    :raises BadSourceRecord: the properties file gives a field a name that source records use
    """
    discovery.require_support("announce=true")
    make_discovery(o)
    every = source_record(o, "id", streaming=True, query_name="q", app_name="a", app_id="a")
    encode(encode_source(every, discovery.fields))


class SourceAnnouncer:
    """Announces the source of one task. Calls: :meth:`start`, :meth:`add_events`, :meth:`finish`; one at a time.
    ``ids``: prefix of the ids of its events; unique to the attempt."""

    def __init__(self, o: SinkOptions, discovery: DiscoveryProperties, record: SourceRecord, ids: str) -> None:
        self._options, self._discovery, self._ids = o, discovery, ids
        self.record = record
        self._key = SourceKey(record.name, record.id)
        self._bridge: DiscoveryBridge | None = None
        self._waiting: list[EventRecord] = []
        self._counts: EventRecord | None = None
        self._published = 0
        self._urgent = self._finishing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Announce, before the first publish.

        :returns: False: the broker does not answer, and the write goes on without discovery
        :raises ConfigError: the user must change something
        """
        bridge = make_discovery(self._options)
        try:
            bridge.open()
            record = encode(encode_source(self.record, self._discovery.fields))
            bridge.announce(self._key, record, self._options.source_ttl)
        except MamaError as e:
            bridge.close()
            if not e.retryable:
                raise ConfigError(f"announce=true: {e}") from e
            log.warning("source %r is not announced: %s", self.record.name, e)
            return False
        except BaseException:
            bridge.close()
            raise
        self._bridge = bridge
        self._thread = threading.Thread(target=self._run, name="mama-announcer", daemon=True)
        self._thread.start()
        return True

    def add_events(self, events: Sequence[EventRecord], urgent: bool) -> None:
        """Queue events; never waits. ``urgent``: publish them before the end of the partition."""
        if self._bridge is None:
            return
        with self._changed:
            self._waiting += events
            self._urgent |= urgent
            if urgent:
                self._changed.notify_all()

    def set_counts(self, counts: EventRecord) -> None:
        """Publish this soon, unless newer counts come before: nothing piles up while discovery is away. Never waits."""
        with self._changed:
            self._waiting = [*(event for event in self._waiting if event is not self._counts), counts]
            self._counts, self._urgent = counts, True
            self._changed.notify_all()

    def finish(self) -> None:
        """Publish queued events and give the lease back; waits a bounded time. May be repeated, never raises."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(FINISH_TIMEOUT)
            if self._thread.is_alive():
                log.warning(
                    "source %r: its last events were not published within %g s", self.record.name, FINISH_TIMEOUT
                )

    # --- the thread: discovery delays neither the task nor its publisher --------------------------------------

    def _run(self) -> None:
        assert self._bridge is not None
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._urgent or self._finishing)
                    events, self._waiting, self._urgent = self._waiting, [], False
                    last = self._finishing
                self._send(self._bridge, events)
                if last:
                    return
        except Exception as e:  # noqa: BLE001 - the write goes on after any error
            log.warning("source %r: events of partition %s were not published: %s", self.record.name, self._ids, e)
        finally:
            self._bridge.close()

    def _send(self, bridge: DiscoveryBridge, events: list[EventRecord]) -> None:
        if not events:
            return
        named = [replace(e, source_name=self.record.name, source_id=self.record.id) for e in events]
        numbers = range(self._published, self._published + len(events))
        self._published += len(events)
        bridge.publish_events(
            self._key, [encode(encode_event(e)) for e in named], [f"{self._ids}-{n}" for n in numbers]
        )


def withdraw(o: SinkOptions, discovery: DiscoveryProperties, record: SourceRecord) -> None:
    """Withdraw a source that other processes announced. Never raises: there is a warning, and the source expires."""
    try:
        bridge = make_discovery(o)
        try:
            bridge.open()
            offline_record = encode(encode_source(replace(record, state=OFFLINE), discovery.fields))
            bridge.withdraw(SourceKey(record.name, record.id), offline_record)
        finally:
            bridge.close()
    except MamaError as e:
        log.warning("source %r is not withdrawn and will expire: %s", record.name, e)
