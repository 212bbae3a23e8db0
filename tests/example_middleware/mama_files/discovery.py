"""Announces and finds sources: their records and events are lines of the file on topics below ``_sources``.

A source of which nobody says that it ended stays online: nothing in a file lets a lease expire.
"""

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLog, Records
from mama_spark.discovery.recorded_discovery import RecordedDiscovery
from mama_spark.options import TransportOptions

from .bridge import path_of
from .log import FileLogs


def discovery_bridge(o: TransportOptions) -> "FileDiscovery":
    return FileDiscovery(FileLogs(path_of(o.url)), None)


class FileDiscovery(RecordedDiscovery):
    """See :class:`mama_spark.contracts.bridge.DiscoveryBridge`."""

    topics = ("_sources.>",)

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        self._write(source, record)

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        self._write(source, record)

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        self._append(DiscoveryEventKind.EVENT, source, events)

    def _write(self, source: SourceKey, record: bytes) -> None:
        old = self.sources(self.log, 1, self.log.bounds().last).get(source)
        if old is None or old.payload != record:
            self._append(DiscoveryEventKind.RECORD, source, [record])

    def _append(self, kind: DiscoveryEventKind, source: SourceKey, payloads: Sequence[bytes]) -> None:
        topics = pa.array([f"_sources.{kind.value}"] * len(payloads), pa.string()).dictionary_encode()
        lines = [json.dumps(source).encode() + b"\n" + payload for payload in payloads]
        self.log.append(MessageBatch(topics, pa.array(lines, pa.binary())))

    def events(self, origin: str, records: Records) -> Iterator[DiscoveryEvent]:
        columns = (records.sequences.tolist(), records.times.tolist(), records.topics.to_pylist(),
                   records.payloads.to_pylist())  # fmt: skip
        for sequence, at, topic, line in zip(*columns, strict=True):
            kind = DiscoveryEventKind(topic.removeprefix("_sources."))
            key, _, payload = line.partition(b"\n")
            yield DiscoveryEvent(kind, at, origin, sequence, SourceKey(*json.loads(key)), payload)

    def sources(self, log: RecordLog, first: int, last: int) -> dict[SourceKey, DiscoveryEvent]:
        found = (
            event for records in log.read(first - 1, last, self.topics) for event in self.events(log.name, records)
        )
        return {event.source: event for event in found if event.source and event.kind is DiscoveryEventKind.RECORD}
