"""A query or job as a source: what it says of itself, and how a task says it.

Discovery never fails a write that has begun: what cannot be told is a warning in the log of the process. What only the
user can change (a permission, a wrong URL) is found before the first publish and fails the task clearly.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from mama_spark.bridge import DiscoveryBridge, SourceKey
from mama_spark.errors import ConfigError, MamaError
from mama_spark.mama.messages.event_records import EventRecord, encode_event
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import BEST, OFFLINE, OK, ONLINE, UNKNOWN, SourceRecord, encode_source
from mama_spark.options import SinkOptions, redact_url

from ..bridge_factory import make_discovery
from ..option_loading import DiscoveryProperties

log = logging.getLogger("mama_spark")

#: Name of a source that nobody named.
NAMELESS = "mama-spark"
#: Seconds that the end of a partition waits for its events to be told.
PATIENCE = 15.0


def source_record(
    o: SinkOptions,
    identity: str,
    *,
    streaming: bool,
    query_name: str | None = None,
    app_name: str | None = None,
    app_id: str | None = None,
) -> SourceRecord:
    """What the write says of itself; the same in all its tasks.

    :param identity: query id of a stream; ``txnAppId`` or run id of a batch write
    """
    about = {
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
        name=o.source_name or query_name or app_name or NAMELESS,
        id=source_id(identity),
        state=ONLINE,
        data_state=OK,
        qos_rate=BEST,
        qos_timeliness=BEST,
        data_dict=UNKNOWN,
        capabilities={name: value for name, value in about.items() if value is not None},
    )


def source_id(identity: str) -> int:
    """64 bits that stand for a query or run."""
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big")


def check_announce(o: SinkOptions, terms: DiscoveryProperties) -> None:
    """On the driver, without I/O: can the write be announced at all?

    :raises StatusError: NOT_IMPLEMENTED: bridge or transport have no source discovery
    :raises BadRecord: the properties file names a field like something that the source says of itself
    """
    terms.need_support("announce=true")
    make_discovery(o)
    every = source_record(o, "id", streaming=True, query_name="q", app_name="a", app_id="a")
    encode(encode_source(every, terms.fields))


class SourceAnnouncer:
    """One task's hold on its source. Calls: :meth:`start`, :meth:`tell`, :meth:`finish`; by one thread at a time.

    :param ids: what the ids of its events begin with; no other attempt has the same
    """

    def __init__(self, o: SinkOptions, terms: DiscoveryProperties, record: SourceRecord, ids: str) -> None:
        self._options, self._terms, self._ids = o, terms, ids
        self.record = record
        self._key = SourceKey(record.name, record.id)
        self._bridge: DiscoveryBridge | None = None
        self._waiting: list[EventRecord] = []
        self._told = 0
        self._urgent = self._finishing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Announce, before the first publish.

        :returns: False: nobody answers, and the write goes on without discovery
        :raises ConfigError: the user must change something
        """
        bridge = make_discovery(self._options)
        try:
            bridge.open()
            record = encode(encode_source(self.record, self._terms.fields))
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

    def tell(self, events: Sequence[EventRecord], at_once: bool) -> None:
        """Take events; never waits.

        :param at_once: do not keep them for the end of the partition
        """
        if self._bridge is None:
            return
        with self._changed:
            self._waiting += events
            self._urgent |= at_once
            if at_once:
                self._changed.notify_all()

    def finish(self) -> None:
        """Tell what is left and give the lease back; waits a bounded time. May be repeated, never raises."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                log.warning("source %r: its last events are not told after %g s", self.record.name, PATIENCE)

    # --- the thread: nothing of discovery holds up the task or its publisher ---------------------------------

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
        except Exception as e:  # noqa: BLE001 - whatever it is, the write goes on
            log.warning("source %r: events of partition %s were not told: %s", self.record.name, self._ids, e)
        finally:
            self._bridge.close()

    def _send(self, bridge: DiscoveryBridge, events: list[EventRecord]) -> None:
        if not events:
            return
        ours = [replace(e, source_name=self.record.name, source_id=self.record.id) for e in events]
        numbers = range(self._told, self._told + len(events))
        self._told += len(events)
        bridge.publish_events(self._key, [encode(encode_event(e)) for e in ours], [f"{self._ids}-{n}" for n in numbers])


def withdraw(o: SinkOptions, terms: DiscoveryProperties, record: SourceRecord) -> None:
    """Say OFFLINE for a source that is announced by other processes. Never raises: there is a warning, and the source
    goes when it expires."""
    try:
        bridge = make_discovery(o)
        try:
            bridge.open()
            gone = encode(encode_source(replace(record, state=OFFLINE), terms.fields))
            bridge.withdraw(SourceKey(record.name, record.id), gone)
        finally:
            bridge.close()
    except MamaError as e:
        log.warning("source %r is not withdrawn and will expire: %s", record.name, e)
